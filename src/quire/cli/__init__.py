"""The command line: `commands` has one file per command. Slow imports happen in the command that needs them."""
