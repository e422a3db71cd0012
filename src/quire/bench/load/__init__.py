"""The load generator: what requests are sent, when they are sent, and what came back."""
