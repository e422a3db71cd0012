"""Requests that a gateway relays: prompts as tokens, streams in frames, and answers that another server began."""
