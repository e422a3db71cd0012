"""Environments of peers: reused once they are made, and a package that cannot be installed is reported."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from quire.bench.engines import peer_environment
from quire.bench.engines.openvino import PACKAGE
from quire.bench.engines.peer import PeerUnavailable
from quire.bench.engines.peer_environment import PeerEnvironment, get_environment

pytestmark = pytest.mark.pure


def test_an_installed_package_is_reused(tmp_path):
    python = PeerEnvironment(tmp_path / "peers" / f"{PACKAGE.name}-{PACKAGE.version}").python
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    messages: list[str] = []
    assert get_environment(replace(PACKAGE, probe="pass"), tmp_path, messages.append).python == python
    assert messages == []


def test_the_reason_is_given_if_it_cannot_be_installed(tmp_path, monkeypatch):
    tool = tmp_path / "python"
    tool.write_text(
        "#!/bin/sh\necho '  Downloading a/openvino-1-x.whl (59 MB)'\necho 'ERROR: No matching one'\nexit 1\n"
    )
    tool.chmod(0o755)
    monkeypatch.setattr(peer_environment.sys, "executable", str(tool))
    messages: list[str] = []
    with pytest.raises(PeerUnavailable, match=r"could not be installed \(No matching one\)"):
        get_environment(PACKAGE, tmp_path / "home", messages.append)
    assert messages[0].startswith(f"installing {PACKAGE.name}") and messages[1] == "downloading openvino (59 MB)"
