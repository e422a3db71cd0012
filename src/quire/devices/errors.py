"""Errors that devices share."""

from __future__ import annotations


class NoKernel(Exception):
    """A device has no kernel for a part of the graph. The message names it."""
