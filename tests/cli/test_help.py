"""Help pages: groups, environment variables, examples that parse, and no flag that a command does not use."""

from __future__ import annotations

import re
import shlex
from typing import get_type_hints

import pytest

from quire.cli.app import COMMANDS, built
from quire.config import Config, settings

pytestmark = pytest.mark.pure

SECTIONS = get_type_hints(Config)
OWN = {
    "ps": {"--url", "--json", "--host", "--port", "--api-key"},
    "stop": {"--url", "--home", "--host", "--port", "--api-key"},
    "doctor": {"--network", "--json", "--home", "--memory-share", "--host", "--port", "--api-key"},
    "list": {"--all", "--json", "--home"},
    "show": {"--modelfile", "--template", "--system", "--parameters", "--license", "--json", "--home"},
    "rm": {"--home"},
    "cp": {"--home"},
    "pull": {"--home", "--registry"},
    "key": set(),
}


@pytest.mark.parametrize("command", OWN)
def test_a_command_shows_the_flags_that_it_uses_and_no_others(command):
    (made,) = built([command]).commands.values()
    declared = {flag for each in made.params for flag in (*each.opts, *each.secondary_opts) if flag.startswith("--")}
    assert declared == OWN[command]


def test_settings_stand_in_a_group_for_each_section_with_their_variables(quire):
    page = quire("serve", "--help").stdout
    boxes = re.findall(r"╭─ (.+?) ─", page)
    assert sorted(boxes) == sorted(["Arguments", "Options", *(kind.__doc__[:-1] for kind in SECTIONS.values())])
    for each in settings():
        assert each.flag in page and f"[{each.variable}]" in page, each.name


def test_arguments_have_their_help(quire):
    assert "path of a GGUF file or a folder" in " ".join(quire("run", "--help").stdout.split())


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "bench"])
def test_examples_parse(command):
    group = built([command])
    (made,) = group.commands.values()
    for line in made.callback.shown.examples:
        assert line in made.epilog
        words = [word for word in shlex.split(line.partition(" < ")[0]) if "=" not in word or "=smollm" in word]
        assert words[:2] == ["quire", command]
        with made.make_context(command, words[2:]) as context:
            assert context.params is not None


@pytest.mark.parametrize("command", ["run", "serve", "advise", "create", "pull"])
def test_commands_with_much_to_choose_have_examples(quire, command):
    assert "Examples:" in quire(command, "--help").stdout
