"""`quire advise` as a process."""

from __future__ import annotations

import json

import pytest

from tests.advisor import traces

pytestmark = pytest.mark.pure

PLANNED = ("--model", "smollm2-135m", "--precision", "q4_1", "--on", "laptop")


@pytest.fixture
def trace(tmp_path):
    return str(traces.write_trace(tmp_path / "trace.jsonl", traces.shared(40, gap=0.1)))


def test_prints_the_recommendation_and_writes_the_page(quire, trace, tmp_path):
    done = quire("advise", trace, *PLANNED, "--html", str(tmp_path / "advice.html"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Run quire with smollm2:135m (q4_1) on laptop: first token p95 ")
    assert "\nquire serve smollm2:135m --max-context 1024" in done.stdout and "advice.html" in done.stdout
    assert (tmp_path / "advice.html").read_text().startswith("<!doctype html>")
    compare, again = (line for line in done.stdout.splitlines() if line.startswith(("quire bench", "quire advise")))
    assert compare.endswith(f" --workload trace={trace} --out comparison") and " --port {port}' " in compare
    assert again == f"quire advise {trace} --compare comparison"


def test_json_prints_one_object(quire, trace):
    done = quire("advise", trace, *PLANNED, "--json")
    assert json.loads(done.stdout)["workload"]["num_calls"] == 40


def test_accepts_the_settings_of_the_server(quire, trace):
    done = quire("advise", trace, *PLANNED, "--json", "--num-blocks", "50", "--kv-dtype", "q8_0")
    report = json.loads(done.stdout)
    assert report["model"]["kv_dtype"] == "q8_0" and report["simulated"]["peak_blocks"] <= 50


@pytest.mark.parametrize(
    "arguments, error",
    [
        ((), "Give either a file of requests, or --url"),
        (("nothing.jsonl",), "cannot be read"),
        (("nothing.jsonl", "--url", "http://127.0.0.1:1"), "Give either a file of requests, or --url"),
        (("--url", "http://127.0.0.1:1"), "No server is running at http://127.0.0.1:1"),
    ],
)
def test_an_unreadable_source_is_an_error_in_one_line(quire, arguments, error):
    done = quire("advise", *arguments)
    assert done.returncode == 1 and error in done.stderr and "Traceback" not in done.stderr


def test_an_error_names_the_unknown_machine_model_or_comparison(quire, trace, tmp_path):
    for more, error in (
        (("--on", "abacus"), "Choose from here, h200"),
        (("--on", "laptop", "--model", "llama-3.1-8b", "--precision", "fp8"), "On a CPU use --precision q8_0."),
        (("--on", "laptop", "--model", "nobody"), "nobody is not stored"),
        ((*PLANNED, "--compare", str(tmp_path)), "Cannot read the comparison"),
    ):
        done = quire("advise", trace, *more)
        assert done.returncode == 1 and error in done.stderr, done.stderr
