"""The HTTP server: dialects in, events out."""
