"""Models on disk: names, manifests, content-addressed blobs, and the sources that models come from.

The way in is `store.Store`. This file imports nothing: to list what is there costs no HTTP client.
"""
