"""The compose file: every command, setting and reference in it is one that exists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from quire.cli.app import COMMANDS, build_command
from quire.config import settings

pytestmark = pytest.mark.pure

FILE = Path(__file__).parents[2] / "deploy" / "compose.yaml"
COMPOSE: dict[str, Any] = yaml.safe_load(FILE.read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
VARIABLES = {each.variable for each in settings()}


def test_there_are_a_gateway_and_two_servers_that_join_it():
    commands = [service["command"][0] for service in SERVICES.values()]
    assert sorted(commands) == ["gateway", "serve", "serve"]
    port = next(word for word in SERVICES["gateway"]["command"] if word.startswith("--port=")).split("=")[1]
    for name, service in SERVICES.items():
        if service["command"][0] == "serve":
            assert f"--join=http://gateway:{port}" in service["command"]
            assert service["environment"]["QUIRE_ADVERTISE"] == f"http://{name}:8000"
            assert service["depends_on"] == {"gateway": {"condition": "service_healthy"}}
    assert SERVICES["gateway"]["ports"] == [f"{port}:{port}"]


@pytest.mark.parametrize("name", SERVICES)
def test_its_command_and_its_variables_exist(name):
    command = SERVICES[name]["command"]
    assert command[0] in COMMANDS
    group = build_command(command)
    found = group.commands[command[0]] if isinstance(group, click.Group) else group
    flags = {flag for parameter in found.params for flag in parameter.opts}
    assert {word.split("=")[0] for word in command if word.startswith("--")} <= flags
    assert set(SERVICES[name]["environment"]) <= VARIABLES


def test_the_image_and_the_volumes_exist():
    for service in SERVICES.values():
        assert (FILE.parent / service["build"] / "Dockerfile").is_file()
        assert {volume.split(":")[0] for volume in service["volumes"]} <= COMPOSE["volumes"].keys()
