"""The recommendation fits the situation, its command is valid, and measurements override the simulation."""

from __future__ import annotations

import io
import json
import shlex
from dataclasses import fields, replace
from pathlib import Path

import pytest
from rich.console import Console

from quire.advisor.advice import Advice, AdvicePlan, advise_on_workload
from quire.advisor.comparison import read_comparison
from quire.advisor.hardware import PRESETS
from quire.advisor.html_report import html_report
from quire.advisor.json_report import advice_json
from quire.advisor.model_shape import PRECISIONS, PUBLISHED, SAME_SHAPES, AttentionLayers
from quire.advisor.model_sources import name_to_serve
from quire.advisor.planning import AdviceRequest, advise_on_trace
from quire.advisor.roofline import Roofline
from quire.advisor.terminal_report import print_advice
from quire.bench.figures.result_files import write_results
from quire.bench.figures.results import BenchmarkResults, EngineResult
from quire.bench.load.load_test import Plan, Point
from quire.bench.load.patterns import ClosedLoop, OpenLoop
from quire.bench.load.request_result import RequestResult
from quire.bench.load.summary import RunConditions, summarize
from quire.cli.commands.serve import ServeOptions
from quire.config import load, settings
from quire.report.trace import parse_trace
from quire.store.names import parse_name
from quire.store.store import Store
from quire.types.errors import InvalidRequest
from tests.advisor import traces

pytestmark = pytest.mark.pure

SMOL = PUBLISHED["smollm2-135m"].in_precision("q4_1")


def advice(lines, shape=SMOL, on="laptop", **more) -> Advice:
    plan = AdvicePlan("mine", Roofline(shape, PRESETS[on]), load({}, {}), **more)
    return advise_on_workload(traces.workload(lines), plan)


def check_command(command: str) -> None:
    """Check that every flag is one of `quire serve`, with a valid value."""
    program, verb, *rest = shlex.split(command)
    assert (program, verb) == ("quire", "serve")
    own = {f"--{each.name}" for each in fields(ServeOptions)}
    declared = {each.flag: each for each in settings()}
    flags = {flag: rest[at + 1] for at, flag in enumerate(rest) if flag.startswith("--")}
    load({declared[flag].name: value for flag, value in flags.items() if flag in declared}, {})
    assert set(flags) <= set(declared) | own


@pytest.mark.parametrize(
    "lines, situation",
    [
        (traces.shared(60, gap=0.05), "many with shared context"),
        (traces.unique(60, gap=0.05), "many with unique prompts"),
        (traces.bursty(), "many with unique prompts"),
        (traces.two_tenants(), "one user"),
        (traces.unique(20, gap=20.0), "one user"),
        (traces.batch(100), "offline batch"),
    ],
    ids=["shared", "unique", "bursty", "tenants", "one-user", "batch"],
)
def test_every_situation_is_recognised_and_has_a_valid_command(lines, situation):
    found = advice(lines)
    assert situation in found.recommendation.situations and found.recommendation.engine == "quire"
    check_command(found.recommendation.command)
    assert found.recommendation.reasons and found.recommendation.changes


def test_a_batch_is_served_in_large_steps():
    command = advice(traces.batch()).recommendation.command
    assert "--max-step-tokens 4096" in command and "--stream-gap 5.0" in command


def test_the_context_has_room_for_the_longest_request():
    lines = [*traces.unique(5), traces.line(9.0, list(range(3000)), 500)]
    assert "--max-context 5120" in advice(lines).recommendation.command  # 3,500 and a quarter more, in steps of 1,024


def test_api_keys_are_recommended_for_tenants():
    assert any("quire key NAME" in reason for reason in advice(traces.two_tenants()).recommendation.reasons)


def test_a_trace_of_many_models_is_served_by_one_server():
    lines = [traces.line(at * 1.0, [at] * 50, model=("big", "small")[at % 2]) for at in range(20)]
    found = advice(lines)
    assert "many models" in found.recommendation.situations and found.recommendation.command.startswith(
        "quire serve big small "
    )


