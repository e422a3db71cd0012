"""One stream of our engine is measured with the share of a step that is not the model's."""

from __future__ import annotations

import pytest

from quire.bench.engines.single_stream import measure_single_stream
from tests.devices.cpu.programs import HAS_NATIVE

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(not HAS_NATIVE, reason="the extension was not built")]


def test_rates_and_overhead_are_measured(model_file):
    stream = measure_single_stream(str(model_file), 49152, 1)
    assert len(stream.prompt_rates) == len(stream.decode_rates) == len(stream.overheads) == 1
    assert stream.prompt_rates[0] > 0 and stream.decode_rates[0] > 0
    assert abs(stream.overheads[0]) < 1, "negative if the first token is received late"
