"""Text on both sides of the model: chat template and tokenizer before it, incremental detokenizer after it.

This file imports nothing: a process that only detokenizes never pays for jinja2, one that only renders never pays
for the tokenizer library.
"""
