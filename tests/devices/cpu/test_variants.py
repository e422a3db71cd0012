"""Every variant of the kernels against the portable one, on its architecture.

Variants of another architecture are built by a cross compiler and run by an emulator, which has all instructions. What
is compared, and with which tolerances, is in compare_variants.cpp.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.devices.cpu.separate_build import build

pytestmark = [pytest.mark.device, pytest.mark.slow, pytest.mark.timeout(3600)]


@dataclass(frozen=True)
class Machine:
    """The target of a build, and how its programs are run here."""

    compiler: str
    symbols: str = "nm"
    runner: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    variants: frozenset[str] = frozenset({"baseline"})  # that must be usable

    def missing(self) -> list[str]:
        return [tool for tool in ("cmake", self.compiler, self.symbols, *self.runner[:1]) if not shutil.which(tool)]


ARM = Machine(
    compiler="aarch64-linux-gnu-g++",
    symbols="aarch64-linux-gnu-nm",
    runner=("qemu-aarch64-static", "-cpu", "max"),
    options=("-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64"),
    variants=frozenset({"i8mm", "dotprod", "neon", "baseline"}),
)


@pytest.fixture(scope="module", params=[Machine("g++"), Machine("clang++"), ARM], ids=lambda machine: machine.compiler)
def built(request, tmp_path_factory) -> Iterator[tuple[Machine, Path]]:
    """Build the program that compares variants, for a machine."""
    machine: Machine = request.param
    if machine.missing():
        pytest.skip(f"needs {', '.join(machine.missing())}")
    if machine is ARM and platform.machine() == "aarch64":
        pytest.skip("g++ builds them here")
    folder = tmp_path_factory.mktemp("variants")
    compiler = f"-DCMAKE_CXX_COMPILER={machine.compiler}"
    output = build(folder, "-DQUIRE_COMPARE_VARIANTS=ON", compiler, *machine.options)
    assert "warning:" not in output, output[-6000:]
    yield machine, folder


def test_variants_agree_with_the_portable_one_and_with_themselves_for_any_split_of_work(built):
    machine, folder = built
    command = [*machine.runner, str(folder / "compare_variants")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, "\n".join(line for line in ran.stdout.splitlines() if "FAILED" in line) + ran.stderr
    usable = ran.stdout.splitlines()[0].split(": ")[1].split()
    assert machine.variants <= set(usable)


def test_no_variant_has_a_weak_symbol_that_the_linker_could_merge(built):
    machine, folder = built
    objects = [str(path) for path in folder.rglob("kernels.cpp.o")]
    command = [machine.symbols, "--defined-only", *objects]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert len(objects) > 1 and listed.count("KERNELS") == len(objects)  # the table of each
    assert [line for line in listed.splitlines() if " W " in line] == []
