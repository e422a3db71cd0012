"""Which clients may call the server, and how often: host names, API keys, quotas."""
