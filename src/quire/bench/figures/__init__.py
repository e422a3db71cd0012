"""From measurements to figures: statistics, goals, comparisons and result files."""
