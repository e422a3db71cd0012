"""A model as a value: nodes over named weights, drawn once, then lowered by a device or run by the interpreter."""
