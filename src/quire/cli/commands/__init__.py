"""One file for each command of `quire`. What else a command needs lies beside it, in files that begin with its name."""
