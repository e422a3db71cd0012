"""Where requests go: routing rules for aliases, and changes to the models of the store."""
