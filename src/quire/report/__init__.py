"""Reports for people: one HTML page that needs no network, and the plots in it. The standard library alone."""
