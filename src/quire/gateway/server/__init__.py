"""The gateway's own side: its endpoints, lists of models, metrics, and its life."""
