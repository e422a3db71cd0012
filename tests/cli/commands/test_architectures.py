"""`quire architectures`: the table is true of the graphs that the toys draw, and README shows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quire.cli.commands.architectures import (
    ATTENTION_KEYS,
    STATE_WORDS,
    attention_kinds,
    checked_with,
    expert_kinds,
)
from quire.models.registry import Architecture, all_architectures
from tests.architecture.sources import ROOT
from tests.models import encoders
from tests.models.sources import KINDS
from tests.models.toys import CASES, ORIGINALS, make_toy

pytestmark = pytest.mark.device

IN_GGUF_ALONE = {"GraniteMoeForCausalLM": {"shared"}}  # its GGUF name is that of GraniteMoeShared too
RECURRENT = {"delta_rule": "delta rule", "state_scan": "scan"}  # ops; a convolution of its own is a kind of layer too
BEGIN, END = "<!-- the table of `quire architectures` -->", "<!-- end of the table -->"


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    from typer.testing import CliRunner

    from quire.cli.app import make_typer_app

    done = CliRunner().invoke(make_typer_app(["architectures"]), ["architectures", "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.output)["architectures"]


def test_every_architecture_is_listed_and_has_a_case(listed):
    assert [each["name"] for each in listed] == [arch.name for arch in all_architectures()]
    kinds = [case.kind for case in (*CASES.values(), *encoders.CASES.values())] + [kind for kind, _ in KINDS.values()]
    classes = {checked_with(kind) for kind in kinds}
    assert [each["checked_with"] for each in listed if each["checked_with"] not in classes] == []


def test_the_table_has_a_line_for_each(quire):
    lines = quire("architectures").stdout.splitlines()
    assert lines[0].split()[0] == "NAME" and len(lines) == 1 + len(all_architectures())


def drawn_kinds(case: str) -> set[str]:
    """The kinds of attention, and of layers with a state, that the graph of a toy has."""
    graph = make_toy(case).draw().graph
    ops = {node.op.name for node in graph.nodes}
    states = {kind for op, kind in RECURRENT.items() if op in ops}
    states = states or ({"convolution"} if "short_conv" in ops else set())
    nodes = [node for node in graph.nodes if node.op.name.startswith("attention")]
    kinds = {"sliding" if getattr(graph.caches[node.cache], "window", None) else "full" for node in nodes}
    kinds |= {"shared" for node in nodes if node.op.name == "attention_shared"}
    kinds |= {"chunked" for node in nodes if getattr(graph.caches[node.cache], "chunk", None)}
    kinds |= {"latent" for node in nodes if node.op.name == "attention_latent"}
    kinds |= {"ALiBi" for node in nodes if node.weights.get("slopes")}
    kinds |= {"sinks" for node in nodes if node.weights.get("sinks")}
    return kinds | states | {"softcap" for node in nodes if node.attrs.get("softcap")}


@pytest.mark.parametrize("arch", ORIGINALS, ids=lambda arch: arch.name)
def test_the_kinds_of_attention_are_those_that_its_toys_draw(arch: Architecture):
    drawn = {kind for name, case in CASES.items() if case.kind == arch.name for kind in drawn_kinds(name)}
    assert drawn == set(attention_kinds(arch)), "a key of ATTENTION_KEYS is missing, or a case in tests/models/cases"


def drawn_experts(case: str) -> set[str]:
    """The kinds of experts that the graph of a toy has."""
    graph = make_toy(case).draw().graph
    routed = {"routed" for node in graph.nodes if node.op.name == "experts"}
    return routed | {"shared" for name in graph.weight_names() if name.endswith("shared.up")}


@pytest.mark.parametrize("arch", ORIGINALS, ids=lambda arch: arch.name)
def test_the_kinds_of_experts_are_those_that_its_toys_draw(arch: Architecture):
    drawn = {kind for name, case in CASES.items() if case.kind == arch.name for kind in drawn_experts(name)}
    assert drawn | IN_GGUF_ALONE.get(arch.name, set()) == set(expert_kinds(arch))


def test_every_kind_of_attention_occurs():
    kinds = {kind for arch in all_architectures() for kind in attention_kinds(arch)}
    assert kinds == {"full", "both sides", "cross", "sinks", *ATTENTION_KEYS.values(), *STATE_WORDS.values()}


def test_the_readme_shows_the_table(listed):
    lines = ["| architecture | in GGUF files | attention | experts |", "|---|---|---|---|"]
    for each in listed:
        gguf = f"`{each['gguf']}`" if each["gguf"] else ""
        kinds = f"{', '.join(each['attention'])} | {', '.join(each['experts'])}"
        lines.append(f"| `{each['name']}` | {gguf} | {kinds} |")
    table = "\n".join(lines)
    readme = Path(ROOT / "README.md").read_text(encoding="utf-8")
    shown = readme.partition(BEGIN)[2].partition(END)[0].strip()
    assert shown == table, f"README.md is to have between its two comments:\n{table}"
