"""What to run: a trace of requests is described, simulated with Quire's own cache and scheduler, and answered."""
