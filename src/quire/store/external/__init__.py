"""Models that other programs keep on this disk. They are used in place: read, never copied, changed or removed."""
