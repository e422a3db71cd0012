"""Virtual environments of peers, which our figures are compared with.

An environment is kept below QUIRE_HOME/peers and reused by the next benchmark. Nothing is installed into ours.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from quire.bench.engines.peer import PeerUnavailable, Say

PROBE_SECONDS = 120
DOWNLOAD = re.compile(r"\s*Downloading (?:\S*/)?(?P<package>[A-Za-z0-9_]+)-\S+ \((?P<size>[^)]*)\)")  # pip's


@dataclass(frozen=True, slots=True)
class PeerPackage:
    """A package with its release, and what an environment with it needs besides."""

    name: str
    version: str
    probe: str  # a line of Python that fails if the package does not run
    size: str  # on disk
    others: tuple[str, ...] = ()  # packages that are installed with it


@dataclass(frozen=True, slots=True)
class PeerEnvironment:
    """A virtual environment with a peer's package."""

    folder: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def log(self) -> Path:
        """Where its messages are written."""
        return self.folder / "engine.log"


def get_environment(package: PeerPackage, home: Path, say: Say) -> PeerEnvironment:
    """Return the environment, made now if it was not made before."""
    name, version = package.name, package.version
    environment = PeerEnvironment(home / "peers" / f"{name}-{version}")
    if _runs(environment, package.probe):
        return environment
    say(f"installing {name} {version} into {environment.folder}: {package.size} on disk, once")
    shutil.rmtree(environment.folder, ignore_errors=True)
    try:
        _run([sys.executable, "-m", "venv", str(environment.folder)], package, say)
        pip = (str(environment.python), "-m", "pip", "--disable-pip-version-check", "--no-input")
        install = ("install", "--only-binary=:all:", "--progress-bar=off")
        _run([*pip, *install, f"{name}=={version}", *package.others], package, say)
    except OSError as error:
        raise PeerUnavailable(f"{name} could not be installed: {error}") from error
    if not _runs(environment, package.probe):
        raise PeerUnavailable(f"{name} was installed but does not run: try {environment.python} -c '{package.probe}'.")
    return environment


def _runs(environment: PeerEnvironment, probe: str) -> bool:
    """Return whether it can be imported here: the home folder may have been copied from another machine."""
    command = [str(environment.python), "-I", "-c", probe]
    try:
        return subprocess.run(command, capture_output=True, timeout=PROBE_SECONDS, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _run(command: list[str], package: PeerPackage, say: Say) -> None:
    """Run a command, and report each package that it downloads."""
    lines = []
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.strip())
            if match := DOWNLOAD.match(line):
                say(f"downloading {match['package']} ({match['size']})")
    if process.returncode:
        errors = [line for line in lines if line.startswith("ERROR")] or [line for line in lines if line]
        reason = errors[-1].removeprefix("ERROR: ") if errors else "no message"
        raise PeerUnavailable(f"{package.name} {package.version} could not be installed ({reason}).")
