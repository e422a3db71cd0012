"""`quire cluster`: models × replicas on a Ray cluster, behind one gateway. Ray is imported when a command runs."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

from quire.cli.options import CommandSettings, HelpPage, argument, command, option
from quire.cli.terminal.table import print_table
from quire.types.errors import InvalidRequest

FOLDER = "clusters"  # in the home folder
WAIT_SECONDS = 600.0
COLUMNS = ("replica", "version", "role", "state", "node", "running", "queued", "tokens", "starts", "last error")

cluster = typer.Typer(
    help="Run models on a Ray cluster behind one gateway: up, status, scale, rollout, down.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@dataclass(frozen=True, slots=True)
class ClusterUpOptions:
    """Options of `quire cluster up`."""

    file: str = argument("", "The cluster file (YAML): models, replicas, devices, the gateway. See docs/CLUSTER.md.")
    address: str = option("", "Address of a Ray cluster, as of `ray start`. Default: a new one on this machine.")
    wait: float = option(WAIT_SECONDS, "Seconds to wait until all replicas are ready; 0: do not wait.")


@dataclass(frozen=True, slots=True)
class ClusterRolloutOptions:
    """Options of `quire cluster rollout`."""

    file: str = argument("", "The changed cluster file.")
    name: str = option("", "Name of the cluster. Default: the only one.")
    wait: float = option(WAIT_SECONDS, "Seconds to wait until the new replicas are ready and the old ones have ended.")


@dataclass(frozen=True, slots=True)
class ClusterScaleOptions:
    """Options of `quire cluster scale`."""

    group: str = argument("", "A model of the cluster file; one with roles: MODEL/ROLE, such as chat/prefill.")
    count: str = argument("", "How many replicas it has from now on; auto: the file decides again.")
    name: str = option("", "Name of the cluster. Default: the only one.")
    wait: float = option(WAIT_SECONDS, "Seconds to wait until they are ready; 0: do not wait.")


@dataclass(frozen=True, slots=True)
class ClusterStatusOptions:
    """Options of `quire cluster status`."""

    name: str = option("", "Name of the cluster. Default: the only one.")
    json: bool = option(False, "Print one JSON object.", "--json")


@dataclass(frozen=True, slots=True)
class ClusterDownOptions:
    """Options of `quire cluster down`."""

    name: str = option("", "Name of the cluster. Default: the only one.")
    wait: float = option(WAIT_SECONDS, "Seconds that requests in progress may take.")


@command(ClusterUpOptions, "store", help_page=HelpPage(("quire cluster up cluster.yaml",)))
def cluster_up(options: ClusterUpOptions, settings: CommandSettings) -> None:
    """Start a cluster, or apply the file to it. After the loss of Ray's head: start it again, where it was."""
    session_module = import_module("quire.cluster.session")
    path = _file(options.file)
    spec = import_module("quire.cluster.spec").read_cluster(path)
    session = session_module.ClusterSession(settings.home / FOLDER, spec.name)
    session.up(spec, path, options.address)
    _wait(session, session_module.is_up, options.wait)
    typer.echo(f"The cluster {spec.name} is up: {session.status()['gateway']['url']}")


@command(ClusterRolloutOptions, "store", help_page=HelpPage(("quire cluster rollout cluster.yaml",)))
def cluster_rollout(options: ClusterRolloutOptions, settings: CommandSettings) -> None:
    """Apply a changed file: new versions start beside the old ones, which drain when the new ones are ready."""
    path = _file(options.file)
    spec = import_module("quire.cluster.spec").read_cluster(path)
    session, session_module = _session(settings, options.name or spec.name)
    session.rollout(path)
    _wait(session, session_module.is_up, options.wait)
    typer.echo(f"The cluster {spec.name} has the versions of {path.name}.")


