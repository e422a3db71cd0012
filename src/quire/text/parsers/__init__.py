"""How families of models mark thoughts and tool calls in their text. Each style is one file with a `STYLE`."""
