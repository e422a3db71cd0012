"""What runs next. Pure: no I/O, no arrays of the device, and the clock is an argument."""
