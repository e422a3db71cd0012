"""HTML reports in one file, their plots, and traces of requests. Standard library only."""
