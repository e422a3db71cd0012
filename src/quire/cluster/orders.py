"""Which server an actor runs: a replica or the gateway, as the command line for the node that the actor is on. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from quire.cluster.errors import ClusterError
from quire.cluster.guarded import PORT, ServerCommand
from quire.cluster.spec import GatewaySpec, GroupSpec, ModelSpec

GATEWAY_ID = "gateway"
LOCAL = "127.0.0.1"
DRAIN_SECONDS = 30.0  # the default of the setting
EVERYWHERE = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class ClusterKeys:
    """Secrets of a cluster. Servers get them by their environment: command lines are for all users of a machine."""

    join: str = field(repr=False)  # an admin's key of the gateway: replicas register with it
    replica: str = field(repr=False)  # an admin's key of every replica: the gateway calls with it
    transfer: str = field(repr=False)  # shared by all replicas: they exchange KV blocks


@dataclass(frozen=True, slots=True)
class GatewayOrder:
    """The gateway of a cluster."""

    cluster: str
    spec: GatewaySpec
    models: Mapping[str, ModelSpec]  # for which requests wait
    keys: ClusterKeys
    orphan_seconds: float

    @property
    def id(self) -> str:
        """Its name in the run folder."""
        return GATEWAY_ID

    @property
    def ready_path(self) -> str:
        """Answered with 200 while it can work. /ready needs an upstream."""
        return "/health"

    def command(self, node: str, folder: Path) -> ServerCommand:
        """The command on this node."""
        spec = self.spec
        arguments = ["gateway", "--host", spec.host, "--port", PORT, "--fleet", str(fleet_path(folder))]
        if spec.api_keys:
            arguments += ["--api-keys", spec.api_keys]
        secrets = {"QUIRE_API_KEY": self.keys.join} if spec.api_keys else {}
        return ServerCommand(
            (*arguments, *_flags(spec.settings)),
            spec.port,
            spec.host,
            secrets,
            float(spec.settings.get("drain_seconds", DRAIN_SECONDS)),
            self.orphan_seconds,
        )


@dataclass(frozen=True, slots=True)
class ReplicaOrder:
    """One replica of a group."""

    id: str
    spec: GroupSpec
    gateway: GatewaySpec
    gateway_node: str  # IP address
    keys: ClusterKeys
    orphan_seconds: float

    @property
    def ready_path(self) -> str:
        """Answered with 200 while it can work."""
        return "/ready"

    def command(self, node: str, folder: Path) -> ServerCommand:
        """The command on this node. Raises ClusterError if the gateway cannot be reached from there."""
        spec = self.spec
        if node != self.gateway_node and self.gateway.is_local:
            raise ClusterError(
                f"This replica is on the node {node}, but the gateway on {self.gateway_node} listens at "
                f"{self.gateway.host} alone. Set gateway.host and gateway.api_keys in the cluster file."
            )
        host = LOCAL if self.gateway.is_local else node  # of its API, and where others fetch KV blocks
        arguments = ["serve", f"{spec.model_name}={spec.model}", "--only", "--device", spec.device, "--host", host]
        arguments += ["--port", PORT, "--join", gateway_url(self.gateway, self.gateway_node, node)]
        arguments += ["--role", spec.role, "--transfer-host", host]
        secrets = {"QUIRE_TRANSFER_SECRET": self.keys.transfer}
        if self.gateway.api_keys:
            secrets["QUIRE_JOIN_KEY"] = self.keys.join
        if not self.gateway.is_local:
            secrets |= {"QUIRE_API_KEY": self.keys.replica, "QUIRE_OFFERED_KEY": self.keys.replica}
        return ServerCommand(
            (*arguments, *_flags(spec.settings)),
            0,
            host,
            secrets,
            float(spec.settings.get("drain_seconds", DRAIN_SECONDS)),
            self.orphan_seconds,
        )


def on_devices(command: ServerCommand, gpus: Sequence[int]) -> ServerCommand:
    """The command on the GPUs that Ray has given to its actor. A server on others is not adopted."""
    if not gpus:
        return command
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))}
    return replace(command, environment={**command.environment, **visible})


def gateway_url(gateway: GatewaySpec, gateway_node: str, node: str) -> str:
    """The URL of the gateway as seen from a node."""
    if node == gateway_node:
        host = LOCAL if gateway.host in EVERYWHERE else gateway.host
    else:
        host = gateway_node if gateway.host in EVERYWHERE else gateway.host
    return f"http://{host}:{gateway.port}"


def fleet_path(folder: Path) -> Path:
    """The fleet file of the gateway."""
    return folder / "fleet.yaml"


def write_fleet(folder: Path, models: Mapping[str, ModelSpec]) -> None:
    """Write the models whose requests wait at the gateway while they have no replica. The gateway reads it again."""
    expected = {
        name: {"wait_seconds": spec.wait_seconds, "max_waiting": spec.max_waiting} for name, spec in models.items()
    }
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    text, path, part = json.dumps({"models": expected}), fleet_path(folder), folder / "fleet.part"  # JSON is YAML
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        part.write_text(text, encoding="utf-8")
        part.replace(path)


def _flags(settings: Mapping[str, str]) -> list[str]:
    return [word for name, value in settings.items() for word in ("--" + name.replace("_", "-"), value)]
