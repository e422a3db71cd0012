"""What a cluster should be: models × replicas × devices and the gateway, as a YAML file declares them.

name: demo                            # default: the name of the file
gateway:
  host: 127.0.0.1                     # another address needs api_keys
  port: 9000
  api_keys: keys.toml                 # as for `quire gateway`
  node: 10.0.0.1                      # default: the head node
  settings: {check_seconds: 1}        # any setting of `quire gateway`
models:
  smollm2:                            # the name that clients use
    model: smollm2:135m               # as for `quire serve`: a name, or a path that every node has
    replicas: 2                       # fixed; or autoscale
    autoscale: {min: 0, max: 4}       # more keys: AutoscaleRule
    version: "1"                      # default: a digest of all that changes what a replica computes
    role: both                        # or decode; prefill needs `roles`
    ranks: 1                          # actors of one replica
    strategy: PACK                    # of Ray's placement groups, for these actors
    device: auto
    cpus: 1                           # of each rank
    gpus: 0
    resources: {a100: 1}              # further resources of Ray
    surge: 1                          # replicas of a new version beside those of the old one
    wait_seconds: 300                 # that a request waits while no replica is ready
    max_waiting: 1000                 # requests that wait so
    settings: {max_context: 4096}     # any setting of `quire serve`
  chat:                               # groups of replicas with different roles, under one name for clients
    model: smollm2:135m
    cpus: 2                           # this and the keys from version to settings hold for all groups
    roles:                            # in place of role, replicas and autoscale
      prefill: {replicas: 1, gpus: 1}                                          # the group chat/prefill
      decode: {autoscale: {min: 1, max: 4}, settings: {max_rows: 64}}          # settings are added to the model's
orphan_seconds: 300                   # that servers go on without Ray before they drain
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from quire.cluster.autoscale import AutoscaleRule
from quire.config import BadSetting, load, settings
from quire.gateway.yaml_nodes import BadRoutes, YamlNode, parse_yaml, read_yaml
from quire.types.transfer import Role

ROLES = (Role.BOTH, Role.PREFILL, Role.DECODE)
MAX_RANKS = 1  # of engines today; placement and actors take any number
STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
NAME = re.compile(r"[\w.:-]+")  # as in `quire serve NAME=MODEL`
LOOPBACK = ("127.", "localhost", "::1")

OF_CLUSTER = ("name", "gateway", "models", "orphan_seconds")
OF_CLUSTER_GATEWAY = ("host", "port", "api_keys", "node", "settings")
OF_GROUP = (
    *("replicas", "autoscale", "version", "ranks", "strategy", "device", "cpus", "gpus", "resources", "surge"),
    "settings",
)
OF_MODEL = ("model", "role", "roles", *OF_GROUP, "wait_seconds", "max_waiting")
OF_ONE_GROUP = ("role", "replicas", "autoscale")  # of a model without `roles`
# Sections of config.py whose settings a replica, or the gateway, may have, and settings that the cluster sets itself.
REPLICA_SECTIONS = (
    *("serve", "cache", "scheduler", "sampling", "grammar", "speculation", "embedding"),
    *("observe", "weights", "device", "store", "transfer"),
)
GATEWAY_SECTIONS = ("gateway", "observe", "serve")
OWN_SETTINGS = (
    *("host", "port", "fleet", "api_key", "api_keys", "fronts"),
    *("role", "transfer_secret", "transfer_host", "transfer_port"),
)


class BadCluster(BadRoutes):
    """The cluster file is invalid."""

    code = "bad_cluster"
    setting = "cluster"


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """Replicas of one model with one role: what is scaled, and rolled out."""

    name: str  # that of the model, or MODEL/ROLE
    model_name: str  # that clients use
    model: str
    rule: AutoscaleRule
    version: str = ""
    role: str = Role.BOTH
    ranks: int = 1
    strategy: str = "PACK"
    device: str = "auto"
    cpus: float = 1.0
    gpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)
    surge: int = 1
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def bundle(self) -> dict[str, float]:
        """What each rank reserves on its node."""
        wanted = {"CPU": self.cpus, "GPU": self.gpus, **self.resources}
        return {name: amount for name, amount in wanted.items() if amount} or {"CPU": 0.001}


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A name that clients use: the groups of its replicas, and its queue at the gateway."""

    name: str
    groups: tuple[GroupSpec, ...]
    wait_seconds: float = 300.0
    max_waiting: int = 1000


