"""Errors of `quire cluster`."""

from __future__ import annotations

from pathlib import Path

from quire.types.errors import QuireError


class RayMissing(QuireError):
    """Ray is not installed."""

    code = "ray_missing"

    def __init__(self) -> None:
        super().__init__('`quire cluster` needs Ray: install Quire with its extra `ray` (`pip install ".[ray]"`).')


class ClusterError(QuireError):
    """A cluster cannot do what was asked."""

    code = "cluster_error"


class UnreadableState(ClusterError):
    """What a cluster has kept on disk is damaged, or of a version of Quire that kept something else."""

    code = "unreadable_state"

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"{path} is damaged, or another version of Quire wrote it ({why}). If the cluster still runs, end it with "
            "that version (`quire cluster down`). If it does not, delete the file. Then run `quire cluster up FILE`."
        )
