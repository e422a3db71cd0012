"""Which clients may call the server, and how much: host names, keys, quotas."""