@command(
    ClusterScaleOptions,
    "store",
    help_page=HelpPage(("quire cluster scale smollm2 3", "quire cluster scale chat/prefill 2")),
)
def cluster_scale(options: ClusterScaleOptions, settings: CommandSettings) -> None:
    """Set the number of replicas of a model, or of one of its roles."""
    if options.count != "auto" and not options.count.isdecimal():
        raise InvalidRequest(f"{options.count!r} is neither a number of replicas nor auto.", field="count")
    session, session_module = _session(settings, options.name)
    session.scale(options.group, None if options.count == "auto" else int(options.count))
    _wait(session, session_module.is_up, options.wait)
    typer.echo(f"{options.group} has {session.status()['groups'][options.group]['ready']} replicas.")


@command(ClusterStatusOptions, "store", help_page=HelpPage(("quire cluster status",)))
def cluster_status(options: ClusterStatusOptions, settings: CommandSettings) -> None:
    """Print replicas, nodes, roles, loads, versions and last errors."""
    status = _session(settings, options.name)[0].status()
    if options.json:
        typer.echo(json.dumps(status, indent=1))
        return
    gateway = status["gateway"]
    typer.echo(f"{status['name']}: gateway {gateway['url']} is {gateway['state']} on {gateway['node']}")
    for error in (gateway["error"], status["error"]):
        if error:
            typer.echo(f"  {error}")
    for name, group in status["groups"].items():
        typer.echo(f"{name}: {_described(group)}")
    print_table([COLUMNS, *(_row(each) for each in status["replicas"])])


@command(ClusterDownOptions, "store", help_page=HelpPage(("quire cluster down",)))
def cluster_down(options: ClusterDownOptions, settings: CommandSettings) -> None:
    """Drain all replicas and end the cluster, and the Ray that `up` has started."""
    session, _ = _session(settings, options.name)
    session.down(options.wait, _show(sys.stderr.isatty()))
    typer.echo("The cluster is down.")


def _file(text: str) -> Path:
    if not text:
        raise InvalidRequest("Give the cluster file.", field="file")
    return Path(text).expanduser()


def _session(settings: CommandSettings, name: str) -> tuple[Any, Any]:
    module = import_module("quire.cluster.session")
    folder = settings.home / FOLDER
    return module.ClusterSession(folder, module.choose_cluster(folder, name)), module


def _wait(session: Any, is_done: Any, seconds: float) -> None:
    if not seconds or session.wait(is_done, seconds, _show(sys.stderr.isatty())):
        return
    status = session.status()
    servers = [{**status["gateway"], "id": "the gateway"}, *status["replicas"]]
    states = ", ".join(f"{each['id']} is {each['state']} {each['error']}".strip() for each in servers)
    raise InvalidRequest(f"Not all servers are ready after {seconds:g} s: {states}.", field="wait")


def _show(is_visible: bool) -> Any:
    def show(status: dict[str, Any]) -> None:
        if is_visible:
            states = " ".join(f"{each['id']}:{each['state']}" for each in status["replicas"])
            print(f"\r\x1b[Kgateway:{status['gateway']['state']} {states}", end="", file=sys.stderr, flush=True)

    return show


def _described(group: dict[str, Any]) -> str:
    least, most = group["limits"]
    limits = f"{least}" if least == most else f"{least} to {most}"
    reason = f" ({group['reason']})" if group["reason"] else ""
    load = f"{group['waiting']} waiting, {group['requests']} at replicas, {group['queue_seconds']:.1f} s of queue"
    counts = f"{group['ready']} of {group['target']} ready, by the file {limits}{reason}"
    return f"role {group['role']}, {counts}; {load}"


def _row(each: dict[str, Any]) -> list[str]:
    names = ("id", "version", "role", "state", "node", "running", "queued", "tokens", "num_starts", "error")
    return [str(each[name]) for name in names]


for _name, _body in (
    *(("up", cluster_up), ("status", cluster_status), ("scale", cluster_scale)),
    *(("rollout", cluster_rollout), ("down", cluster_down)),
):
    cluster.command(_name)(_body)
