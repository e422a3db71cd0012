"""From a distribution to a token: each request by its own parameters, and never by its company."""
