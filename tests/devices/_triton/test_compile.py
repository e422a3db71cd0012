"""Kernels compile for Hopper, on a machine without a GPU too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.device, pytest.mark.slow]

ATTENTION = {"_attend", "_merge", "_attend_few", "_rope_write", "_attend_rows", "_write"}
ATTENTION |= {"_attend_latent", "_write_latent", "_multiply_heads", "_attend_expanded"}
EXPERTS = {
    "_route",
    "_few_logits",
    "_few_choices",
    "_few_groups",
    "_route_one",
    "_count",
    "_place",
    "_expert_in",
    "_expert_out",
    "_sum",
}

STATES = {"_short_conv", "_write_states", "_delta_steps", "_invert_chunks", "_score_parts", "_invert_stored"}
STATES |= {"_delta_chunks", "_scan_steps", "_scan_chunks", "_log_decay", "_map", "_gated_norm"}
PROGRAMS = [("compile_kernels", ATTENTION), ("compile_experts", EXPERTS), ("compile_states", STATES)]


@pytest.mark.parametrize("program, names", PROGRAMS)
def test_all_kernels_compile(program, names):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    found = subprocess.run(
        [sys.executable, "-m", f"tests.devices._triton.{program}"],
        cwd=Path(__file__).parents[3], env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-2000:]
    assert set(found.stdout.split()) == names
