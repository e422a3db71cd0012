"""Number formats, one file each. A file makes a format correct: it turns bytes into float32. Devices make it fast.

To add one, write a file with a `@quant_format` class in it: discovery finds it and the contract test checks it.
"""
