"""Reports for people: one HTML page that needs no network, the plots in it, and traces of requests. Stdlib alone."""
