"""`quire advise` as a process."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from quire.cli.commands import advise_fleet
from quire.cluster.spec import parse_cluster
from quire.devices.facts import device_facts
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
    assert "\n  1: first token " in done.stdout and "  <- proposed\n" in done.stdout and " (p50), " in done.stdout
    assert "\n  1 is the smallest fleet that meets both goals: 95 % of the first tokens within " in done.stdout
    written = (tmp_path / "advice.html").read_text()
    assert "Replicas and roles" in written and "1 (proposed)" in written and "between tokens p50" in written
    assert compare.endswith(f" --workload trace={trace} --out comparison") and " --port {port}' " in compare
    assert again == f"quire advise {trace} --compare comparison"


def test_json_prints_one_object(quire, trace, tmp_path):
    done = quire("advise", trace, *PLANNED, "--json")
    report = json.loads(done.stdout)
    assert report["workload"]["num_calls"] == 40
    fleet = report["fleet"]
    assert fleet["roles"] == {"both": 1} and fleet["replicas"] == 1 and fleet["reason"].startswith("1 is the smallest")
    assert [each["roles"] for each in fleet["simulated"]] == [{"both": 1}, {"both": 2}, {"prefill": 1, "decode": 1}]
    spec = parse_cluster(fleet["cluster_file"], "cluster.yaml", tmp_path)
    assert spec.groups["chat"].model == "smollm2:135m"


def test_long_prompts_beside_long_answers_get_roles(quire, tmp_path):
    rng, now, lines = random.Random(0), 0.0, []
    for number in range(80):
        now += rng.expovariate(0.6)
        lines.append(traces.line(now, [traces.VOCABULARY + number, *traces.ids(rng, 250)], 150))
    trace = str(traces.write_trace(tmp_path / "trace.jsonl", lines))
    planned = ("--model", "llama-3.2-1b", "--precision", "q4_k", "--on", "laptop")
    done = quire("advise", trace, *planned)
    assert done.returncode == 0, done.stderr
    fleet = json.loads(quire("advise", trace, *planned, "--json").stdout)["fleet"]
    num_prefill, num_decode = fleet["roles"]["prefill"], fleet["roles"]["decode"]
    name = f"{num_prefill + num_decode} ({num_prefill} prefill + {num_decode} decode)"
    marked = [line for line in done.stdout.splitlines() if line.endswith("<- proposed")]
    assert len(marked) == 1 and marked[0].startswith(f"  {name}: first token ")
    assert fleet["reason"].startswith(f"{name} is the smallest fleet that meets both goals: ")
    assert f"{fleet['replicas']} that do both: " in fleet["reason"] and fleet["reason"] in done.stdout
    roles = {"prefill": {"replicas": num_prefill}, "decode": {"replicas": num_decode}}
    groups = parse_cluster(fleet["cluster_file"], "cluster.yaml", Path()).groups
    assert {group.role: group.rule.max for group in groups.values()} == fleet["roles"]
    chat = yaml.safe_load(fleet["cluster_file"])["models"]["chat"]
    assert chat["roles"] == roles and "Llama-3.2-1B" in chat["model"]
    smaller = ("--stream-gap", "0.05", "--min-prompt-tokens", "16")
    small = json.loads(quire("advise", trace, *planned, "--json", *smaller).stdout)["fleet"]
    gaps = [next(each["token_gap_p99"] for each in found["simulated"]) for found in (small, fleet)]
    assert gaps[0] < gaps[1]  # the settings are those of the simulated engines too


def test_roles_are_simulated_for_a_gpu_too(quire, trace):
    done = quire("advise", trace, "--model", "smollm2-135m", "--on", "h100", "--json")
    fleet = json.loads(done.stdout)["fleet"]
    assert any("prefill" in each["roles"] for each in fleet["simulated"]) and fleet["note"].startswith("Roles: ")


def test_roles_are_not_simulated_for_a_device_that_exchanges_no_blocks():
    facts = replace(device_facts("cpu"), name="abacus", moves_blocks=False)
    advice = SimpleNamespace(plan=SimpleNamespace(roofline=SimpleNamespace(hardware=SimpleNamespace(facts=facts))))
    link, note = advise_fleet._link(advice)
    assert link is None and note == "Roles are not simulated: engines on abacus exchange no KV blocks."


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
