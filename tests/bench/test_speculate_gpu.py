"""`quire bench speculate-gpu`: the text of its model is known, and its drafter has the given share of errors."""

from __future__ import annotations

import json
from argparse import Namespace
from array import array
from types import SimpleNamespace

import numpy as np
import pytest

from quire.bench import speculate_gpu
from quire.bench.engines import random_models
from quire.bench.engines.predictable_model import HEAD_FACTOR, KnowingDrafter, ShiftedRows
from tests.devices.cpu.programs import HAS_NATIVE

pytestmark = pytest.mark.device
SMALL = {"hidden_size": 128, "intermediate_size": 128, "vocab_size": 600, "head_dim": 32}


def test_the_head_prefers_the_next_token():
    table, head = ShiftedRows("embed", (300, 256)), ShiftedRows("head", (300, 256), -1, HEAD_FACTOR)
    assert len(table.data) == table.num_bytes
    scores = table.dequantize() @ head.dequantize().T
    assert scores.argmax(1).tolist() == [*range(1, 300), 0]
    assert np.sort(scores, 1)[:, -2].max() < 0.6 * scores.max(1).min()


@pytest.mark.parametrize("acceptance", [0.0, 0.7, 1.0])
def test_the_drafter_is_right_at_the_given_rate(acceptance):
    drafter, text = KnowingDrafter(600, acceptance), SimpleNamespace(sample_id="a", tokens=array("I", [3, 598]))
    right = [599, 0, 1, 2, 3]
    drafts = [drafter.propose([text], 5)[0].tokens for _ in range(400)]
    share = np.mean([list(draft) for draft in drafts] == np.array(right))
    assert share == pytest.approx(acceptance, abs=0.04)


@pytest.mark.skipif(not HAS_NATIVE, reason="the extension was not built")
def test_runs_alternate_and_give_a_line_for_each_batch(monkeypatch, capsys):
    monkeypatch.setitem(random_models.SHAPES, "tiny", random_models.SHAPES["tiny"] | SMALL)
    options = [
        "--shape",
        "tiny",
        "--device",
        "cpu",
        "--batch",
        "1,3",
        "--prompt",
        "9",
        "--output",
        "20",
        "--pairs",
        "1",
    ]
    speculate_gpu.main(Namespace(rest=options))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["batch"] for line in lines] == [1, 3]
    assert all(line["off_tokens_per_s"] > 0 and line["ratio"] > 0 for line in lines)