def test_an_overload_of_one_machine_is_reported_with_the_numbers():
    found = advice(traces.unique(200, gap=0.01))
    assert found.recommendation.situations[0] == "several machines"
    assert any("one device serves" in reason for reason in found.recommendation.reasons)


def test_a_model_that_does_not_fit_is_reported_with_the_numbers():
    found = advice(traces.shared(20), PUBLISHED["llama-3.3-70b"], "h100")
    recommendation = found.recommendation
    assert recommendation.line == (
        "mine (bf16) does not fit on h100: with one request it needs 144.3 GB, and 72.0 of 80 GB are usable."
    )
    assert (
        recommendation.command == ""
        and recommendation.best_options == ()
        and recommendation.changes == ()
        and found.evidence.what_ifs == []
    )
    assert "It fits with --precision int4 (needs 42.0 GB, h100 has 80.0 GB)." in recommendation.summary
    out = io.StringIO()
    print_advice(found, Console(file=out, width=100, no_color=True))
    assert "quire serve" not in out.getvalue() and " 0.0 ms" not in out.getvalue()
    assert "quire serve" not in html_report(found) and advice_json(found)["answer"]["command"] == ""


def test_alternatives_are_listed_for_a_model_that_does_not_fit():
    found = advice(traces.shared(20), PUBLISHED["llama-3.3-70b"], "laptop")
    assert found.recommendation.command == ""
    fitting = [line for line in found.recommendation.summary if line.startswith("It fits with --on h")]
    assert [line.split(" (")[0] for line in fitting] == [
        "It fits with --on h200 --precision fp8",
        "It fits with --on h100 --precision int4",
    ]


def test_the_report_begins_with_one_line_and_the_best_options():
    found = advice(traces.shared(60, gap=0.05), PUBLISHED["llama-3.1-8b"], "h100")
    out = io.StringIO()
    print_advice(found, Console(file=out, width=160, no_color=True))
    line, headings, *rows = out.getvalue().splitlines()
    assert line == found.recommendation.line and line.startswith("Run quire with mine (bf16) on h100: first token p95 ")
    assert headings.split() == ["best", "instead", "of"]
    assert [row.partition("  ")[0] for row in rows[:5]] == [each.measure for each in found.recommendation.best_options]
    gap = next(each for each in found.recommendation.best_options if each.measure == "per token, p50")
    assert gap.best == "weights in fp8 instead of bf16" and gap.other == "as planned"
    page = html_report(found)
    assert page.index(line.partition(":")[0]) < page.index("per token, p50") < page.index("quire serve mine")


@pytest.mark.parametrize(
    "name, precision, served",
    [
        ("llama-3.1-8b", "bf16", "hf.co/meta-llama/Llama-3.1-8B-Instruct"),
        ("llama-3.1-8b", "q4_k", "hf.co/bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M"),
        ("meta-llama/Llama-3.1-8B-Instruct", "fp8", "hf.co/meta-llama/Llama-3.1-8B-Instruct"),
        ("smollm2-135m", "q4_1", "smollm2:135m"),
        ("hf.co/org/repo:Q8_0", "q8_0", "hf.co/org/repo:Q8_0"),
        ("llama3.2:1b", "q4_k", "llama3.2:1b"),
        ("llama-3-8b", "bf16", "hf.co/meta-llama/Meta-Llama-3-8B-Instruct"),
        ("gpt-4o", "bf16", None),
    ],
)
def test_a_command_names_a_model_that_can_be_pulled(name, precision, served):
    assert name_to_serve(name, precision) == served
    if served is not None:
        assert parse_name(served).kind in ("hub", "stored")


