"""docs/API.md tells of what there is: methods, commands, and of HTTP every endpoint, field, error, key and metric.

The section of a dialect has its name in the heading: "## OpenAI (`openai`)". A field is named by its path in the body,
or by the end of that: `keep.ttl`, or `ttl`. What stands in the first column of a table of fields must be one.
"""

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

import msgspec
import pytest

import quire.serve
from quire.cli.app import build_command
from quire.config import settings
from quire.engine.llm import LLM
from quire.gateway.server.own import GATEWAY_ROUTES
from quire.observe import metrics
from quire.serve.access.keys import ApiKey
from quire.serve.admin.routes import OWN_ROUTES, method_of
from quire.serve.dialects.body import schema_of
from quire.serve.http.app import all_dialects
from quire.types import chat, request
from quire.types.errors import QuireError
from tests.architecture.sources import ROOT

pytestmark = pytest.mark.pure

PAGE = (ROOT / "docs" / "API.md").read_text(encoding="utf-8")
CODE = re.compile(r"`([^`\n]+)`")
DIALECTS = {dialect.name: dialect for dialect in all_dialects()}
SHARED = {"openai": ("openai", "responses"), "responses": ("responses", "openai")}  # many fields are those of both
OVER_HTTP = ("types", "text", "grammar", "engine", "serve", "store")  # packages whose errors a client may be told
GRAMMAR = import_module("quire.grammar.grammar")  # only an engine imports it
import_module("quire.gateway.library")  # who changes the models of a server


def sections() -> Iterator[tuple[str, str]]:
    """Of each dialect, its section."""
    for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        heading, _, text = part.partition("\n")
        if named := re.search(r"\(`(\w+)`\)$", heading):
            yield named[1], text


SECTIONS = dict(sections())


def text_of(name: str) -> str:
    return "\n".join(SECTIONS[each] for each in SHARED.get(name, (name,)))


def rows(text: str, first: str) -> list[list[str]]:
    """The cells of all tables whose first column has this heading."""
    found: list[list[str]] = []
    for table in re.findall(rf"^\| {first} \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE):
        found += [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()]
    return found


def properties(schema: Any, at: str = "") -> Iterator[str]:
    """The path of every name in a JSON schema."""
    if isinstance(schema, list):
        for each in schema:
            yield from properties(each, at)
    elif isinstance(schema, dict):
        for key, part in schema.items():
            if key != "properties":
                yield from properties(part, at)
                continue
            for name, inner in part.items():
                yield at + name
                yield from properties(inner, f"{at}{name}.")


def bodies(name: str) -> list[Any]:
    """The schemas of all bodies that a dialect takes."""
    if name == "native":
        return [schema_of(route.shape) for route in OWN_ROUTES if route.shape is not None]
    return list(DIALECTS[name].schemas.values())


def shapes() -> list[type[msgspec.Struct]]:
    """Every declared part of a body, those that are read out of a plain object later included."""
    modules = [import_module(each.name) for each in walk_packages(quire.serve.__path__, "quire.serve.")]
    found = {kind for module in modules for kind in vars(module).values() if isinstance(kind, type)}
    structs = [kind for kind in found if issubclass(kind, msgspec.Struct)]
    between = "quire.serve.processes."  # what processes of a server say to each other
    own = [each for each in structs if each.__module__.startswith("quire.serve.") and between not in each.__module__]
    return sorted(own, key=lambda kind: (kind.__module__, kind.__name__))


def owner(module: str) -> str:
    return next((name for name in DIALECTS if name in module), "native")


def is_named(path: str, told: set[str]) -> bool:
    return any(path == name or path.endswith(f".{name}") for name in told)


def names_in(text: str) -> set[str]:
    """All that is written as code; of a path also what it goes through."""
    told = [code.split(".") for code in CODE.findall(text)]
    return {".".join(parts[:count]) for parts in told for count in range(1, len(parts) + 1)}


def test_every_sampling_parameter_is_listed_with_its_default():
    section = PAGE.split("### SamplingParams")[1].split("## ")[0]
    listed = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section, re.MULTILINE))
    defaults = {each.name: str(getattr(request.SamplingParams(), each.name)) for each in fields(request.SamplingParams)}
    assert listed == defaults


def test_every_method_is_listed_with_the_parameters_that_it_has():
    listed = dict(re.findall(r"^\| `(\w+)\(([^`]*)\)`", PAGE, re.MULTILINE))
    assert {"generate", "chat", "stream", "close"} <= set(listed)
    for name, said in listed.items():
        parameters = [each for each in inspect.signature(getattr(LLM, name)).parameters if each != "self"]
        assert re.findall(r"(\w+)(?:=\w+)?(?:,|$)", said) == parameters


