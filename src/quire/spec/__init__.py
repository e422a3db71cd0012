"""Drafters: they guess the next tokens of running texts, which the next step verifies. One file each."""
