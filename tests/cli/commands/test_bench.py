"""`quire bench` as a process, against a server with known delays."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys

import pytest

from quire.bench.engines.fixed_delay_server import fixed_delay_server

pytestmark = pytest.mark.e2e

SMALL = ("--requests", "4", "--concurrency", "2", "--output-len", "4", "--input-len", "8")


@pytest.fixture(scope="module")
def url():
    with fixed_delay_server(0.02, 0.005) as where:
        yield where


def test_serve_measures_a_server_and_prints_the_figures(quire, url):
    done = quire("bench", "serve", "--url", url, *SMALL, "--goodput", "ttft:500", "tpot:50", "--price-per-hour", "2")
    assert done.returncode == 0, done.stderr
    assert "requests within the limits" in done.stdout and "cost of a million output tokens" in done.stdout
    assert "server makes" in done.stdout
    assert "server, unique, 2 clients: output" in done.stderr


def test_json_prints_one_object(quire, url):
    done = quire("bench", "serve", "--url", url, "--json", "--request-rate", "50,100", "--requests", "5")
    points = json.loads(done.stdout)["engines"][0]["points"]
    assert [point["load"]["rate"] for point in points] == [50.0, 100.0]
    assert all(point["figures"]["completed"] == 5 for point in points)


def test_a_comparison_writes_its_report(quire, url, tmp_path):
    command = f"{sys.executable} -m quire.bench.engines.fixed_delay_server 0.05 0.01 --port {{port}}"
    engines = ("--engine", f"one={url}", f"two={command}")  # as argparse would take them
    done = quire("bench", "compare", *engines, "--workload", "unique", "chat", *SMALL, "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "report.html").read_text()
    assert "Workload chat" in page and "two / one" in page and "quire bench compare --engine" in page
    results = json.loads((tmp_path / "results.json").read_text())
    assert [engine["name"] for engine in results["engines"]] == ["one", "two"]
    assert (tmp_path / "two.log").exists()


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_it_started_ends_with_it(quire, tmp_path, sign):
    command = f"{sys.executable} -m quire.bench.engines.fixed_delay_server 0.05 0.2 --port {{port}}"
    arguments = quire.command("bench", "serve", "--start", command, *SMALL, "--out", str(tmp_path), "--requests", "400")
    with subprocess.Popen(arguments, env=quire.environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        next(line for line in lines if "the first token came" in line)
        address = (tmp_path / "server.log").read_text().strip()
        assert is_there(address)
        process.send_signal(sign)
        process.send_signal(sign)  # as `timeout` does, to the process and to its group
        assert process.wait(60) == 130
    assert not is_there(address)


def is_there(address: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(address.rpartition(":")[2]))) == 0


def test_a_recorded_trace_is_replayed(quire, url, tmp_path):
    body = {"model": "x", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    lines = [json.dumps({"time": time, "path": "/v1/chat/completions", "body": body}) for time in (0.0, 0.2, 0.3)]
    file = tmp_path / "trace.jsonl"
    file.write_text("\n".join(lines))
    done = quire("bench", "serve", "--url", url, "--json", "--workload", f"trace={file}")
    (point,) = json.loads(done.stdout)["engines"][0]["points"]
    assert point["load"] == {"kind": "recorded"} and point["figures"]["total_output_tokens"] == 9
    assert point["figures"]["duration"] > 0.3


def test_an_option_of_another_benchmark_names_its_equivalent(quire):
    done = quire("bench", "serve", "--dataset-name", "random")
    assert done.returncode == 2 and "--workload" in done.stderr
    done = quire("bench", "serve", "--save-result")
    assert done.returncode == 2 and "--out" in done.stderr


@pytest.mark.parametrize(
    "arguments, error",
    [
        (("serve", "--concurrency", "2", "--rate", "3"), "--concurrency (closed loop) and --request-rate (open loop)"),
        (("serve", "--concurrency", "some"), "such as 1,8,32"),
        (("serve", "--workload", "mine"), "There is no workload 'mine'"),
        (("serve", "--extra-body", "{"), "--extra-body is not JSON"),
        (("serve", "--url", "http://127.0.0.1:1"), "cannot connect"),
        (("compare", "--engine", "one"), "write NAME=URL"),
        (("compare",), "--engine NAME=URL"),
    ],
)
def test_an_error_is_one_line(quire, arguments, error):
    done = quire("bench", *arguments)
    assert done.returncode == 1
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert error in line and "Traceback" not in done.stderr


def test_lists_the_workloads(quire):
    done = quire("bench", "workloads")
    assert "shared\n  Prompts that begin with the same long text" in done.stdout
    assert "prefix=512, groups=1, hit=1.0" in done.stdout


def test_runs_a_part_by_its_name(quire):
    done = quire("bench", "cpu", "--nonsense")
    assert done.returncode == 2 and "--peers" in done.stderr


def test_offline_measures_the_engine_without_http(quire, model_file):
    command = [sys.executable, "-m", "quire", "bench", "offline", str(model_file), "--json", *SMALL]
    limits = ("--num-blocks", "64", "--workload", "shared:prefix=32,input=8,output=4", "structured:input=8,output=192")
    done = subprocess.run(
        [*command, *limits], env=quire.environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    shared, structured = json.loads(done.stdout)["engines"][0]["points"]
    assert shared["figures"]["completed"] == structured["figures"]["completed"] == 4
    assert shared["figures"]["total_output_tokens"] == 16 and shared["figures"]["total_cached_tokens"] > 0
    assert not any("JSON" in concern for concern in structured["concerns"])
