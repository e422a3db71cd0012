"""Items of products are smaller where many threads share few columns; that changes no bit."""

from __future__ import annotations

import numpy as np
import pytest

from quire.devices.cpu import device
from tests.devices.cpu.programs import HAS_NATIVE, lower, quantized_model, session
from tests.models.toys import some_tokens

pytestmark = [pytest.mark.device, pytest.mark.skipif(not HAS_NATIVE, reason="the extension was not built")]


@pytest.mark.parametrize("fmt", ["q4_1", "f16"])
def test_the_number_of_threads_changes_no_bit(fmt: str, monkeypatch: pytest.MonkeyPatch):
    model, logits = quantized_model(fmt), []
    for num_threads in (1, 3, 16):
        monkeypatch.setattr(device, "pool_for", lambda module, _, count=num_threads: module.Pool(count))
        texts = session(lower(model), model)
        steps = [texts.step({"a": tokens})["a"] for tokens in (some_tokens(40), [3], some_tokens(7))]
        logits.append(np.concatenate(steps))
    assert all(np.array_equal(each, logits[0]) for each in logits[1:])
