"""One file per command of `quire`. Further files of a command begin with its name."""
