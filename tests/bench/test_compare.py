"""Engines beside each other: started or found, measured with the same prompts, told in words, files and a page."""

from __future__ import annotations

import asyncio
import csv
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from quire.bench.compare import Engine, compare, parse_engine
from quire.bench.compare_page import compare_page
from quire.bench.drive import Closed
from quire.bench.measure import run
from quire.bench.outcome import Outcome, as_json, as_markdown, write
from quire.bench.over_http import Target
from quire.bench.stand_in import stand_in
from quire.bench.started import StartFailed, command_and_url, started
from quire.bench.terminal import told
from quire.bench.verdict import conclusion
from quire.bench.winners import answer_line, winners
from quire.types.errors import InvalidRequest
from tests.bench.silent import Silent, a_plan
from tests.bench.wicked import DONE, Wicked, said, serving, usage, whole

pytestmark = pytest.mark.e2e

TARGET = Target("")


def command(first: float, gap: float) -> str:
    return f"{sys.executable} -m quire.bench.stand_in {first} {gap} --port {{port}}"


@pytest.fixture(scope="module")
def outcome(tmp_path_factory) -> Outcome:
    """A fast one that runs already, and a slow one that is started."""
    plan = a_plan([Closed(1), Closed(2)], num_requests=6, output="6", num_warm=1)
    with stand_in(0.01, 0.01) as url:
        engines = [parse_engine(f"fast={url}"), parse_engine(f"slow={command(0.1, 0.04)}")]
        return run(compare(engines, plan, TARGET, tmp_path_factory.mktemp("logs"), Silent()))


def test_each_engine_has_every_load(outcome):
    assert [result.name for result in outcome.results] == ["fast", "slow"]
    for _, _, points in outcome.groups():
        assert [point.summary.num_good for point in points.values()] == [6, 6]
    fast, slow = outcome.results
    assert fast.start_seconds is None and slow.start_seconds is not None
    assert slow.points[0].summary.around.memory_bytes > 1_000_000
    assert fast.points[0].summary.around.memory_bytes is None


def test_the_conclusion_names_who_is_faster(outcome):
    said = " ".join(conclusion(outcome))
    assert "unique, 2 clients: fast makes the most output" in said
    assert "fast brings the first token soonest" in said
    assert re.search(r"first token of an answer: slow \d", said)


def test_a_comparison_begins_with_one_line_and_the_winners(outcome):
    line, blank, heads, *rows = told(outcome).partition("core.\n\n")[2].splitlines()
    assert re.fullmatch(r"fast is best in [34] of 4 measures, slow in 0(; in 1 they are alike)?[.]", line), line
    assert blank == "" and heads.split() == ["best", "next", "times"]
    assert re.fullmatch(r"unique, 2 clients: output +fast +[\d.]+ tok/s +slow +[\d.]+ tok/s +[\d.]+×", rows[0]), rows[0]
    page = compare_page(outcome, "quire bench compare")
    assert page.index(line) < page.index("unique, 2 clients: output") < page.index("makes the most output")


def test_of_one_engine_alone_there_is_no_winner(outcome):
    alone = replace(outcome, results=outcome.results[:1])
    assert winners(alone) == [] and answer_line(alone) == ""
    assert "measures" not in told(alone)


