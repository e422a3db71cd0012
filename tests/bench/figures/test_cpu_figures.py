"""From measurements to figures: which ratio has which goal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from quire.bench.accuracy.cpu_accuracy import Accuracy, Divergence
from quire.bench.engines.model_facts import ModelFacts
from quire.bench.engines.single_stream import SingleStream
from quire.bench.figures.cpu_figures import cpu_figures
from quire.bench.figures.cpu_results import CpuBenchSizes, CpuResults, FormatResult, PeerRates, StreamsResult
from quire.bench.load.stream_loads import StreamResults
from quire.bench.load.summary import Percentiles, RunConditions, summarize
from quire.devices.base import Peaks

pytestmark = pytest.mark.pure


PEAKS = Peaks(25e9, 400e9, 2, "avx2")


def format_result(name: str, prompt: float, decode: float, peer: tuple[float, float] | None) -> FormatResult:
    facts = ModelFacts(Path("m.gguf"), name, "gguf", name, 49152, (), 100_000_000, 100_000_000)
    ours = SingleStream((prompt, prompt, 1.0), (decode, decode, 1.0), (0.02, 0.02, 0.9), (PEAKS, PEAKS, PEAKS))
    return FormatResult(facts, ours, PeerRates((peer[0],), (peer[1],)) if peer else None)


def stream_results(rate: float, first_token: float) -> StreamResults:
    load = replace(
        summarize("32 clients", [], None, RunConditions()),
        output_per_second=rate,
        first_token=Percentiles(p50=1.0, p99=first_token),
        gap=Percentiles(p50=0.1, p99=0.4),
    )
    return StreamResults(unique=load, alone_seconds=(1.0, 2.0, 1.0), cold_seconds=(1.25, 2.5, 3.0), shared=load)


RESULTS = CpuResults(
    sizes=CpuBenchSizes(),
    formats=(format_result("q4_1", 1000.0, 200.0, (200.0, 100.0)), format_result("q4_0", 900.0, 210.0, (450.0, 105.0))),
    open_seconds=0.01,
    tokenizer_seconds=0.1,
    streams=StreamsResult(stream_results(200.0, 5.0), 400_000_000),
    peer_streams=StreamsResult(stream_results(40.0, 30.0), 2_000_000_000),
    start_seconds=(0.7, 0.8, 0.9),
    peer_start_seconds=(1.0,),
    accuracy=Accuracy(Divergence(0.003, 0.96), Divergence(0.004, 0.95), 2040),
)
ALONE = replace(
    RESULTS,
    formats=(replace(RESULTS.formats[0], peer=None),),
    peer_streams=None,
    peer_start_seconds=None,
    accuracy=replace(RESULTS.accuracy, peer=None),
)


def row(name: str, results: CpuResults = RESULTS):
    (figure,) = [each for each in cpu_figures(results, is_default_model=True) if each.name == name]
    return figure


@pytest.mark.parametrize(
    "name, value, peer, verdict",
    [
        ("prompt of 512 tokens, q4_1", 1000, 200, "reached"),
        ("prompt of 512 tokens, q4_0", 900, 450, "reached"),
        ("prompt of 512 tokens, q4_1 against q4_0", 1000, 450, "reached"),
        ("decode, one stream, q4_1", 200, 100, "reached"),
        ("decode, one stream, q4_0", 210, 105, ""),
        ("decode, q4_1: share of read bandwidth", 80, 40, "reached"),
        ("prompt, q4_1: share of the int8 multiply-add peak", 25, 5, ""),
        ("engine's share of a decode step, one stream", 2, None, "reached"),
        ("unique, 32 streams, output", 200, 40, "reached"),
        ("shared, 32 streams, output", 200, 40, "MISSED"),
        ("unique, 32 streams, first token p99", 5, 30, "reached"),
        ("unique, 32 streams, gap between tokens p99", 0.4, 0.4, "reached"),
        ("shared, 8 streams, cold: first token p99 / one prompt alone", 1.25, 1.25, "reached"),
        ("peak resident memory, 32 streams", 400, 2000, "reached"),
        ("second start to the first token", 0.8, 1.0, "reached"),
        ("mean KL from float32", 0.003, 0.004, "reached"),
        ("unique, 32 streams, against OpenVINO GenAI", 200, 94, "reached"),
        ("shared, 32 streams, against vLLM-CPU", 200, 158, "MISSED"),
    ],
)
def test_every_goal_has_a_figure(name, value, peer, verdict):
    figure = row(name)
    assert figure.value == pytest.approx(value) and figure.verdict == verdict
    assert figure.peer == (None if peer is None else pytest.approx(peer))


def test_without_the_peer_ratios_are_not_compared_and_the_rest_is_judged():
    verdicts = {each.name: each.verdict for each in cpu_figures(ALONE, is_default_model=True)}
    assert verdicts["prompt of 512 tokens, q4_1"] == verdicts["unique, 32 streams, output"] == "not compared"
    assert verdicts["mean KL from float32"] == "not compared"
    assert verdicts["decode, q4_1: share of read bandwidth"] == verdicts["second start to the first token"] == "reached"


@pytest.mark.parametrize("error, verdict", [(0.0, "MISSED"), (0.0001, "reached"), (0.00001, "MISSED")])
def test_accuracy_is_no_worse_if_the_difference_is_within_two_standard_errors(error, verdict):
    accuracy = Accuracy(Divergence(0.0031, 0.96), Divergence(0.0030, 0.96), 2040, error)
    assert row("mean KL from float32", replace(RESULTS, accuracy=accuracy)).verdict == verdict


def test_published_figures_are_only_of_the_default_model():
    names = {each.name for each in cpu_figures(RESULTS, is_default_model=False)}
    assert not any("OpenVINO" in name or "vLLM" in name for name in names)


def test_without_native_code_there_are_no_limits_to_compare_with():
    without = tuple(replace(each, ours=replace(each.ours, peaks=())) for each in RESULTS.formats)
    names = [each.name for each in cpu_figures(replace(RESULTS, formats=without), is_default_model=True)]
    assert names and not any("share of" in name and "engine" not in name for name in names)


def test_a_share_is_of_the_peak_measured_at_that_time():
    slower = replace(PEAKS, read_bytes=12.5e9, multiply_adds=200e9)
    ours = SingleStream((1000.0, 500.0, 500.0), (200.0, 100.0, 100.0), (0.02,) * 3, (PEAKS, slower, slower))
    results = replace(RESULTS, formats=(replace(RESULTS.formats[0], ours=ours),))
    assert row("decode, q4_1: share of read bandwidth", results).value == pytest.approx(80)
    assert row("prompt, q4_1: share of the int8 multiply-add peak", results).value == pytest.approx(25)


def test_a_cold_prefix_is_compared_with_the_prompt_of_its_pair():
    pairs = StreamResults(RESULTS.streams.loads.unique, (1.0, 4.0, 1.0), (1.4, 5.6, 9.0), RESULTS.streams.loads.shared)
    assert pairs.cold_ratio == pytest.approx(1.4)
