"""The ops of a model graph. An op is its numpy reference; kernels register for it and are tested against it.

One file per family. `registry.all_ops()` discovers them; there is no list to maintain.
"""
