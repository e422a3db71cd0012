"""Results for people: an HTML page, terminal output and live progress."""
