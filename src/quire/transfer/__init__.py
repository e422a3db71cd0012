"""Transfer of KV blocks between engines: frames, authentication, transports, and the two ends of a transfer."""
