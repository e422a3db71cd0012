"""Number formats, one file each. A file defines how bytes become float32; devices have their own fast kernels.

To add one, write a file with a `@quant_format` class: discovery finds it and the contract test checks it.
"""
