"""From a plan to tokens: rows, arrays, a launch, and its result."""
