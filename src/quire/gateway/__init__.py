"""Many models, and where requests go: which of them are in memory, and who is asked."""
