"""The answer fits the situation, its command can be run, and measured figures go before simulated ones."""

from __future__ import annotations

import io
import json
import shlex
from dataclasses import fields
from pathlib import Path

import pytest
from rich.console import Console

from quire.advisor.advice import Advice, Planned, advise
from quire.advisor.compared import read_comparison
from quire.advisor.hardware import PRESETS
from quire.advisor.pages import document
from quire.advisor.planning import Wanted, advise_on
from quire.advisor.published import name_to_serve
from quire.advisor.roofline import Roofline
from quire.advisor.shape import PRECISIONS, PUBLIC, SAME_SIZES
from quire.advisor.terminal import show
from quire.advisor.told import as_json
from quire.bench.drive import Closed, Open
from quire.bench.heard import Heard
from quire.bench.measure import Plan, Point
from quire.bench.outcome import Outcome, Result, write
from quire.bench.summary import Around, summarize
from quire.cli.serve import ServeOptions
from quire.config import load, settings
from quire.report.trace import trace_of
from quire.store.names import parse_name
from quire.store.store import Store
from quire.types.errors import InvalidRequest
from tests.advisor import traces

pytestmark = pytest.mark.pure

SMOL = PUBLIC["smollm2-135m"].in_precision("q4_1")


def advice(lines, shape=SMOL, on="laptop", **more) -> Advice:
    planned = Planned("mine", Roofline(shape, PRESETS[on]), load({}, {}), **more)
    return advise(traces.workload(lines), planned)


def check_command(command: str) -> None:
    """Every flag is one of `quire serve`, with a value that it takes."""
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
def test_every_situation_is_recognised_and_has_a_command_that_can_be_run(lines, situation):
    found = advice(lines)
    assert situation in found.answer.situations and found.answer.engine == "quire"
    check_command(found.answer.command)
    assert found.answer.reasons and found.answer.changes


def test_a_batch_is_served_in_large_steps():
    command = advice(traces.batch()).answer.command
    assert "--max-step-tokens 4096" in command and "--stream-gap 5.0" in command


def test_the_context_has_room_for_the_longest_request():
    lines = [*traces.unique(5), traces.line(9.0, list(range(3000)), 500)]
    assert "--max-context 5120" in advice(lines).answer.command  # 3,500 and a quarter more, in steps of 1,024


def test_tenants_are_told_to_have_keys():
    assert any("quire key NAME" in reason for reason in advice(traces.two_tenants()).answer.reasons)


def test_a_trace_of_many_models_is_served_by_one_server():
    lines = [traces.line(at * 1.0, [at] * 50, model=("big", "small")[at % 2]) for at in range(20)]
    found = advice(lines)
    assert "many models" in found.answer.situations and found.answer.command.startswith("quire serve big small ")


def test_what_one_machine_cannot_serve_is_said_with_the_numbers():
    found = advice(traces.unique(200, gap=0.01))
    assert found.answer.situations[0] == "several machines"
    assert any("one device serves" in reason for reason in found.answer.reasons)


def test_a_model_that_does_not_fit_is_said_with_the_numbers():
    found = advice(traces.shared(20), PUBLIC["llama-3.3-70b"], "h100")
    said = found.answer
    assert (
        said.line.startswith("Do not run mine (bf16) on h100: with one request it needs 144.") and "80 GB" in said.line
    )
    assert said.command == "" and said.winners == () and said.changes == () and found.facts.whatifs == []
    assert "It fits with --precision int4 (needs 42.0 GB, h100 has 80.0 GB)." in said.words
    out = io.StringIO()
    show(found, Console(file=out, width=100, no_color=True))
    assert "quire serve" not in out.getvalue() and " 0.0 ms" not in out.getvalue()
    assert "quire serve" not in document(found) and as_json(found)["answer"]["command"] == ""


def test_what_does_not_fit_here_is_told_where_it_fits():
    found = advice(traces.shared(20), PUBLIC["llama-3.3-70b"], "laptop")
    assert found.answer.command == ""
    fitting = [word for word in found.answer.words if word.startswith("It fits with --on h")]
    assert [word.split(" (")[0] for word in fitting] == [
        "It fits with --on h200 --precision fp8",
        "It fits with --on h100 --precision int4",
    ]


def test_the_answer_begins_with_a_line_and_the_winners():
    found = advice(traces.shared(60, gap=0.05), PUBLIC["llama-3.1-8b"], "h100")
    out = io.StringIO()
    show(found, Console(file=out, width=160, no_color=True))
    line, heads, *rows = out.getvalue().splitlines()
    assert line == found.answer.line and line.startswith("Run quire with mine (bf16) on h100: first token p95 ")
    assert heads.split() == ["best", "instead", "of"]
    assert [row.partition("  ")[0] for row in rows[:5]] == [each.measure for each in found.answer.winners]
    gap = next(each for each in found.answer.winners if each.measure == "per token, p50")
    assert gap.best == "weights in fp8 instead of bf16" and gap.other == "as planned"
    page = document(found)
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
def test_a_command_names_what_can_be_fetched(name, precision, served):
    assert name_to_serve(name, precision) == served
    if served is not None:
        assert parse_name(served).kind in ("hub", "stored")


