"""How families of models mark thoughts and tool calls in their text. One file for each, found by its name."""
