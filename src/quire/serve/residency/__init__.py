"""The models of a server: which are loaded, started, shared and unloaded."""
