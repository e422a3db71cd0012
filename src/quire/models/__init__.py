"""Architectures: one file each, a function that draws the graph and the names of its weights in each container.

`draw.draw(checkpoint)` is the entry point. A new architecture is a new file here; there is no list to maintain.
"""
