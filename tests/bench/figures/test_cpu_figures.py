"""From measurements to figures: which ratio has which goal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from quire.bench.accuracy.cpu_accuracy import Accuracy, Divergence
from quire.bench.engines.model_facts import ModelFacts
from quire.bench.engines.peer import LLAMA_CPP, OPENVINO, PeerRates, StreamsResult
from quire.bench.engines.single_stream import SingleStream
from quire.bench.figures.cpu_figures import accuracy_figures, format_figures, kernel_lines, start_figures
from quire.bench.figures.cpu_goals import AVX512, NARROW, CpuGoals, goals_for
from quire.bench.figures.cpu_results import FormatResult, StartResult, StreamsComparison
from quire.bench.figures.figure import Figure
from quire.bench.figures.many_streams import many_streams_figures, shared_figures, unique_figure
from quire.bench.load.stream_loads import StreamResults, StreamSizes
from quire.bench.load.summary import Percentiles, RunConditions, summarize
from quire.devices.base import Peaks

pytestmark = pytest.mark.pure

PEAKS = Peaks(25e9, 400e9, 2, "avx2")


def format_result(name: str, prompt: float, decode: float, peers: dict[str, tuple[float, float]]) -> FormatResult:
    facts = ModelFacts(Path("m.gguf"), name, "gguf", name, 49152, (), 100_000_000, 100_000_000)
    ours = SingleStream((prompt, prompt, 1.0), (decode, decode, 1.0), (0.02, 0.02, 0.9), (PEAKS, PEAKS, PEAKS))
    return FormatResult(facts, ours, {name: PeerRates((rates[0],), (rates[1],)) for name, rates in peers.items()})


def stream_results(rate: float, first_token: float) -> StreamResults:
    load = replace(
        summarize("32 clients", [], None, RunConditions()),
        output_per_second=rate,
        first_token=Percentiles(p50=1.0, p99=first_token),
        gap=Percentiles(p50=0.1, p99=0.4),
    )
    return StreamResults(unique=load, alone_seconds=(1.0, 2.0, 1.0), cold_seconds=(1.25, 2.5, 3.0), shared=load)


FORMATS = (
    format_result("q4_1", 1800.0, 200.0, {LLAMA_CPP: (200.0, 100.0), OPENVINO: (900.0, 60.0)}),
    format_result("q4_0", 900.0, 210.0, {LLAMA_CPP: (450.0, 150.0)}),
    format_result("bf16", 900.0, 90.0, {LLAMA_CPP: (450.0, 80.0)}),
)
STREAMS = StreamsComparison(
    StreamSizes(),
    StreamsResult(stream_results(200.0, 5.0), 400_000_000),
    {
        LLAMA_CPP: StreamsResult(stream_results(40.0, 30.0), 2_000_000_000),
        OPENVINO: StreamsResult(stream_results(110.0, 12.0), None),
    },
)
START = StartResult((0.7, 0.8, 0.9), {LLAMA_CPP: (1.0,), OPENVINO: (5.0,)}, 0.01, 0.1)
ACCURACY = Accuracy(Divergence(0.003, 0.96), Divergence(0.004, 0.95), 2040)


def rows(goals: CpuGoals = NARROW) -> dict[str, Figure]:
    figures = [*format_figures(FORMATS, goals), *many_streams_figures(STREAMS, goals)]
    return {figure.name: figure for figure in (*figures, *start_figures(START), *accuracy_figures(ACCURACY))}


@pytest.mark.parametrize(
    "name, value, peers, verdict",
    [
        ("prompt of 512 tokens, q4_1", 1800, (200, 900), "reached"),
        ("prompt of 512 tokens, q4_0", 900, (450,), "reached"),
        ("decode, one stream, q4_1", 200, (100, 60), "reached"),
        ("decode, one stream, q4_0", 210, (150,), "MISSED"),
        ("decode, one stream, bf16", 90, (80,), ""),
        ("decode, q4_1: share of read bandwidth", 80, (40, 24), "reached"),
        ("decode, bf16: share of read bandwidth", 36, (32,), "MISSED"),
        ("prompt, q4_1: share of the int8 peak", 45, (5, 22.5), "reached"),
        ("prompt, bf16: share of the int8 peak", 22.5, (11.25,), ""),
        ("engine's share of a decode step, one stream", 2, (), "reached"),
        ("unique, 32 streams, output", 200, (40, 110), "MISSED"),
        ("shared, 32 streams, output", 200, (40, 110), "MISSED"),
        ("unique, 32 streams, first token p99", 5, (30, 12), "reached"),
        ("unique, 32 streams, gap between tokens p99", 0.4, (0.4, 0.4), "reached"),
        ("cold prefix, 8 streams: first token p99 / one prompt alone", 1.25, (1.25, 1.25), "reached"),
        ("peak resident memory, 32 streams", 400, (2000,), "reached"),
        ("second start to the first token", 0.8, (1.0, 5.0), "reached"),
        ("mean KL from float32", 0.003, (0.004,), "reached"),
    ],
)
def test_every_goal_has_a_figure(name, value, peers, verdict):
    figure = rows()[name]
    assert figure.value == pytest.approx(value) and figure.verdict == verdict
    assert list(figure.peers.values()) == pytest.approx(peers)


def test_a_processor_with_avx512_has_other_goals():
    assert goals_for(("avx2", "fma")) is NARROW and goals_for(("avx2", "avx512f")) is AVX512
    figures = rows(AVX512)
    assert figures["unique, 32 streams, output"].verdict == "reached"  # 1.82 × OpenVINO
    assert figures["prompt, q4_1: share of the int8 peak"].verdict == "MISSED"
    assert str(figures["shared, 32 streams, output"].goal) == "≥ 4 × the best other"


def test_without_peers_ratios_are_not_compared_and_the_rest_is_judged():
    formats = [replace(each, peers={}) for each in FORMATS]
    streams = replace(STREAMS, peers={})
    accuracy = replace(ACCURACY, peer=None)
    figures = [*format_figures(formats, NARROW), *many_streams_figures(streams, NARROW), *accuracy_figures(accuracy)]
    verdicts = {each.name: each.verdict for each in figures}
    assert verdicts["prompt of 512 tokens, q4_1"] == verdicts["unique, 32 streams, output"] == "not compared"
    assert verdicts["mean KL from float32"] == verdicts["shared, 32 streams, output"] == "not compared"
    assert verdicts["decode, q4_1: share of read bandwidth"] == "reached"


@pytest.mark.parametrize("error, verdict", [(0.0, "MISSED"), (0.0001, "reached"), (0.00001, "MISSED")])
def test_accuracy_is_no_worse_if_the_difference_is_within_two_standard_errors(error, verdict):
    accuracy = Accuracy(Divergence(0.0031, 0.96), Divergence(0.0030, 0.96), 2040, error)
    assert next(accuracy_figures(accuracy)).verdict == verdict


def test_without_native_code_there_are_no_limits_to_compare_with():
    without = [replace(each, ours=replace(each.ours, peaks=())) for each in FORMATS]
    names = [each.name for each in format_figures(without, NARROW)]
    assert names and not any("share of" in name and "engine" not in name for name in names)


def test_a_share_is_of_the_peak_measured_at_that_time():
    slower = replace(PEAKS, read_bytes=12.5e9, multiply_adds=200e9)
    ours = SingleStream((1000.0, 500.0, 500.0), (200.0, 100.0, 100.0), (0.02,) * 3, (PEAKS, slower, slower))
    figures = {each.name: each for each in format_figures([replace(FORMATS[0], ours=ours)], NARROW)}
    assert figures["decode, q4_1: share of read bandwidth"].value == pytest.approx(80)
    assert figures["prompt, q4_1: share of the int8 peak"].value == pytest.approx(25)


def test_a_cold_prefix_is_compared_with_the_prompt_of_its_pair():
    loads = STREAMS.ours.loads
    pairs = StreamResults(loads.unique, (1.0, 4.0, 1.0), (1.4, 5.6, 9.0), loads.shared)
    assert pairs.cold_ratio == pytest.approx(1.4)


def test_a_load_that_was_not_measured_has_no_figure():
    only_unique = replace(STREAMS.ours, loads=StreamResults(STREAMS.ours.loads.unique, (), (), None))
    streams = StreamsComparison(StreamSizes(num_streams=8, only_unique=True), only_unique)
    assert unique_figure(streams, None, "1B").name == "unique, 8 streams, output, 1B"
    assert list(shared_figures(streams, None)) == []
    assert not any("shared" in each.name or "cold" in each.name for each in many_streams_figures(streams, NARROW))


def test_the_kernels_of_each_file_are_named():
    times = {"q4_1": {"avx2": 1.0, "avx512": 1.25}, "q8_0": {"avx512": 1.0}}
    result = replace(FORMATS[0], ours=replace(FORMATS[0].ours, kernels=times))
    assert list(kernel_lines([result, FORMATS[1]])) == [
        "q4_1: q4_1 on avx2 (times of others: avx512 1.25 ×), q8_0 on avx512"
    ]
