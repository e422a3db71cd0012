"""From a plan to tokens: rows, arrays, a launch, and what came of it."""
