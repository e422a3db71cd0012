"""A conversation on a terminal: reading messages, slash commands, printing answers."""
