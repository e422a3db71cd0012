"""The engine: the step loop, the process it runs in, its client, and the offline API."""
