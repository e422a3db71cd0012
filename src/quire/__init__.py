"""Quire: one LLM inference engine from a laptop to a cluster. Importing it costs nothing; its parts load when used."""

__version__ = "0.1.0"
