"""What a model can be drawn with. An op is its numpy reference; kernels attach to it and are compared with it.

One file per family. `registry.all_ops()` finds them all; nothing has to be listed anywhere.
"""
