"""The controller, an actor: compares what runs with what should run, twice a second, and starts, drains and removes.

Its state is on the disk of the head node. A controller that is restarted finds its actors by name; after the loss of
the head it makes them again, and they adopt the servers that still run.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from quire.cluster import ray_api
from quire.cluster.autoscale import Autoscaler, FleetLoad, ScaleDecision
from quire.cluster.errors import ClusterError, UnreadableState
from quire.cluster.gateway_client import GatewayClient, GatewayView
from quire.cluster.group_load import group_load
from quire.cluster.host import HostReport
from quire.cluster.orders import GATEWAY_ID, GatewayOrder, ReplicaOrder, gateway_url
from quire.cluster.plan import (
    DRAINING,
    READY,
    STARTING,
    STOPPED,
    DrainReplica,
    RemoveReplica,
    ReplicaView,
    StartReplica,
    Target,
    plan_actions,
)
from quire.cluster.spec import ClusterSpec, GroupSpec
from quire.cluster.state import ClusterState, ReplicaRecord, carried_counts, load_state, new_state, save_state
from quire.types.transfer import Role

logger = logging.getLogger(__name__)

STEP_SECONDS = 0.5
REPORT_SECONDS = 2.0
PIN_SECONDS = 60.0  # that a replica waits for the node that it was on
LOST_SECONDS = 60.0  # without an answer of its actor, after which a replica that drains is given up


class ClusterController:
    """Used by its own thread and by calls of `quire cluster`: all of them take the lock."""

    def __init__(self, name: str, folder: str) -> None:
        self._ray = ray_api.load_ray()
        self._name = name
        self._folder = Path(folder)
        self._lock = threading.Lock()
        self._node = ray_api.node_address(self._ray)
        self._state, self._unreadable = readable_state(self._folder)  # its message, if it cannot be read
        self._spec: ClusterSpec | None = None if self._state is None else self._state.spec
        self._reports: dict[str, HostReport] = {}
        self._gateway_view = GatewayView()
        self._scalers: dict[str, Autoscaler] = {}
        self._decisions: dict[str, ScaleDecision] = {}
        self._answered_at: dict[str, float] = {}  # replica -> when its actor answered last
        self._calls: dict[str, Any] = {}  # calls of `report` that have not ended
        self._is_ending = False
        self._error = ""
        threading.Thread(target=self._run, daemon=True).start()

    # ── what `quire cluster` calls ──

    def apply(self, text: str, file: str, folder: str) -> str:
        """Make a cluster file the one in force: the first one, or a rollout. Returns what is wrong with it, or ""."""
        with self._lock:
            if self._unreadable:
                return self._unreadable
            state = self._state or new_state(text, file, folder)
            new = replace(state, text=text, file=file, folder=folder)
            spec = new.spec
            if self._spec is not None and spec.gateway != self._spec.gateway:
                return "The gateway section has changed: that needs `quire cluster down` and `up`."
            new.scales = {group: count for group, count in state.scales.items() if group in spec.groups}
            new.counts = carried_counts(state.counts, self._spec or spec, spec)
            self._state, self._spec = new, spec
            self._scalers = {
                name: self._scalers[name]
                for name, each in spec.groups.items()
                if name in self._scalers and self._scalers[name].rule == each.rule
            }
            self._is_ending, self._decisions = False, {}
            self._save()
        return ""

    def scale(self, group: str, count: int | None) -> str:
        """Set a fixed number of replicas, whatever the file says; None: the file decides again. Returns an error."""
        with self._lock:
            state, spec = self._required()
            if group in spec.models and group not in spec.groups:
                names = ", ".join(each.name for each in spec.models[group].groups)
                return f"{group} has groups of replicas with different roles: name one of {names}."
            if group not in spec.groups:
                return f"There is no model {group!r}: there are {', '.join(spec.groups)}."
            if count is None:
                state.scales.pop(group, None)
            else:
                state.scales[group] = count
            self._decisions.pop(group, None)  # until the next step
            self._save()
        return ""

    def end(self) -> None:
        """Drain everything. `status` says when it is done."""
        with self._lock:
            self._is_ending = True

    def status(self) -> dict[str, Any]:
        """All that is known, as JSON values."""
        with self._lock:
            state, spec = self._required()
            return {
                "name": self._name,
                "gateway": self._reports_of(GATEWAY_ID) | {"url": self._gateway_url(state, spec)},
                "groups": {name: self._describe_group(each, state) for name, each in spec.groups.items()},
                "replicas": [self._describe(each) for each in state.replicas.values()],
                "nodes": ray_api.alive_nodes(self._ray),
                "error": self._error,
                "is_ending": self._is_ending,
                "is_decided": all(name in self._decisions for name in spec.groups),
            }

    # ── the loop ──

    def _run(self) -> None:
        while True:
            try:
                if self._state is not None:
                    self._step()
                self._error = ""
            except Exception as error:  # of Ray, or of the disk: the next step tries again
                logger.exception("the controller's step failed")
                self._error = f"{type(error).__name__}: {error}"
            time.sleep(STEP_SECONDS)

    def _step(self) -> None:
        state, spec = self._required()
        reports = self._read_reports(state)
        view = self._client(state, spec).read() if self._reports_of(GATEWAY_ID)["state"] == READY else GatewayView()
        with self._lock:
            state, spec = self._required()  # a call may have changed it
            self._reports, self._gateway_view = reports, view
            self._ensure_gateway(state, spec)
            self._ensure_replicas(state, spec)
            targets = {} if self._is_ending else self._targets(state, spec)
            for action in plan_actions(targets, [self._view(each) for each in state.replicas.values()]):
                match action:
                    case StartReplica(group):
                        self._start(state, spec.groups[group])
                    case DrainReplica(id):
                        self._drain(state, spec, id)
                    case RemoveReplica(id):
                        self._remove(state, id)
            self._save()

    def _read_reports(self, state: ClusterState) -> dict[str, HostReport]:
        """The reports of all actors. One that does not answer keeps its old one, and is not ready."""
        asked = {id: ray_api.find_actor(self._ray, self._actor(id)) for id in (GATEWAY_ID, *state.replicas)}
        # One call at a time: those to an actor that waits for a node would pile up.
        calls = {id: self._calls.get(id) or actor.report.remote() for id, actor in asked.items() if actor is not None}
        self._calls = dict(calls)
        done: list[Any] = []
        if calls:
            done, _ = self._ray.wait(list(calls.values()), num_returns=len(calls), timeout=REPORT_SECONDS)
        found = {}
        for id in asked:
            old = self._reports.get(id, HostReport())
            try:
                if id not in calls or calls[id] not in done:
                    raise TimeoutError("it waits for a node with room" if not old.node else "no answer")
                del self._calls[id]
                found[id] = HostReport(**self._ray.get(calls[id]))
                self._answered_at[id] = time.monotonic()
            except Exception as error:  # Ray has many kinds of these
                reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
                found[id] = replace(old, state=STARTING, error=f"the actor does not answer: {reason}"[:300])
        return found

    def _ensure_gateway(self, state: ClusterState, spec: ClusterSpec) -> None:
        """Make the gateway's actor if Ray does not have it: at the start, and after the loss of the head."""
        state.gateway_node = self._reports[GATEWAY_ID].node or state.gateway_node
        gateway = ray_api.find_actor(self._ray, self._actor(GATEWAY_ID))
        if self._is_ending:
            if gateway is not None and not state.replicas:
                gateway.stop.remote()
            return
        if gateway is None:
            order = GatewayOrder(self._name, spec.gateway, dict(spec.models), state.keys, spec.orphan_seconds)
            ray_api.start_gateway(self._ray, self._actor(GATEWAY_ID), order, self._folder)
        elif self._reports[GATEWAY_ID].state == READY:
            gateway.write_models.remote(dict(spec.models))  # the file may have others than at the actor's start

    def _ensure_replicas(self, state: ClusterState, spec: ClusterSpec) -> None:
        """Make the actors that Ray does not have, and tell those that drain to do so."""
        nodes, now = ray_api.alive_nodes(self._ray), time.monotonic()
        for record in state.replicas.values() if state.gateway_node else ():
            record.node = self._reports.get(record.id, HostReport()).node or record.node
            actor = ray_api.find_actor(self._ray, self._actor(record.id))
            answered_at = self._answered_at.setdefault(record.id, now)
            if actor is None:
                self._place(state, spec, record, is_pinned=record.node in nodes)
            elif record.is_pinned and now - answered_at > PIN_SECONDS:
                self._place(state, spec, record, is_pinned=False)
            elif record.is_draining and now - answered_at < REPORT_SECONDS:
                actor.stop.remote()

    def _place(self, state: ClusterState, spec: ClusterSpec, record: ReplicaRecord, is_pinned: bool) -> None:
        name = self._actor(record.id)
        ray_api.remove_replica(self._ray, name, record.spec.ranks)
        order = ReplicaOrder(record.id, record.spec, spec.gateway, state.gateway_node, state.keys, spec.orphan_seconds)
        ray_api.start_replica(self._ray, name, order, self._folder, record.node if is_pinned else "")
        self._calls.pop(record.id, None)
        record.is_pinned = is_pinned
        self._answered_at[record.id] = time.monotonic()

    # ── decisions ──

    def _targets(self, state: ClusterState, spec: ClusterSpec) -> dict[str, Target]:
        targets = {}
        for name, group in spec.groups.items():
            scaler = self._scalers.setdefault(name, Autoscaler(group.rule))
            current = state.counts.get(name, max(group.rule.min, 0))
            decision = self._decisions.get(name, ScaleDecision(current))
            if self._gateway_view.is_known or group.rule.min == group.rule.max:
                decision = scaler.decide(self._load(group, state), current, time.monotonic())
            if name in state.scales:
                decision = ScaleDecision(state.scales[name], "set by `quire cluster scale`")
            if decision.count != current or name not in self._decisions:
                logger.info("%s: %d replicas (%s)", name, decision.count, decision.reason)
                self._decisions[name] = decision
            state.counts[name] = decision.count
            answers = group.role != Role.PREFILL
            targets[name] = Target(group.model_name, group.version, decision.count, group.surge, answers)
        return targets

    def _load(self, group: GroupSpec, state: ClusterState) -> FleetLoad:
        members = [id for id, record in state.replicas.items() if record.spec.name == group.name]
        urls = {self._reports[id].url for id in members if id in self._reports}
        loads = self._gateway_view.loads(group.model_name)
        own = [load for url, load in loads.items() if url in urls]
        others = [load for url, load in loads.items() if url not in urls]
        return group_load(own, others, *self._gateway_view.waiting.get(group.model_name, (0, 0.0)))

    def _view(self, record: ReplicaRecord) -> ReplicaView:
        report = self._reports.get(record.id, HostReport())
        is_lost = not record.node or time.monotonic() - self._answered_at.get(record.id, 0.0) > LOST_SECONDS
        state = report.state
        if record.is_draining and state != STOPPED:
            state = STOPPED if is_lost else DRAINING
        return ReplicaView(
            record.id,
            record.spec.model_name,
            record.spec.name,
            record.spec.version,
            state,
            self._gateway_view.num_requests(report.url),
            record.started_at,
            answers=record.spec.role != Role.PREFILL,
        )

    # ── actions ──

    def _start(self, state: ClusterState, group: GroupSpec) -> None:
        id = f"{group.name.replace(':', '-').replace('/', '-')}-{secrets.token_hex(3)}"
        record = ReplicaRecord(id, group, time.time())
        state.replicas[id] = record  # placed with the next step, when the gateway's node is known

    def _drain(self, state: ClusterState, spec: ClusterSpec, id: str) -> None:
        record, report = state.replicas[id], self._reports.get(id, HostReport())
        record.is_draining = True
        if report.url:
            self._client(state, spec).drain(
                report.url
            )  # the next step ends the server: it gets nothing that it refuses

    def _remove(self, state: ClusterState, id: str) -> None:
        ray_api.remove_replica(self._ray, self._actor(id), state.replicas[id].spec.ranks)
        del state.replicas[id]
        self._answered_at.pop(id, None)

    # ── words ──

    def _describe_group(self, group: GroupSpec, state: ClusterState) -> dict[str, Any]:
        decision, load = self._decisions.get(group.name, ScaleDecision(0)), self._load(group, state)
        return {
            "model": group.model_name,
            "role": group.role,
            "version": group.version,
            "target": decision.count,
            "reason": decision.reason,
            "limits": [group.rule.min, group.rule.max],
            "ready": sum(
                self._reports.get(each.id, HostReport()).state == READY
                for each in state.replicas.values()
                if each.spec.name == group.name and each.spec.version == group.version
            ),
            "waiting": load.num_waiting,
            "requests": load.num_requests,
            "tokens": load.tokens,
            "queue_seconds": round(load.queue_seconds, 3),
        }

    def _describe(self, record: ReplicaRecord) -> dict[str, Any]:
        spec, report = record.spec, self._reports_of(record.id)
        facts = {"id": record.id, "model": spec.model_name, "group": spec.name, "role": spec.role}
        facts |= {"version": spec.version}
        load = self._gateway_view.load_of(report["url"], spec.model_name)
        is_joined = self._gateway_view.is_ready(report["url"])
        return {**facts, **report, "state": self._view(record).state, "is_joined": is_joined, **load}

    def _reports_of(self, id: str) -> dict[str, Any]:
        report = self._reports.get(id, HostReport())
        names = ("state", "node", "url", "pid", "num_starts", "num_adopted", "error")
        return {name: getattr(report, name) for name in names}

    def _gateway_url(self, state: ClusterState, spec: ClusterSpec) -> str:
        return gateway_url(spec.gateway, state.gateway_node, self._node)

    def _client(self, state: ClusterState, spec: ClusterSpec) -> GatewayClient:
        return GatewayClient(self._gateway_url(state, spec), state.keys.join if spec.gateway.api_keys else "")

    def _actor(self, id: str) -> str:
        return actor_name(self._name, id)

    def _required(self) -> tuple[ClusterState, ClusterSpec]:
        if self._unreadable:
            raise ClusterError(self._unreadable)
        if self._state is None or self._spec is None:
            raise ClusterError(f"The cluster {self._name} has no file yet: run `quire cluster up FILE`.")
        return self._state, self._spec

    def _save(self) -> None:
        assert self._state is not None
        save_state(self._state, self._folder)


def readable_state(folder: Path) -> tuple[ClusterState | None, str]:
    """The state, or why it cannot be read. An actor that failed to start could not say so."""
    try:
        return load_state(folder), ""
    except UnreadableState as error:
        return None, error.public


def actor_name(cluster: str, id: str) -> str:
    """The name of an actor in Ray."""
    return f"{cluster}/{id}"
