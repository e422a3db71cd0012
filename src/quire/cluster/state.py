"""What the controller keeps on disk: the cluster file, scales, replicas and keys. A new controller starts from it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import msgspec

from quire.cluster.errors import UnreadableState
from quire.cluster.orders import ClusterKeys
from quire.cluster.spec import BadCluster, ClusterSpec, GroupSpec, parse_cluster
from quire.types.transfer import Role

STATE_FILE = "state.json"


@dataclass(slots=True)
class ReplicaRecord:
    """A replica that was started and not removed."""

    id: str
    spec: GroupSpec
    started_at: float  # time.time()
    node: str = ""  # IP address, once it is known: it is placed there again, where its server may still run
    is_draining: bool = False
    is_pinned: bool = False  # must it be on that node?


@dataclass(slots=True)
class ClusterState:
    """One for each cluster. The controller alone changes it."""

    text: str
    file: str
    folder: str
    keys: ClusterKeys
    scales: dict[str, int] = field(default_factory=dict)  # of groups, set by `quire cluster scale`, before the file's
    counts: dict[str, int] = field(default_factory=dict)  # of groups, decided by the autoscaler
    replicas: dict[str, ReplicaRecord] = field(default_factory=dict)
    gateway_node: str = ""

    @property
    def spec(self) -> ClusterSpec:
        """The cluster file."""
        return parse_cluster(self.text, self.file, Path(self.folder))


def new_state(text: str, file: str, folder: str) -> ClusterState:
    """The state of a cluster that begins."""
    return ClusterState(text, file, folder, ClusterKeys(*(secrets.token_urlsafe(32) for _ in fields(ClusterKeys))))


def carried_counts(counts: Mapping[str, int], old: ClusterSpec, new: ClusterSpec) -> dict[str, int]:
    """The numbers of replicas with which the groups of a changed file begin.

    A group that answers and is new takes over the number of its model's groups that are gone: a model that gets roles
    under load is not scaled down to `min` first.
    """
    groups = new.groups
    gone = [each for name, each in old.groups.items() if name not in groups and each.role != Role.PREFILL]
    found = {name: count for name, count in counts.items() if name in groups}
    for name, group in groups.items():
        before = sum(counts.get(each.name, 0) for each in gone if each.model_name == group.model_name)
        if name not in counts and before and group.role != Role.PREFILL:
            found[name] = min(max(before, group.rule.min), group.rule.max)
    return found


def save_state(state: ClusterState, folder: Path) -> None:
    """Write the state, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = folder / "state.part"
    part.touch(mode=0o600)
    part.write_text(json.dumps(asdict(state)), encoding="utf-8")  # unlike msgspec's, with `inf`
    part.replace(folder / STATE_FILE)


def load_state(folder: Path) -> ClusterState | None:
    """Read the state; None if there is none. Raises UnreadableState, which says what to do."""
    path = folder / STATE_FILE
    try:
        state = msgspec.convert(json.loads(path.read_text(encoding="utf-8")), ClusterState)
        _ = state.spec  # its cluster file must be one of this version, too
    except FileNotFoundError:
        return None
    except BadCluster as error:
        raise UnreadableState(path, f"its cluster file is refused: {error.public}") from None
    except ValueError as error:  # of json, of Unicode, and of msgspec
        raise UnreadableState(path, str(error)) from None
    return state