def test_every_known_size_is_published_somewhere():
    for name in (*PUBLIC, *SAME_SIZES):
        for precision in PRECISIONS:
            assert parse_name(name_to_serve(name, precision) or "").kind in ("hub", "stored")


def test_without_a_device_of_its_own_quire_says_which_other_engine(monkeypatch):
    monkeypatch.setattr("quire.advisor.advice._has_device", lambda name: name == "cpu")
    shared = advice(traces.shared(30), PUBLIC["llama-3.1-8b"], "h100").answer
    unique = advice(traces.unique(30), PUBLIC["llama-3.1-8b"], "h100").answer
    assert (shared.engine, unique.engine) == ("sglang", "vllm")
    assert unique.command == "vllm serve mine --max-model-len 1024"
    monkeypatch.setattr("quire.advisor.advice._has_device", lambda name: True)
    ours = advice(traces.unique(30), PUBLIC["llama-3.1-8b"], "h100").answer
    assert ours.engine == "quire" and "--device cuda" in ours.command
    check_command(ours.command)


def test_settings_that_are_given_are_what_is_simulated():
    planned = Planned("mine", Roofline(SMOL, PRESETS["laptop"]), load({"num_blocks": 60}, {}))
    found = advise(traces.workload(traces.shared(gap=0.05)), planned)
    assert found.facts.served.peak_blocks <= 60


# ── comparisons ──


def figures(rate: float, ttft: float, whole: float, **more: object) -> dict[str, object]:
    spread = {"p50_ttft_ms": ttft, "p99_ttft_ms": 3 * ttft, "p50_tpot_ms": 10.0, "p50_e2el_ms": whole}
    return {"output_throughput": rate, "completed": 64, "failed": 0, "request_goodput": None} | spread | more


def comparison(path: Path, quire: float, other: float) -> Path:
    """Results as `quire bench compare` writes them; the two differ by their speed alone."""

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
    said = {"format": "quire.bench/1", "machine": "a test", "engines": engines}
    (path / "results.json").write_text(json.dumps(said))
    return path


@pytest.mark.parametrize(
    "quire, other, engine", [(200.0, 50.0, "quire"), (50.0, 200.0, "llama"), (100.0, 104.0, "quire")]
)
def test_measured_figures_decide_also_against_us(tmp_path, quire, other, engine):
    folder = comparison(tmp_path / "out", quire, other)
    found = advice(traces.shared(60, gap=0.05), compare=lambda *like: read_comparison(folder, *like))
    assert found.answer.engine == engine
    assert found.facts.comparison.workload == "shared"
    told = " ".join(found.answer.reasons)
    assert "Measured (a test; shared, 8 clients)" in told and "llama" in told and "quire 1.5 s" in told
    assert (found.answer.command == "llama-server -m m --port 8000") == (engine == "llama")
    assert "Against this measurement, quire: few answers." in told
    assert ("does not tell them apart" in told) == (other == 104.0)


def test_what_bench_writes_can_be_read(tmp_path):
    """By its own hand: the two commands agree on the names of figures."""
    loads = (Closed(2), Open(3.0))
    heard = [Heard(0.0, sent=0.0, ended=1.0, stamps=[0.25, 0.5, 1.0], prompt_tokens=8, output_tokens=3)] * 4
    points = tuple(Point("unique", load, summarize(str(load), heard, None, Around()), tuple(heard)) for load in loads)
    plan = Plan(workloads=("unique",), loads=loads)
    write(Outcome(plan, (Result("quire", "quire serve m", "m", points, 1.25),), "now", "here", 0.0), tmp_path)
    best = read_comparison(tmp_path, is_shared=False, concurrency=2.0, is_offline=False).best
    assert (best.load, best.output_rate, best.first_token_p50, best.whole_p50) == ("2 clients", 12.0, 0.25, 1.0)
    assert (best.token_p50, best.start_seconds, best.num_failed, best.is_ours) == (0.375, 1.25, 0, True)


def test_the_load_that_is_most_like_the_trace_is_compared(tmp_path):
    folder = comparison(tmp_path / "out", 2.0, 1.0)
    found = read_comparison(folder, is_shared=False, concurrency=6.0, is_offline=True)
    assert (found.workload, found.load, found.best.output_rate) == ("unique", "8 clients", 16.0)


