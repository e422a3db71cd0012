"""Sound into model inputs, and a speech model's tokens into timed text. Numpy alone; no model, no engine."""
