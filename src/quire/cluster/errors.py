"""Errors of `quire cluster`."""

from __future__ import annotations

from quire.types.errors import QuireError


class RayMissing(QuireError):
    """Ray is not installed."""

    code = "ray_missing"

    def __init__(self) -> None:
        super().__init__('`quire cluster` needs Ray: install Quire with its extra `ray` (`pip install ".[ray]"`).')


class ClusterError(QuireError):
    """A cluster cannot do what was asked."""

    code = "cluster_error"
