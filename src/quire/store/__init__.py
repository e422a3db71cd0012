"""Models on disk: names, manifests, content-addressed blobs, and the sources that models come from.

The entry point is `store.Store`. Importing it loads no HTTP client, so that `quire list` starts fast.

sources/    one file for each kind of place that models are pulled from
downloads/  HTTP downloads, and the user's pip
registries/ the protocol of registries, for pulls and pushes
external/   models that other programs keep on this disk
"""
