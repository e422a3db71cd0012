"""Endpoints about the server itself: health, metrics, models, the KV cache, the request log."""
