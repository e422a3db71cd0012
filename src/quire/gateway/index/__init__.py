"""The index of the engines' prefix trees: which replica has how much of a prompt cached."""
