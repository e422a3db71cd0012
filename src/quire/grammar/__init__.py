"""Output of a prescribed form: which tokens may come next, and which must."""
