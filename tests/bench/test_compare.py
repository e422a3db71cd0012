"""Engines are measured with the same prompts, and reported as sentences, files and a page."""

from __future__ import annotations

import asyncio
import csv
import json
import re
import sys
from dataclasses import replace

import pytest

from quire.bench.compare import measure_engines
from quire.bench.engines.fixed_delay_server import fixed_delay_server
from quire.bench.engines.http_client import HttpTarget
from quire.bench.engines.under_test import EngineUnderTest, parse_engine
from quire.bench.figures.conclusion import conclude
from quire.bench.figures.result_files import results_json, results_markdown, write_results
from quire.bench.figures.results import BenchmarkResults
from quire.bench.figures.winners import metric_winners, winner_sentence
from quire.bench.load.event_loop import run_async
from quire.bench.load.patterns import ClosedLoop, RecordedTimes, StopAfter
from quire.bench.page.comparison_page import comparison_page
from quire.bench.page.terminal import results_text
from quire.types.errors import InvalidRequest
from tests.bench.engines.scripted_server import DONE, ScriptedServer, response, serving, text_event, usage
from tests.bench.load.small_plans import RecordingView, small_plan

pytestmark = pytest.mark.e2e

TARGET = HttpTarget("")


def command(first: float, gap: float) -> str:
    return f"{sys.executable} -m quire.bench.engines.fixed_delay_server {first} {gap} --port {{port}}"


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> BenchmarkResults:
    """Results of a fast engine that is already running and a slow one that is started."""
    plan = small_plan([ClosedLoop(1), ClosedLoop(2)], num_requests=6, output="6", num_warm_up=1)
    with fixed_delay_server(0.01, 0.01) as url:
        engines = [parse_engine(f"fast={url}"), parse_engine(f"slow={command(0.1, 0.04)}")]
        return run_async(measure_engines(engines, plan, TARGET, tmp_path_factory.mktemp("logs"), RecordingView()))


def test_each_engine_has_every_load(results):
    assert [engine.name for engine in results.engines] == ["fast", "slow"]
    for _, _, points in results.groups():
        assert [point.summary.num_succeeded for point in points.values()] == [6, 6]
    fast, slow = results.engines
    assert fast.start_seconds is None and slow.start_seconds is not None
    assert slow.points[0].summary.conditions.memory_bytes > 1_000_000
    assert fast.points[0].summary.conditions.memory_bytes is None


def test_the_conclusion_names_the_faster_engine(results):
    sentences = " ".join(conclude(results))
    assert "unique, 2 clients: fast makes the most output" in sentences
    assert "fast brings the first token soonest" in sentences
    assert re.search(r"first token of an answer: slow \d", sentences)


def test_a_comparison_begins_with_one_sentence_and_the_winners(results):
    line, blank, heads, *rows = results_text(results).partition("core.\n\n")[2].splitlines()
    assert re.fullmatch(r"fast is best in [34] of 4 measures, slow in 0(; in 1 they are alike)?[.]", line), line
    assert blank == "" and heads.split() == ["best", "next", "times"]
    assert re.fullmatch(r"unique, 2 clients: output +fast +[\d.]+ tok/s +slow +[\d.]+ tok/s +[\d.]+×", rows[0]), rows[0]
    page = comparison_page(results, "quire bench compare")
    assert page.index(line) < page.index("unique, 2 clients: output") < page.index("makes the most output")


def test_a_single_engine_has_no_winner(results):
    alone = replace(results, engines=results.engines[:1])
    assert metric_winners(alone) == [] and winner_sentence(alone) == ""
    assert "measures" not in results_text(alone)


