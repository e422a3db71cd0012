"""Servers and a gateway on a Ray cluster: placement, restarts, scaling and rollouts. Ray is imported here alone."""
