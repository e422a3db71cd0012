"""What an operator can see: logs and metrics. Standard library only."""