def test_files_have_every_figure(outcome, tmp_path):
    names = {path.name for path in write(outcome, tmp_path)}
    assert names == {"results.json", "results.csv", "requests.csv", "results.md"}
    found = json.loads((tmp_path / "results.json").read_text())
    assert [engine["name"] for engine in found["engines"]] == ["fast", "slow"]
    point = found["engines"][1]["points"][1]
    assert point["load"] == {"kind": "closed", "clients": 2} and point["figures"]["completed"] == 6
    with (tmp_path / "requests.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 24
    with (tmp_path / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["load"] for row in rows} == {"1 client", "2 clients"} and float(rows[0]["p50_ttft_ms"]) > 0
    assert "| slow / fast |" in as_markdown(outcome)
    assert found == json.loads(json.dumps(as_json(outcome)))


def test_the_page_has_curves_distributions_a_table_and_words(outcome):
    page = compare_page(outcome, "quire bench compare …")
    assert page.count('<svg viewBox="0 0 480 300"') == 6
    assert "fast makes the most output" in page and "slow / fast" in page
    assert "quire bench compare …" in page


def test_a_terminal_is_told_all_of_it(outcome):
    text = told(outcome)
    assert "slow / fast" in text and "The generator was late by up to" in text
    alone = told(replace(outcome, results=outcome.results[:1]))
    assert re.search(r"2 clients, ms +mean +p50 +p90 +p95 +p99 +max", alone)


def test_every_engine_gets_the_same_prompts(tmp_path):
    answer = whole(said("one"), said("two"), usage(8, 4), DONE)

    async def work() -> list[list[str]]:
        ones = [Wicked([[answer]]), Wicked([[answer]])]
        async with serving(ones[0]) as first, serving(ones[1]) as second:
            engines = [Engine("a", first, model="m"), Engine("b", second, model="m")]
            await compare(engines, a_plan([Closed(2)], workloads=("unique", "chat")), TARGET, tmp_path, Silent())
        return [sorted(json.dumps(body["messages"]) for body in wicked.bodies) for wicked in ones]

    first, second = asyncio.run(work())
    assert first == second
    assert len(set(first)) == len(first)  # and none twice: warm-ups have prompts of their own


def test_engines_that_count_prompts_differently_are_doubted(tmp_path):
    async def work() -> Outcome:
        answers = [[[whole(said("one"), said("two"), usage(count, 2), DONE)]] for count in (8, 12)]
        async with serving(Wicked(answers[0])) as first, serving(Wicked(answers[1])) as second:
            engines = [Engine("a", first, model="m"), Engine("b", second, model="m")]
            return await compare(engines, a_plan(output="2"), TARGET, tmp_path, Silent())

    assert "counted differently (a 32, b 48 tokens)" in " ".join(conclusion(asyncio.run(work())))


def test_one_that_fails_is_told_and_the_others_are_measured(tmp_path):
    view = Silent()
    with stand_in() as url:
        engines = [Engine("gone", "http://127.0.0.1:1"), Engine("here", url)]
        outcome = run(compare(engines, a_plan(), TARGET, tmp_path, view))
    assert [result.name for result in outcome.results] == ["here"]
    assert any(text.startswith("gone: ") for text in view.said)


def test_a_command_that_ends_is_told_with_its_last_words(tmp_path):
    line = f"{sys.executable} -c 'print(\"no such model\")' --port {{port}}"
    with pytest.raises(StartFailed, match="no such model"):
        run(_start(line, tmp_path))
    with pytest.raises(StartFailed, match="cannot be started"):
        run(_start("/no/such/program --port {port}", tmp_path))


def test_a_port_that_is_taken_is_noticed(tmp_path):
    with stand_in() as url:
        port = url.rpartition(":")[2]
        with pytest.raises(StartFailed, match="listens at"):
            run(_start(f"{sys.executable} -m quire.bench.stand_in 0 0 --port {port}", tmp_path))


async def _start(line: str, folder: Path) -> None:
    async with started(line, TARGET, folder / "log"):
        pass


@pytest.mark.parametrize(
    "line, url",
    [
        ("quire serve smollm2:135m", "http://127.0.0.1:8000"),
        ("/opt/bin/llama-server -m x.gguf", "http://127.0.0.1:8080"),
        ("python -m x --port 9000", "http://127.0.0.1:9000"),
        ("python -m x --port=9001", "http://127.0.0.1:9001"),
    ],
)
def test_where_a_command_will_listen(line, url):
    assert command_and_url(line)[1] == url


def test_a_free_port_is_put_into_a_command():
    words, url = command_and_url("serve --port {port} 'a b'")
    assert words == ["serve", "--port", url.rpartition(":")[2], "a b"]
    assert command_and_url("serve on {port}", "http://127.0.0.1:77") == (["serve", "on", "77"], "http://127.0.0.1:77")
    with pytest.raises(InvalidRequest, match="Where will"):
        command_and_url("something")


@pytest.mark.parametrize("text", ["http://x", "name=", "=http://x", "a name=http://x"])
def test_what_is_no_engine_is_refused(text):
    with pytest.raises(InvalidRequest, match="NAME=URL"):
        parse_engine(text)


def test_an_engine_may_have_a_model_of_its_own():
    assert parse_engine("a=http://x:1/v1#big") == Engine("a", "http://x:1/v1", model="big")
    assert parse_engine("a=serve --x=y").command == "serve --x=y"