@pytest.mark.parametrize("text", [None, "nonsense", "[]", '{"format": "other/1"}', '{"format": "quire.bench/1"}'])
def test_what_is_no_comparison_is_refused(tmp_path, text):
    if text is not None:
        (tmp_path / "results.json").write_text(text)
    with pytest.raises(InvalidRequest, match=r"compar[ei]"):
        read_comparison(tmp_path, True, 1.0, False)


# ── what is told ──


def test_people_and_programs_are_told_the_same():
    found = advice(traces.shared(60, gap=0.05))
    said = json.loads(json.dumps(as_json(found)))
    assert said["answer"]["command"] == found.answer.command and said["format"] == "quire.advise/1"
    assert said["prefixes"][0]["end"] == 340 and said["hit_rate_by_blocks"][-1]["rate"] > 0.8
    assert sum(said["simulated"]["cost_shares"].values()) == pytest.approx(1.0)
    out = io.StringIO()
    show(found, Console(file=out, width=100, no_color=True))
    told, page = out.getvalue(), document(found)
    assert f"\n{found.answer.command}\n" in told  # on a line of its own, however long
    assert "340 tokens × 60 requests" in told and "What would change it" in told
    assert found.answer.command in page and page.count("<svg") >= 4 and "http" not in page.replace("--", "")


def test_a_page_holds_what_prompts_say_only_as_text():
    lines = [traces.line(at * 1.0, [], 5) for at in range(4)]
    for at, each in enumerate(lines):
        each["body"]["prompt"] = f"<script>alert(1)</script> {'word ' * 40} {at}"
    page = document(advice(lines))
    assert "<script>" not in page and "&lt;script&gt;" in page


def test_what_is_not_known_is_said():
    lines = [{"logger": "quire.access", "time": f"2026-01-01T00:00:0{at}", "prompt_tokens": 100} for at in range(5)]
    notes = " ".join(advice(lines).notes)
    assert "no prompts" in notes and "answers is not in the trace" in notes


def test_a_trace_of_refusals_alone_is_refused():
    with pytest.raises(InvalidRequest, match="refused"):
        advice([each | {"status": 503} for each in traces.unique(3)])


# ── planning ──


def plan(tmp_path, lines, kv_dtype="auto", **wanted) -> Advice:
    trace = trace_of(map(json.dumps, lines), "trace")
    return advise_on(
        trace, Wanted(**wanted), load({"kv_dtype": kv_dtype}, {}), Store(tmp_path), None, lambda text: None
    )


def test_the_model_of_the_trace_is_planned_for_if_it_is_known(tmp_path):
    lines = [traces.line(at * 1.0, [at] * 20, model="meta-llama/Llama-3.1-8B-Instruct") for at in range(3)]
    found = plan(tmp_path, lines, on="h100", precision="fp8")
    shape = found.planned.roofline.shape
    assert (shape.name, shape.precision, found.planned.notes) == ("llama-3.1-8b", "fp8", ())
    assert found.answer.command.startswith("quire serve hf.co/meta-llama/Llama-3.1-8B-Instruct --device cuda ")
    assert "--quantize fp8" in found.answer.command
    check_command(found.answer.command)


@pytest.mark.parametrize("on, kv_dtype", [("h100", "bf16"), ("laptop", "f16")])
def test_kv_is_planned_as_the_device_stores_it_unless_it_is_told_otherwise(tmp_path, on, kv_dtype):
    lines = [traces.line(at * 1.0, [at] * 20, model="smollm2:135m") for at in range(2)]
    assert plan(tmp_path, lines, on=on).planned.roofline.shape.kv_dtype == kv_dtype
    assert plan(tmp_path, lines, "f32", on=on).planned.roofline.shape.kv_dtype == "f32"


def test_a_model_that_nobody_knows_is_stood_in_for_and_that_is_said(tmp_path):
    lines = [traces.line(at * 1.0, [at] * 20, model="gpt-4o") for at in range(3)]
    found = plan(tmp_path, lines, on="h100")
    assert any("those of llama-3.1-8b" in note for note in found.notes)
    assert found.answer.command.startswith("quire serve gpt-4o=hf.co/meta-llama/Llama-3.1-8B-Instruct ")
    with pytest.raises(InvalidRequest, match="one of smollm2-135m"):
        plan(tmp_path, lines, on="h100", model="gpt-4o")


def test_the_files_of_a_model_count_its_own_tokens(tmp_path, model_file):
    body = {"model": "m", "messages": [{"role": "user", "content": "Why is the sky blue?"}], "max_tokens": 5}
    found = plan(tmp_path, [{"time": 0, "body": body}], on="laptop", model=str(model_file))
    assert found.facts.description.exactness == {"exact": 1}
    assert found.planned.roofline.shape.precision == "q4_1"
