"""Terminal output and control: tables, progress, word wrap, echo."""
