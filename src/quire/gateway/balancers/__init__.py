"""Balancers: each file chooses the replica of a request in one way. `contract.py` has what they see and return."""