def test_every_command_is_listed():
    files = (ROOT / "src/quire/cli/commands").glob("*.py")
    commands = {path.stem for path in files if f"def {path.stem}(" in path.read_text()}
    assert commands and all(f"`quire {name} " in PAGE or f"`quire {name}`" in PAGE for name in commands)


def test_every_dialect_has_its_section():
    assert set(SECTIONS) == {*DIALECTS, "native"}


def test_every_endpoint_is_in_its_dialects_section_and_in_the_table_of_all():
    own = [("native", route.method, route.path) for route in OWN_ROUTES]
    spoken = [(name, method_of(each), each.path) for name, dialect in DIALECTS.items() for each in dialect.endpoints]
    table = PAGE.split("\n## HTTP\n")[1].split("\n## ")[0]
    for name, method, path in (*own, *spoken):
        assert f"`{method} {path}`" in SECTIONS[name], (name, path)
        assert f"`{method} {path}`" in table, path
    told = set(re.findall(r"`((?:GET|POST|HEAD|DELETE) [^`]+)`", PAGE))
    gateway = {f"{route.method} {route.path}" for route in GATEWAY_ROUTES}
    assert told == gateway | {f"{method} {path}" for _, method, path in (*own, *spoken)}
    section = PAGE.split("\n## A gateway\n")[1].split("\n## ")[0]
    assert gateway == set(re.findall(r"`((?:GET|POST) [^`]+)`", section))


@pytest.mark.parametrize("name", SECTIONS)
def test_every_field_of_every_body_is_named(name):
    told = names_in(text_of(name))
    paths = {path for schema in bodies(name) for path in properties(schema)}
    assert paths and sorted(path for path in paths if not is_named(path, told)) == []


@pytest.mark.parametrize("shape", shapes(), ids=lambda shape: f"{shape.__module__}.{shape.__name__}")
def test_every_part_of_a_body_has_its_fields_named(shape):
    told = {part for name in names_in(text_of(owner(shape.__module__))) for part in name.split(".")}
    assert set(shape.__struct_encode_fields__) - told == set()


@pytest.mark.parametrize("name", SECTIONS)
def test_the_tables_have_no_field_that_there_is_not(name):
    paths = {path for schema in bodies(name) for path in properties(schema)}
    listed = [said for row in rows(SECTIONS[name], "field") for said in CODE.findall(row[0])]
    assert listed and [said for said in listed if not any(is_named(path, {said}) for path in paths)] == []


def test_what_a_field_becomes_is_a_word_of_ours():
    kinds = {kind.__name__: kind for kind in (*vars(chat).values(), *vars(request).values()) if isinstance(kind, type)}
    told = re.findall(r"`([A-Z]\w+)\.(\w+)`", "".join(SECTIONS.values()))
    assert ("SamplingParams", "max_tokens") in told and ("Terms", "session") in told
    assert [f"{kind}.{name}" for kind, name in told if name not in {each.name for each in fields(kinds[kind])}] == []


@pytest.mark.parametrize("heading, kind", [("`Terms`", chat.Terms), ("key", ApiKey)])
def test_every_term_and_every_property_of_a_key_is_listed(heading, kind):
    listed = [name for row in rows(PAGE, heading) for name in CODE.findall(row[0])]
    assert sorted(listed) == sorted(each.name for each in fields(kind))


def errors(kind: type[QuireError] = QuireError) -> Iterator[type[QuireError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from errors(each)


def test_every_error_is_listed_with_its_status():
    listed = {(int(row[0]), code) for row in rows(PAGE, "status") for code in CODE.findall(row[1])}
    told = [each for each in errors() if tuple(each.__module__.split(".")[:2]) in {("quire", p) for p in OVER_HTTP}]
    assert GRAMMAR.GrammarUnavailable in told
    assert listed == {(each.status, each.code) for each in told}


def test_every_metric_is_listed_with_its_alias():
    listed = [(row[0], row[1], row[2].strip("| ")) for row in rows(PAGE, "metric")]
    assert listed == [
        (
            f"`{each.name}`",
            f"{each.kind} by `{each.label}`" if each.label else each.kind,
            f"`{each.alias}`" if each.alias else "",
        )
        for each in metrics.ALL
    ]


def test_every_flag_that_is_named_exists():
    told = {flag for code in CODE.findall(PAGE) for flag in re.findall(r"(?:^| )(--[a-z][a-z-]*)", code)}
    group = build_command([])
    commands = [group, *group.commands.values()]
    declared = {flag for command in commands for each in command.params for flag in each.opts}
    assert len(told) > 10 and told - {each.flag for each in settings()} - declared == {"--help"}
