"""The processes of a server: start and shutdown, and several fronts for the same engines."""
