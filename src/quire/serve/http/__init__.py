"""The HTTP side: the route table, one exchange, one connection."""
