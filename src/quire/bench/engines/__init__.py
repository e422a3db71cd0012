"""The engines under test, and how each is started and reached."""
