"""Transports for the bytes of blocks; one file each, see contract.py."""
