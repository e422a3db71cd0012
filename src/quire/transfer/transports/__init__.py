"""How the bytes of blocks travel; one file each, see contract.py."""