def test_files_have_every_figure(results, tmp_path):
    names = {path.name for path in write_results(results, tmp_path)}
    assert names == {"results.json", "results.csv", "requests.csv", "results.md"}
    written = json.loads((tmp_path / "results.json").read_text())
    assert [engine["name"] for engine in written["engines"]] == ["fast", "slow"]
    point = written["engines"][1]["points"][1]
    assert point["load"] == {"kind": "closed", "clients": 2} and point["figures"]["completed"] == 6
    with (tmp_path / "requests.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 24
    with (tmp_path / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["load"] for row in rows} == {"1 client", "2 clients"} and float(rows[0]["p50_ttft_ms"]) > 0
    assert "| slow / fast |" in results_markdown(results)
    assert written == json.loads(json.dumps(results_json(results)))


def test_the_page_has_curves_distributions_tables_and_sentences(results):
    page = comparison_page(results, "quire bench compare …")
    assert page.count('<svg viewBox="0 0 480 300"') == 6
    assert "fast makes the most output" in page and "slow / fast" in page
    assert "quire bench compare …" in page


def test_the_page_of_a_trace_names_no_number_of_requests(results):
    replay = replace(results.plan, stop=StopAfter(), loads=(RecordedTimes(),))
    points = tuple(replace(point, load=RecordedTimes()) for point in results.engines[0].points[:1])
    page = comparison_page(replace(results, plan=replay, engines=(replace(results.engines[0], points=points),)), "")
    assert "Each load ran for the whole trace" in page


def test_the_terminal_output_is_complete(results):
    text = results_text(results)
    assert "slow / fast" in text and "The generator was late by up to" in text
    alone = results_text(replace(results, engines=results.engines[:1]))
    assert re.search(r"2 clients, ms +mean +p50 +p90 +p95 +p99 +max", alone)


def test_every_engine_gets_the_same_prompts(tmp_path):
    answer = response(text_event("one"), text_event("two"), usage(8, 4), DONE)

    async def work() -> list[list[str]]:
        ones = [ScriptedServer([[answer]]), ScriptedServer([[answer]])]
        async with serving(ones[0]) as first, serving(ones[1]) as second:
            engines = [EngineUnderTest("a", first, model="m"), EngineUnderTest("b", second, model="m")]
            await measure_engines(
                engines, small_plan([ClosedLoop(2)], workloads=("unique", "chat")), TARGET, tmp_path, RecordingView()
            )
        return [sorted(json.dumps(body["messages"]) for body in script.bodies) for script in ones]

    first, second = asyncio.run(work())
    assert first == second
    assert len(set(first)) == len(first)  # warm-ups have other prompts


def test_different_prompt_counts_are_reported(tmp_path):
    async def work() -> BenchmarkResults:
        answers = [[[response(text_event("one"), text_event("two"), usage(count, 2), DONE)]] for count in (8, 12)]
        async with serving(ScriptedServer(answers[0])) as first, serving(ScriptedServer(answers[1])) as second:
            engines = [EngineUnderTest("a", first, model="m"), EngineUnderTest("b", second, model="m")]
            return await measure_engines(engines, small_plan(output="2"), TARGET, tmp_path, RecordingView())

    assert "counted differently (a 32, b 48 tokens)" in " ".join(conclude(asyncio.run(work())))


def test_an_engine_that_fails_is_reported_and_the_others_are_measured(tmp_path):
    view = RecordingView()
    with fixed_delay_server() as url:
        engines = [EngineUnderTest("gone", "http://127.0.0.1:1"), EngineUnderTest("here", url)]
        results = run_async(measure_engines(engines, small_plan(), TARGET, tmp_path, view))
    assert [engine.name for engine in results.engines] == ["here"]
    assert any(text.startswith("gone: ") for text in view.messages)


@pytest.mark.parametrize("text", ["http://x", "name=", "=http://x", "a name=http://x"])
def test_an_invalid_engine_is_refused(text):
    with pytest.raises(InvalidRequest, match="NAME=URL"):
        parse_engine(text)


def test_an_engine_may_name_its_model():
    assert parse_engine("a=http://x:1/v1#big") == EngineUnderTest("a", "http://x:1/v1", model="big")
    assert parse_engine("a=serve --x=y").command == "serve --x=y"