@dataclass(frozen=True, slots=True)
class GatewaySpec:
    """The gateway of a cluster."""

    host: str = "127.0.0.1"
    port: int = 9000
    api_keys: str = ""
    node: str = ""  # IP address of its node; empty: the head
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_local(self) -> bool:
        """Can it be reached from its own machine alone?"""
        return self.host.startswith(LOOPBACK)


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """All that a cluster file declares."""

    name: str
    models: Mapping[str, ModelSpec]
    gateway: GatewaySpec = field(default_factory=GatewaySpec)
    orphan_seconds: float = 300.0

    @property
    def groups(self) -> dict[str, GroupSpec]:
        """The groups of all models, by name."""
        return {group.name: group for model in self.models.values() for group in model.groups}


def read_cluster(path: Path) -> ClusterSpec:
    """Read a cluster file. Raises BadCluster, which names the line."""
    return build_cluster(read_yaml(path, BadCluster), path.stem, path.parent)


def parse_cluster(text: str, file: str, folder: Path) -> ClusterSpec:
    """Read the text of a cluster file that was in this folder."""
    return build_cluster(parse_yaml(text, file, BadCluster), Path(file).stem, folder)


def build_cluster(root: YamlNode, name: str, folder: Path) -> ClusterSpec:
    """The parsed file, checked. Paths in it are relative to `folder`."""
    parts = root.entries(OF_CLUSTER)
    if "models" not in parts:
        raise root.error("the file has no models.")
    models = {key: _model(key, node, folder) for key, node in parts["models"].entries().items()}
    if not models:
        raise parts["models"].error("there is no model.")
    gateway = _gateway(parts["gateway"], folder) if "gateway" in parts else GatewaySpec()
    orphan_seconds = parts["orphan_seconds"].number(1) if "orphan_seconds" in parts else 300.0
    name = parts["name"].text() if "name" in parts else name
    if not name.replace("-", "").replace("_", "").isalnum():
        raise parts.get("name", root).error(f"the name {name!r} may have letters, digits, - and _ alone.")
    return ClusterSpec(name, models, gateway, orphan_seconds)


def _model(name: str, node: YamlNode, folder: Path) -> ModelSpec:
    parts = node.entries(OF_MODEL)
    if not NAME.fullmatch(name):
        raise node.error(f"the name {name!r} may have letters, digits and . : - _ alone.")
    if "model" not in parts:
        raise node.error(f"{name} has no model.")
    return ModelSpec(
        name,
        _GroupReader(name, _model_path(parts["model"].text(), folder), parts).groups(node),
        wait_seconds=parts["wait_seconds"].number(0) if "wait_seconds" in parts else 300.0,
        max_waiting=_whole(parts, "max_waiting", 0, 1000),
    )


@dataclass(frozen=True, slots=True)
class _GroupReader:
    """Reads the groups of one model."""

    name: str
    model: str
    parts: Mapping[str, YamlNode]  # of the model

    def groups(self, node: YamlNode) -> tuple[GroupSpec, ...]:
        """One group, or one for each of the model's `roles`."""
        if "roles" not in self.parts:
            role = _one_of(self.parts, "role", ROLES, Role.BOTH)
            if role == Role.PREFILL:
                raise self._unanswered(self.parts["role"])
            return (self._group(node, self.name, role, {}),)
        for key in OF_ONE_GROUP:
            if key in self.parts:
                raise self.parts[key].error(f"{self.name} has roles: {key} belongs to each of them.")
        found = self.parts["roles"].entries(ROLES)
        if set(found) <= {Role.PREFILL}:
            raise self._unanswered(self.parts["roles"])
        return tuple(self._of_role(role, each) for role, each in found.items())

    def _unanswered(self, node: YamlNode) -> BadRoutes:
        return node.error(
            f"{self.name} has nothing that answers: prefill replicas compute prompts for others. "
            "Give it `roles` with decode or both."
        )

    def _of_role(self, role: str, node: YamlNode) -> GroupSpec:
        if "model" in (own := node.entries()):
            raise own["model"].error(f"the roles of {self.name} have one model: {self.model}.")
        return self._group(node, f"{self.name}/{role}", role, node.entries(OF_GROUP))

    def _group(self, node: YamlNode, name: str, role: str, own: Mapping[str, YamlNode]) -> GroupSpec:
        """A group with what the model declares, and with its own keys in place of that."""
        parts = {**self.parts, **own}
        if ("replicas" in parts) == ("autoscale" in parts):
            raise node.error(f"{name} needs either replicas or autoscale.")
        ranks = _whole(parts, "ranks", 1, 1)
        if ranks > MAX_RANKS:
            raise parts["ranks"].error(f"an engine of {ranks} ranks is not built yet: use {MAX_RANKS}.")
        resources = parts["resources"].entries() if "resources" in parts else {}
        group = GroupSpec(
            name,
            self.name,
            self.model,
            _rule(parts),
            role=str(role),
            ranks=ranks,
            strategy=_one_of(parts, "strategy", STRATEGIES, "PACK"),
            device=parts["device"].text() if "device" in parts else "auto",
            cpus=parts["cpus"].number(0) if "cpus" in parts else 1.0,
            gpus=parts["gpus"].number(0) if "gpus" in parts else 0.0,
            resources={key: each.number(0) for key, each in resources.items()},
            surge=_whole(parts, "surge", 1, 1),
            settings=_settings((self.parts.get("settings"), own.get("settings")), REPLICA_SECTIONS),
        )
        return replace(group, version=parts["version"].text() if "version" in parts else _digest(group))


