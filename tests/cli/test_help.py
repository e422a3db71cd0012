"""Help pages: groups, environment variables, examples that parse, and no unused flags."""

from __future__ import annotations

import re
import shlex
from typing import get_type_hints

import pytest

from quire.cli.app import COMMANDS, build_command
from quire.config import Config, settings

pytestmark = pytest.mark.pure

SECTIONS = get_type_hints(Config)
FLAGS = {
    "ps": {"--url", "--json", "--host", "--port", "--api-key"},
    "stop": {"--url", "--home", "--host", "--port", "--api-key"},
    "doctor": {"--network", "--json", "--home", "--memory-share", "--host", "--port", "--api-key"},
    "list": {"--all", "--json", "--home"},
    "show": {"--modelfile", "--template", "--system", "--parameters", "--license", "--json", "--home"},
    "rm": {"--home"},
    "cp": {"--home"},
    "pull": {"--home", "--registry"},
    "key": set(),
    "architectures": {"--json"},
}


@pytest.mark.parametrize("command", FLAGS)
def test_a_command_has_exactly_the_flags_that_it_uses(command):
    (parsed,) = build_command([command]).commands.values()
    declared = {flag for each in parsed.params for flag in (*each.opts, *each.secondary_opts) if flag.startswith("--")}
    assert declared == FLAGS[command]


def test_settings_are_grouped_by_section_with_their_variables(quire):
    page, of_gateway = quire("serve", "--help").stdout, quire("gateway", "--help").stdout
    boxes = re.findall(r"╭─ (.+?) ─", page)
    of_server = [kind.__doc__[:-1] for name, kind in SECTIONS.items() if name != "gateway"]
    assert sorted(boxes) == sorted(["Arguments", "Options", *of_server])
    for each in settings():
        shown = of_gateway if each.section == "gateway" else page
        assert each.flag in shown and f"[{each.variable}]" in shown, each.name


def test_arguments_have_help(quire):
    assert "path of a GGUF file or a folder" in " ".join(quire("run", "--help").stdout.split())


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ("bench", "cluster")])
def test_examples_parse(command):
    group = build_command([command])
    (parsed,) = group.commands.values()
    for line in parsed.callback.help_page.examples:
        assert line in parsed.epilog
        words = [word for word in shlex.split(line.partition(" < ")[0]) if "=" not in word or "=smollm" in word]
        assert words[:2] == ["quire", command]
        with parsed.make_context(command, words[2:]) as context:
            assert context.params is not None


@pytest.mark.parametrize("command", ["run", "serve", "advise", "create", "pull"])
def test_commands_with_many_options_have_examples(quire, command):
    assert "Examples:" in quire(command, "--help").stdout
