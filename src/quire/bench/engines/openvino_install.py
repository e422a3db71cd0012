"""Install OpenVINO GenAI, a peer that our figures are compared with, into a virtual environment of its own.

The environment is kept below QUIRE_HOME/peers and reused by the next benchmark. Nothing is installed into ours.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from quire.bench.engines.peer import PeerUnavailable, Say

PACKAGE, VERSION = "openvino-genai", "2026.4.1.0"
PROBE = "import openvino, openvino_genai"
PROBE_SECONDS = 120
DOWNLOAD = re.compile(r"\s*Downloading (?:\S*/)?(?P<package>[A-Za-z0-9_]+)-\S+ \((?P<size>[^)]*)\)")  # pip's


@dataclass(frozen=True, slots=True)
class OpenVinoInstall:
    """A virtual environment with OpenVINO GenAI."""

    folder: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def log(self) -> Path:
        """Where its messages are written."""
        return self.folder / "engine.log"


def get_openvino(home: Path, say: Say) -> OpenVinoInstall:
    """Return the environment, made now if it was not made before."""
    install = OpenVinoInstall(home / "peers" / f"{PACKAGE}-{VERSION}")
    if _runs(install):
        return install
    say(f"installing {PACKAGE} {VERSION} into {install.folder}: 300 MB on disk, once")
    shutil.rmtree(install.folder, ignore_errors=True)
    try:
        _run([sys.executable, "-m", "venv", str(install.folder)], say)
        pip = (str(install.python), "-m", "pip", "--disable-pip-version-check", "--no-input")
        _run([*pip, "install", "--only-binary=:all:", "--progress-bar=off", f"{PACKAGE}=={VERSION}"], say)
    except OSError as error:
        raise PeerUnavailable(f"{PACKAGE} could not be installed: {error}") from error
    if not _runs(install):
        raise PeerUnavailable(f"{PACKAGE} was installed but does not run: try {install.python} -c '{PROBE}'.")
    return install


def _runs(install: OpenVinoInstall) -> bool:
    """Return whether it can be imported here: the home folder may have been copied from another machine."""
    probe = [str(install.python), "-I", "-c", PROBE]
    try:
        return subprocess.run(probe, capture_output=True, timeout=PROBE_SECONDS, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _run(command: list[str], say: Say) -> None:
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
        raise PeerUnavailable(f"{PACKAGE} {VERSION} could not be installed ({reason}).")
