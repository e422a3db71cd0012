"""How files come from the network onto the disk: over one connection or several, resumed after a break."""
