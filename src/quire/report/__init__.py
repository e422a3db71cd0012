"""What measuring and advising share: traces of requests, plots and pages. The standard library alone."""
