"""docs/API.md tells of what there is: every sampling parameter with its default, every method, every command."""

import re
from dataclasses import fields

import pytest

from quire.engine.llm import LLM
from quire.types.request import SamplingParams
from tests.architecture.sources import ROOT

pytestmark = pytest.mark.pure

PAGE = (ROOT / "docs" / "API.md").read_text()


def test_every_sampling_parameter_is_listed_with_its_default():
    section = PAGE.split("### SamplingParams")[1].split("## ")[0]
    listed = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section, re.MULTILINE))
    defaults = {each.name: str(getattr(SamplingParams(), each.name)) for each in fields(SamplingParams)}
    assert listed == defaults


def test_every_method_that_is_listed_exists():
    listed = re.findall(r"^\| `(\w+)\(", PAGE, re.MULTILINE)
    assert {"generate", "chat", "stream", "close"} <= set(listed)
    assert all(hasattr(LLM, name) for name in listed)


def test_every_command_is_listed():
    commands = {path.stem for path in (ROOT / "src/quire/cli").glob("*.py") if f"def {path.stem}(" in path.read_text()}
    commands -= {"main"}
    assert commands and all(f"`quire {name} " in PAGE or f"`quire {name}`" in PAGE for name in commands)
