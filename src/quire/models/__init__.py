"""Architectures: one file each, a function that draws the graph and the names of its weights in each container.

`draw.draw(checkpoint)` is the way in. A new architecture is a new file here; nothing has to be listed anywhere.
"""
