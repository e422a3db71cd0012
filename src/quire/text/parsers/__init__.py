"""How families of models mark thoughts and tool calls in their text. A style is one file, with a `STYLE` in it."""
