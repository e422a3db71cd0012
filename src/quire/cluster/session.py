"""One call of `quire cluster`: finds the cluster, connects to its Ray, calls its controller, waits for the result."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from quire.cluster import ray_api
from quire.cluster.controller import ClusterController, actor_name
from quire.cluster.errors import ClusterError, UnreadableState
from quire.cluster.guard import is_locked
from quire.cluster.orders import GATEWAY_ID
from quire.cluster.plan import READY, STOPPED
from quire.cluster.spec import ClusterSpec
from quire.cluster.state import STATE_FILE, load_state

CONTROLLER = "controller"
SESSION_FILE = "session.json"
CALL_SECONDS = 30.0
POLL_SECONDS = 0.3
STOP_RAY_SECONDS = 20.0

OnStatus = Callable[[dict[str, Any]], None]


def known_clusters(folder: Path) -> list[str]:
    """The names of the clusters that were started from this machine."""
    return sorted(path.parent.name for path in folder.glob(f"*/{SESSION_FILE}"))


def choose_cluster(folder: Path, name: str) -> str:
    """The name that was given, or that of the only cluster. Raises ClusterError."""
    known = known_clusters(folder)
    if name in known or (not name and len(known) == 1):
        return name or known[0]
    listed = ", ".join(known) or "none"
    what = f"There is no cluster {name!r}" if name else "Which cluster? Give --name"
    raise ClusterError(f"{what}: there are {listed}. `quire cluster up FILE` starts one.")


class ClusterSession:
    """A cluster by its name, from this process."""

    def __init__(self, folder: Path, name: str) -> None:
        self._name = name
        self._folder = folder / name
        self._ray: Any = None

    def up(self, spec: ClusterSpec, path: Path, address: str) -> None:
        """Start the cluster, or apply the file to the one that runs. After the loss of Ray's head: start it again."""
        load_state(self._folder)  # raises before anything is started
        saved = self._saved()
        address = address or saved.get("address", "")
        process = int(saved.get("process", 0))
        if process and not self._has_local_ray:
            address, process = "", 0  # the local Ray that we started is gone
        if not address:
            address, process = ray_api.start_local_ray(self._folder)
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._save({"address": address, "process": process})
        self._ray = ray_api.connect(address)
        name = actor_name(self._name, CONTROLLER)
        controller = ray_api.find_actor(self._ray, name)
        if controller is None:
            controller = ray_api.start_controller(self._ray, name, ClusterController, self._name, str(self._folder))
        self._apply(controller, path)

    def rollout(self, path: Path) -> None:
        """Apply a changed file: new versions beside the old ones, which then drain."""
        self._apply(self._controller(), path)

    def scale(self, group: str, count: int | None) -> None:
        """Set the number of a group's replicas; None: by the file."""
        self._raise(self._call(self._controller().scale, group, count))

    def status(self) -> dict[str, Any]:
        """What the controller knows."""
        found: dict[str, Any] = self._call(self._controller().status)
        return found

    def wait(self, is_done: Callable[[dict[str, Any]], bool], seconds: float, on_status: OnStatus) -> bool:
        """Ask for the status until it is as wanted. False: it did not become so."""
        deadline = time.monotonic() + seconds
        while True:
            with suppress(ClusterError):  # a controller that begins has no file yet
                status = self.status()
                on_status(status)
                if is_done(status):
                    return True
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)

    def down(self, seconds: float, on_status: OnStatus) -> None:
        """Drain all replicas, end the gateway and the controller, and the Ray that `up` has started."""
        controller = self._controller()
        self._call(controller.end)
        is_over = self.wait(lambda status: status["gateway"]["state"] == STOPPED, seconds, on_status)
        if not is_over:
            raise ClusterError(
                f"The cluster {self._name} did not end within {seconds:g} s: see `quire cluster status`."
            )
        for id in (GATEWAY_ID, CONTROLLER):
            ray_api.remove_actor(self._ray, actor_name(self._name, id))
        process = int(self._saved().get("process", 0))
        self._ray.shutdown()
        if process and self._has_local_ray:
            self._end_ray(process)
        for name in (STATE_FILE, SESSION_FILE):
            (self._folder / name).unlink(missing_ok=True)

    @property
    def _has_local_ray(self) -> bool:
        return is_locked(self._folder / ray_api.RAY_LOCK)

    def _end_ray(self, process: int) -> None:
        """End the Ray that we started, with all of its processes."""
        os.kill(process, signal.SIGTERM)
        deadline = time.monotonic() + STOP_RAY_SECONDS
        while self._has_local_ray:
            if time.monotonic() > deadline:
                os.killpg(process, signal.SIGKILL)
                return
            time.sleep(0.1)

    def _controller(self) -> Any:
        if self._ray is None:
            self._ray = ray_api.connect(str(self._saved().get("address", "")))
        found = ray_api.find_actor(self._ray, actor_name(self._name, CONTROLLER))
        if found is None:
            raise ClusterError(f"Ray runs, but not the cluster {self._name}: run `quire cluster up FILE` again.")
        return found

    def _apply(self, controller: Any, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        self._raise(self._call(controller.apply, text, path.name, str(path.parent.absolute())))

    def _call(self, method: Any, *arguments: Any) -> Any:
        try:
            return self._ray.get(method.remote(*arguments), timeout=CALL_SECONDS)
        except self._ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None) or error
            reason = getattr(cause, "public", "") or str(cause).strip().splitlines()[-1]
            raise ClusterError(f"The controller of {self._name} failed: {reason}") from None

    def _raise(self, problem: str) -> None:
        if problem:
            raise ClusterError(problem)

    def _saved(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self._folder / SESSION_FILE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise UnreadableState(self._folder / SESSION_FILE, str(error)) from None
        return found

    def _save(self, facts: dict[str, Any]) -> None:
        (self._folder / SESSION_FILE).write_text(json.dumps(facts), encoding="utf-8")


def is_up(status: dict[str, Any]) -> bool:
    """Are the gateway and all replicas ready, in the version of the file, and no others left?"""
    if status["gateway"]["state"] != READY or not status["is_decided"]:
        return False
    wanted = {(name, group["version"]): group["target"] for name, group in status["groups"].items()}
    for each in status["replicas"]:
        key = (each["group"], each["version"])
        if key not in wanted or each["state"] != READY or not each["is_joined"]:
            return False
        wanted[key] -= 1
    return not any(wanted.values())