def test_every_known_model_has_a_source():
    for name in (*PUBLISHED, *SAME_SHAPES):
        for precision in PRECISIONS:
            assert parse_name(name_to_serve(name, precision) or "").kind in ("hub", "stored")


def test_another_engine_is_recommended_for_an_unsupported_device(monkeypatch):
    monkeypatch.setattr("quire.advisor.advice._has_device", lambda kind: kind == "cpu")
    shared = advice(traces.shared(30), PUBLISHED["llama-3.1-8b"], "h100").recommendation
    unique = advice(traces.unique(30), PUBLISHED["llama-3.1-8b"], "h100").recommendation
    assert (shared.engine, unique.engine) == ("sglang", "vllm")
    assert unique.command == "vllm serve mine --max-model-len 1024"
    monkeypatch.setattr("quire.advisor.advice._has_device", lambda kind: True)
    ours = advice(traces.unique(30), PUBLISHED["llama-3.1-8b"], "h100").recommendation
    assert ours.engine == "quire" and "--device cuda" in ours.command
    check_command(ours.command)


def test_the_given_settings_are_simulated():
    plan = AdvicePlan("mine", Roofline(SMOL, PRESETS["laptop"]), load({"num_blocks": 60}, {}))
    found = advise_on_workload(traces.workload(traces.shared(gap=0.05)), plan)
    assert found.evidence.served.peak_blocks <= 60


# ── comparisons ──


def figures(rate: float, ttft: float, whole: float, **more: object) -> dict[str, object]:
    times = {"p50_ttft_ms": ttft, "p99_ttft_ms": 3 * ttft, "p50_tpot_ms": 10.0, "p50_e2el_ms": whole}
    return {"output_throughput": rate, "completed": 64, "failed": 0, "request_goodput": None} | times | more


def comparison(path: Path, quire: float, other: float) -> Path:
    """Write results in the format of `quire bench compare`. The engines differ only in speed."""

    def points(speed: float) -> list[dict[str, object]]:
        return [
            {
                "workload": workload,
                "load": {"kind": "closed", "clients": clients},
                "figures": figures(speed * clients, 100.0 / speed, 1e6 / speed),
                "concerns": ["few answers."],
            }
            for workload in ("unique", "shared")
            for clients in (1, 8)
        ]

    engines = [
        {"name": "quire", "what": "quire serve m", "start_seconds": 1.5, "points": points(quire)},
        {"name": "llama", "what": "llama-server -m m --port {port}", "start_seconds": 0.9, "points": points(other)},
    ]
    path.mkdir()
    content = {"format": "quire.bench/1", "machine": "a test", "engines": engines}
    (path / "results.json").write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    "quire, other, engine", [(200.0, 50.0, "quire"), (50.0, 200.0, "llama"), (100.0, 104.0, "quire")]
)
def test_measurements_decide_the_engine(tmp_path, quire, other, engine):
    folder = comparison(tmp_path / "out", quire, other)
    found = advice(traces.shared(60, gap=0.05), compare=lambda *like: read_comparison(folder, *like))
    assert found.recommendation.engine == engine
    assert found.evidence.comparison.workload == "shared"
    reasons = " ".join(found.recommendation.reasons)
    assert "Measured (a test; shared, 8 clients)" in reasons and "llama" in reasons and "quire 1.5 s" in reasons
    assert (found.recommendation.command == "llama-server -m m --port 8000") == (engine == "llama")
    assert "Concern about this measurement: quire: few answers." in reasons
    assert ("a tie in a single run" in reasons) == (other == 104.0)


