"""Where a graph becomes a program: one folder per device, opened by name."""
