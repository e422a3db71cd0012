"""An HTTP/1.1 client for the hot path: raw connections in a pool for each upstream."""
