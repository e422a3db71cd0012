"""The kernels of attention compile for Hopper, on a machine without a GPU too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.device, pytest.mark.slow]


def test_the_kernels_of_attention_and_experts_compile():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    found = subprocess.run(
        [sys.executable, "-m", "tests.devices._triton.compile_kernels"],
        cwd=Path(__file__).parents[3], env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-2000:]
    names = {"_attend", "_merge", "_attend_few", "_rope_write", "_attend_rows", "_write"}
    names |= {"_attend_latent", "_write_latent", "_multiply_heads"}
    names |= {"_expert_in", "_expert_out", "_sum"}
    assert set(found.stdout.split()) == names
