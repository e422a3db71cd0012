"""Divergence of number formats and fast paths from float32."""