def test_reads_what_bench_compare_writes(tmp_path):
    loads = (ClosedLoop(2), OpenLoop(3.0))
    heard = [
        RequestResult(0.0, sent=0.0, ended=1.0, event_times=[0.25, 0.5, 1.0], prompt_tokens=8, output_tokens=3)
    ] * 4
    points = tuple(
        Point("unique", load, summarize(str(load), heard, None, RunConditions()), tuple(heard)) for load in loads
    )
    plan = Plan(workloads=("unique",), loads=loads)
    write_results(
        BenchmarkResults(plan, (EngineResult("quire", "quire serve m", "m", points, 1.25),), "now", "here", 0.0),
        tmp_path,
    )
    best = read_comparison(tmp_path, is_shared=False, concurrency=2.0, is_offline=False).best
    assert (best.load, best.output_rate, best.first_token_p50, best.whole_p50) == ("2 clients", 12.0, 0.25, 1.0)
    assert (best.token_p50, best.start_seconds, best.num_failed, best.is_quire) == (0.375, 1.25, 0, True)


def test_the_load_most_similar_to_the_trace_is_compared(tmp_path):
    folder = comparison(tmp_path / "out", 2.0, 1.0)
    found = read_comparison(folder, is_shared=False, concurrency=6.0, is_offline=True)
    assert (found.workload, found.load, found.best.output_rate) == ("unique", "8 clients", 16.0)


@pytest.mark.parametrize("text", [None, "nonsense", "[]", '{"format": "other/1"}', '{"format": "quire.bench/1"}'])
def test_other_files_are_refused_as_a_comparison(tmp_path, text):
    if text is not None:
        (tmp_path / "results.json").write_text(text)
    with pytest.raises(InvalidRequest, match=r"compar[ei]"):
        read_comparison(tmp_path, True, 1.0, False)


# ── reports ──


def test_all_reports_show_the_same_recommendation():
    found = advice(traces.shared(60, gap=0.05))
    report = json.loads(json.dumps(advice_json(found)))
    assert report["answer"]["command"] == found.recommendation.command and report["format"] == "quire.advise/1"
    assert report["prefixes"][0]["end"] == 340 and report["hit_rate_by_blocks"][-1]["rate"] > 0.8
    assert sum(report["simulated"]["cost_shares"].values()) == pytest.approx(1.0)
    out = io.StringIO()
    print_advice(found, Console(file=out, width=100, no_color=True))
    printed, page = out.getvalue(), html_report(found)
    assert f"\n{found.recommendation.command}\n" in printed  # alone on its line, however long
    assert "340 tokens × 60 requests" in printed and "What would change it" in printed
    assert found.recommendation.command in page and page.count("<svg") >= 4 and "http" not in page.replace("--", "")


def test_the_keys_of_the_json_report_are_those_of_its_format():
    """Programs read them: renaming a field must not rename its key."""
    report = advice_json(advice(traces.shared(60, gap=0.05)))
    assert list(report) == [
        *("format", "trace", "answer", "settings", "workload", "arrivals_are", "concurrency", "prefixes"),
        *("hit_rate_by_blocks", "hit_rate_now", "model", "hardware", "memory", "simulated", "what_if", "comparison"),
        "notes",
    ]
    assert list(report["answer"]) == [
        *("line", "situations", "engine", "command", "winners", "words", "reasons", "changes", "measure")
    ]
    assert set(report["hardware"]) >= {"name", "kind", "memory_bytes", "bandwidth", "arithmetic", "source", "reach"}
    assert set(report["memory"]) >= {
        "device_bytes",
        "model_bytes",
        "kv_bytes",
        "slots",
        "shared_slots",
        "waste",
        "fits",
    }
    assert set(report["simulated"]) >= {
        *("hit_rate", "first_token", "token_gap", "end_to_end", "company", "decode_seconds", "prompt_seconds"),
        *("again_seconds", "output_tokens_per_second", "cost_shares", "most_requests_per_second"),
    }
    assert list(report["what_if"][0]) == ["name", "change", "helps", "says", "before", "after"]
    assert list(report["prefixes"][0]) == ["start", "end", "num_calls", "saves", "tenant", "words"]


