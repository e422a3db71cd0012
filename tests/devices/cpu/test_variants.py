"""Every variant of the kernels against the portable one, on the architecture that it is for.

Those of another architecture are built by a cross compiler and run by an emulator, which knows all their instructions.
What is compared, and how closely, is in compare_variants.cpp.
"""

from __future__ import annotations

import platform
import shutil
import subprocess

import pytest

from tests.devices.cpu.separate_build import build

pytestmark = [pytest.mark.device, pytest.mark.slow, pytest.mark.timeout(1200)]

ARM = ["-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64"]
MACHINES = {
    # compiler: options of CMake, what runs it, variants that must be there
    "g++": ([], [], ["baseline"]),
    "clang++": ([], [], ["baseline"]),
    "aarch64-linux-gnu-g++": (ARM, ["qemu-aarch64-static", "-cpu", "max"], ["i8mm", "dotprod", "neon", "baseline"]),
}


@pytest.mark.parametrize("compiler", MACHINES)
def test_variants_agree_with_the_portable_one_and_with_themselves_however_work_is_cut(compiler, tmp_path):
    options, runner, expected = MACHINES[compiler]
    if runner and platform.machine() == "aarch64":
        pytest.skip("g++ makes and runs them here")
    missing = [tool for tool in ("cmake", compiler, *runner[:1]) if not shutil.which(tool)]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    said = build(tmp_path, "-DQUIRE_COMPARE_VARIANTS=ON", f"-DCMAKE_CXX_COMPILER={compiler}", *options)
    assert "warning:" not in said, said[-6000:]
    ran = subprocess.run([*runner, str(tmp_path / "compare_variants")], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, "\n".join(line for line in ran.stdout.splitlines() if "FAILED" in line) + ran.stderr
    usable = ran.stdout.splitlines()[0].split(": ")[1].split()
    assert set(expected) <= set(usable), usable
