"""KV blocks between engines: frames, proofs of the shared secret, transports, and the two ends of a transfer."""
