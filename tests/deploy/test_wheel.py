"""A wheel of `make wheel` runs where there is no compiler, with every variant of the kernels, on older systems too."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("make", "c++", "git")

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        sys.platform != "linux" or not all(map(shutil.which, TOOLS)), reason="needs a compiler on Linux"
    ),
]

RUNS_ALL_VARIANTS = """
from quire.devices.cpu.bindings import native
import numpy as np
module = native()
pool, said = module.Pool(1), []
for name in module.variants():
    program = module.Program(name, pool, [1, 1, 1, 1, 1, 16])
    matrix = program.matrix("f32", 32, np.ones((8, 128), np.uint8))
    x, out = program.rows(32), program.rows(8)
    product = {"matrices": [matrix], "biases": [-1], "quants": -1, "residual": (-1, 0, 0)}
    program.product(x=(x, 0, 32), out=(out, 0, 8), **product)
    one, none, triples = np.zeros(1, np.int32), np.zeros(0, np.int32), np.zeros((0, 3), np.int32)
    floats, ints = np.zeros((0, 0), np.float32), np.zeros((0, 0), np.int32)
    ends = np.array([0, 1], np.int32)
    tables = one[None]
    program.launch(one, one, one, one, ends, ends[1:], tables, none, triples, triples, none, floats, ints, floats)
    said.append(name)
print(",".join(said))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built in a copy of the files that git knows, so that nothing of this tree's own build is used."""
    copy = tmp_path_factory.mktemp("source")
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    tools = copy / "tools"  # an environment of its own: this one stays as it is
    command = ["make", "wheel", f"VENV={tools}", f"PYTHON={sys.executable}"]
    made = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    (found,) = (copy / "dist").glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """A new environment with nothing but the wheel and what it needs."""
    folder = tmp_path_factory.mktemp("clean") / "venv"
    venv.create(folder, with_pip=True)
    subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "--quiet", wheel], check=True)
    return folder / "bin"


def run(installed: Path, *command: str) -> str:
    """Without a compiler: only the environment's own commands are on the path."""
    environment = {"PATH": str(installed), "HOME": str(installed), "LANG": "C.UTF-8"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=installed)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_it_is_tagged_for_systems_older_than_this_one(wheel):
    assert f"manylinux_2_34_{os.uname().machine}" in wheel.name, wheel.name


def test_it_runs_every_variant_without_a_compiler(installed):
    from quire.devices.cpu.bindings import native

    said = run(installed, str(installed / "python"), "-c", RUNS_ALL_VARIANTS).strip().split(",")
    assert said == native().variants()


def test_its_command_works_there(installed):
    assert "kernels" in run(installed, str(installed / "quire"), "doctor")


def test_what_an_image_has_of_it_fits_into_200_mb(installed):
    """Beside Python and the system, which take 150; the image leaves out pip and the tests of packages."""
    files = (path for path in installed.parent.rglob("*") if path.is_file() and not path.is_symlink())
    assert sum(path.stat().st_size for path in files if not {"tests", "pip"} & set(path.parts)) < 200e6
