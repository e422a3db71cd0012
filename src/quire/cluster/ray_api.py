"""Ray: its import, a local cluster of this machine, and the actors of servers. No other module calls Ray."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from quire.cluster.errors import ClusterError, RayMissing
from quire.cluster.guard import lock_file
from quire.cluster.guarded import find_port
from quire.cluster.host import ServerHost
from quire.cluster.orders import GatewayOrder, ReplicaOrder
from quire.cluster.spec import GroupSpec

NAMESPACE = "quire"
HEAD = "node:__internal_head__"  # a resource that the head node has
SLIVER = 0.001  # of a resource: the actor must be on a node that has it
START_SECONDS = 60.0
CONNECT_SECONDS = 5.0
LOCAL = "127.0.0.1"
RAY_LOCK = "ray.lock"


def load_ray() -> Any:
    """Import Ray. Raises RayMissing, which names the extra."""
    try:
        return import_module("ray")
    except ModuleNotFoundError:
        raise RayMissing from None


def connect(address: str) -> Any:
    """Connect this process to a Ray cluster; return the module."""
    ray = load_ray()
    if ray.is_initialized():
        ray.shutdown()
    _check_listens(address)
    try:
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ClusterError(
            f"There is no Ray cluster at {address} ({reason}). Start one, or leave out --address."
        ) from None
    return ray


def _check_listens(address: str) -> None:
    """Raise ClusterError if no program listens there. Ray itself would try for a minute."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal():  # another form, such as "auto"
        return
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise ClusterError(f"There is no Ray cluster at {address} ({error}). Run `quire cluster up FILE`.") from None


def start_local_ray(folder: Path) -> tuple[str, int]:
    """Start Ray on this machine, in the background; return its address and the process to end."""
    load_ray()
    port = find_port(LOCAL)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", f"--port={port}"]
    command += [f"--node-ip-address={LOCAL}", "--include-dashboard=false", "--disable-usage-stats"]
    lock = lock_file(folder / RAY_LOCK)
    if lock is None:
        raise ClusterError(f"Another Ray of this cluster runs already: its lock is {folder / RAY_LOCK}.")
    with (folder / "ray.log").open("ab") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, pass_fds=(lock,)
        )
    os.close(lock)  # the process has it as long as it runs
    address = f"{LOCAL}:{port}"
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with suppress(OSError, ClusterError):
            connect(address)
            return address, process.pid
        time.sleep(0.2)
    raise ClusterError(f"Ray did not start within {START_SECONDS:g} s: see {folder / 'ray.log'}.")


def node_address(ray: Any) -> str:
    """The IP address of this process's node."""
    own = ray.get_runtime_context().get_node_id()
    return next(str(each["NodeManagerAddress"]) for each in ray.nodes() if each["NodeID"] == own)


def alive_nodes(ray: Any) -> list[str]:
    """The IP addresses of the nodes that are alive."""
    return [str(each["NodeManagerAddress"]) for each in ray.nodes() if each["Alive"]]


def find_actor(ray: Any, name: str) -> Any | None:
    """The actor of this name, or None."""
    try:
        return ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return None


def remove_actor(ray: Any, name: str) -> None:
    """End an actor for good. Its server is not part of it."""
    actor = find_actor(ray, name)
    if actor is not None:
        ray.kill(actor, no_restart=True)


class ActorHost(ServerHost):
    """A server's host as an actor: it asks Ray for its node."""

    def __init__(self, order: ReplicaOrder | GatewayOrder, folder: str) -> None:
        ray = load_ray()
        node = node_address(ray)
        super().__init__(order, str(Path(folder) / "run" / node), node, [int(each) for each in ray.get_gpu_ids()])


def start_gateway(ray: Any, name: str, order: GatewayOrder, folder: Path) -> Any:
    """Start the actor of the gateway, on its node."""
    place = f"node:{order.spec.node}" if order.spec.node else HEAD
    return _actor_class(ray, ActorHost, name, {"num_cpus": 0, "resources": {place: SLIVER}}).remote(order, str(folder))


def start_replica(ray: Any, name: str, order: ReplicaOrder, folder: Path, pinned: str = "") -> Sequence[Any]:
    """Start the actors of a replica in a placement group. `pinned`: the node that they must be on."""
    spec = order.spec
    bundle = spec.bundle | ({f"node:{pinned}": SLIVER} if pinned else {})
    group = ray.util.placement_group([bundle] * spec.ranks, spec.strategy, name=name, lifetime="detached")
    strategies = import_module("ray.util.scheduling_strategies")
    actors = []
    for rank in range(spec.ranks):
        options = _resources(spec) | {
            "scheduling_strategy": strategies.PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
        }
        actor_name = name if rank == 0 else f"{name}.{rank}"
        actors.append(_actor_class(ray, ActorHost, actor_name, options).remote(order, str(folder)))
    return actors


def remove_replica(ray: Any, name: str, ranks: int) -> None:
    """End the actors of a replica, and give back their place."""
    for rank in range(ranks):
        remove_actor(ray, name if rank == 0 else f"{name}.{rank}")
    with suppress(ValueError):
        ray.util.remove_placement_group(ray.util.get_placement_group(name))


def start_controller(ray: Any, name: str, controller: type, *arguments: Any) -> Any:
    """Start the actor of the controller, on the head node, whose disk has the state."""
    options = {"num_cpus": 0, "resources": {HEAD: SLIVER}}
    return _actor_class(ray, controller, name, options).remote(*arguments)


def _actor_class(ray: Any, body: type, name: str, options: dict[str, Any]) -> Any:
    """An actor that outlives its creator and is restarted as long as its node, or another one, is alive."""
    more = {"name": name, "namespace": NAMESPACE, "lifetime": "detached", "max_restarts": -1, "max_concurrency": 8}
    return ray.remote(body).options(**more, **options)


def _resources(spec: GroupSpec) -> dict[str, Any]:
    return {"num_cpus": spec.cpus, "num_gpus": spec.gpus, "resources": dict(spec.resources)}
