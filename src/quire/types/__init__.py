"""The project's words. Standard library only; values are frozen.

prompt      given by the user
computed    its KV exists
scheduled   in a step that has been planned
hit         came from the prefix tree
block       a page of KV (16 tokens)
slot        one token's place in a block
row         a request's place in device tables
hold        a reference that keeps a block from being evicted
pin         an eviction rank
"""
