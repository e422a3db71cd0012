"""One file for each API that clients speak. Each is found by its name and has a `DIALECT`."""
