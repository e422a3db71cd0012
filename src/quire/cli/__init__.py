"""The command line: one file for each command. What costs time to import is opened by name when a command needs it."""