def test_the_page_escapes_the_text_of_prompts():
    lines = [traces.line(at * 1.0, [], 5) for at in range(4)]
    for at, each in enumerate(lines):
        each["body"]["prompt"] = f"<script>alert(1)</script> {'word ' * 40} {at}"
    page = html_report(advice(lines))
    assert "<script>" not in page and "&lt;script&gt;" in page


def test_notes_list_the_assumptions():
    lines = [{"logger": "quire.access", "time": f"2026-01-01T00:00:0{at}", "prompt_tokens": 100} for at in range(5)]
    notes = " ".join(advice(lines).notes)
    assert "no prompts" in notes and "answers are not in the trace" in notes


@pytest.mark.parametrize("different", [{"state_bytes": 10_000}, {"attention": (AttentionLayers(512, 4, 1024),)}])
def test_a_note_says_that_checkpoints_and_windows_are_not_simulated(different: dict) -> None:
    lines = [traces.line(at * 1.0, [*range(20)], 5) for at in range(4)]
    assert any("checkpoints and windows" in note for note in advice(lines, replace(SMOL, **different)).notes)
    assert not any("checkpoints" in note for note in advice(lines).notes)


def test_a_trace_of_refused_requests_is_an_error():
    with pytest.raises(InvalidRequest, match="refused"):
        advice([each | {"status": 503} for each in traces.unique(3)])


# ── planning ──


def advise_with(tmp_path, lines, kv_dtype="auto", **request) -> Advice:
    trace = parse_trace(map(json.dumps, lines), "trace")
    return advise_on_trace(
        trace, AdviceRequest(**request), load({"kv_dtype": kv_dtype}, {}), Store(tmp_path), None, lambda text: None
    )


def test_the_model_of_the_trace_is_the_default(tmp_path):
    lines = [traces.line(at * 1.0, [at] * 20, model="meta-llama/Llama-3.1-8B-Instruct") for at in range(3)]
    found = advise_with(tmp_path, lines, on="h100", precision="fp8")
    shape = found.plan.roofline.shape
    assert (shape.name, shape.precision, found.plan.notes) == ("llama-3.1-8b", "fp8", ())
    assert found.recommendation.command.startswith("quire serve hf.co/meta-llama/Llama-3.1-8B-Instruct --device cuda ")
    assert "--quantize fp8" in found.recommendation.command
    check_command(found.recommendation.command)


@pytest.mark.parametrize("on, kv_dtype", [("h100", "bf16"), ("laptop", "f16")])
def test_the_kv_format_is_that_of_the_device_unless_it_is_set(tmp_path, on, kv_dtype):
    lines = [traces.line(at * 1.0, [at] * 20, model="smollm2:135m") for at in range(2)]
    assert advise_with(tmp_path, lines, on=on).plan.roofline.shape.kv_dtype == kv_dtype
    assert advise_with(tmp_path, lines, "f32", on=on).plan.roofline.shape.kv_dtype == "f32"


def test_an_unknown_model_of_the_trace_is_substituted_with_a_note(tmp_path):
    lines = [traces.line(at * 1.0, [at] * 20, model="gpt-4o") for at in range(3)]
    found = advise_with(tmp_path, lines, on="h100")
    assert any("those of llama-3.1-8b" in note for note in found.notes)
    assert found.recommendation.command.startswith("quire serve gpt-4o=hf.co/meta-llama/Llama-3.1-8B-Instruct ")
    with pytest.raises(InvalidRequest, match="one of smollm2-135m"):
        advise_with(tmp_path, lines, on="h100", model="gpt-4o")


def test_tokens_are_counted_exactly_with_the_files_of_the_model(tmp_path, model_file):
    body = {"model": "m", "messages": [{"role": "user", "content": "Why is the sky blue?"}], "max_tokens": 5}
    found = advise_with(tmp_path, [{"time": 0, "body": body}], on="laptop", model=str(model_file))
    assert found.evidence.summary.exactness == {"exact": 1}
    assert found.plan.roofline.shape.precision == "q4_1"
