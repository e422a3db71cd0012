"""Registries of models: the protocol, logins, layers and pushes. `sources/ollama.py` pulls from them."""