def _rule(parts: Mapping[str, YamlNode]) -> AutoscaleRule:
    if "replicas" in parts:
        fixed = _whole(parts, "replicas", 0, 1)
        return AutoscaleRule(fixed, fixed)
    node = parts["autoscale"]
    known = {each.name: each for each in fields(AutoscaleRule)}
    found = node.entries(known)
    values: dict[str, Any] = {name: each.number(0) for name, each in found.items()}
    for name in ("min", "max"):
        if name not in values:
            raise node.error(f"autoscale needs {name}.")
        values[name] = _whole(found, name, 0, 0)
    if values["max"] < max(values["min"], 1):
        raise node.error(f"max is {values['max']}; it must be at least 1 and at least min.")
    for name in ("queue_seconds", "tokens"):
        if values.get(name, 1.0) <= 0:
            raise found[name].error(f"{name} must be more than 0.")
    return AutoscaleRule(**values)


def _gateway(node: YamlNode, folder: Path) -> GatewaySpec:
    parts = node.entries(OF_CLUSTER_GATEWAY)
    spec = GatewaySpec(
        parts["host"].text() if "host" in parts else "127.0.0.1",
        _whole(parts, "port", 1, 9000),
        str(folder / Path(parts["api_keys"].text()).expanduser()) if "api_keys" in parts else "",
        parts["node"].text() if "node" in parts else "",
        _settings((parts.get("settings"),), GATEWAY_SECTIONS),
    )
    if not spec.is_local and not spec.api_keys:
        raise node.error(f"the gateway listens at {spec.host}, which others can reach: it needs api_keys.")
    return spec


def _settings(nodes: Iterable[YamlNode | None], sections: Collection[str]) -> dict[str, str]:
    """The settings of config.py in these mappings, a later one before an earlier one, checked together as flags are."""
    known = [each.name for each in settings() if each.section in sections and each.name not in OWN_SETTINGS]
    found = {name: each for node in nodes if node is not None for name, each in node.entries(known).items()}
    values = {name: each.text() for name, each in found.items()}
    try:
        load(values, {})
    except BadSetting as error:
        raise found.get(error.field or "", next(iter(found.values()))).error(error.public) from None
    return values


def _model_path(text: str, folder: Path) -> str:
    """A relative path, which begins with a dot, is relative to the file."""
    return str((folder / text).resolve()) if text.startswith(("./", "../")) else text


def _digest(group: GroupSpec) -> str:
    """A version of its own for all that needs another process."""
    facts = [group.model, group.role, group.ranks, group.device, group.cpus, group.gpus, sorted(group.settings.items())]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:8]


def _whole(parts: Mapping[str, YamlNode], name: str, low: int, default: int) -> int:
    if name not in parts:
        return default
    value = parts[name].number(low)
    if value != int(value):
        raise parts[name].error(f"{value:g} is not a whole number.")
    return int(value)


def _one_of(parts: Mapping[str, YamlNode], name: str, choices: Collection[str], default: str) -> str:
    value = parts[name].text() if name in parts else default
    if value not in choices:
        raise parts[name].error(f"there is no {name} {value!r}: choose from {', '.join(choices)}.")
    return value
