"""The processes of a server: its life, and several fronts for the same engines."""
