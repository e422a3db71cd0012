"""The peak rates of the machine can be measured for every variant that runs here."""

import pytest

from quire.devices import base
from quire.devices.cpu.bindings import native
from tests.devices.cpu.programs import HAS_NATIVE

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not HAS_NATIVE, reason="the extension was not built"),
]


def test_the_device_measures_its_peaks():
    device = base.open("cpu")
    peaks = device.peaks(seconds=0.02)
    assert peaks is not None and peaks.kernels == native().variants()[0] and peaks.num_threads >= 1
    assert peaks.read_bytes > 1e8 and peaks.multiply_adds > 1e8


def test_every_variant_has_its_own_loops():
    module = native()
    pool = module.Pool(1)
    for variant in module.variants():
        assert module.multiply_adds_per_second(variant, pool, 0.01) > 0
        assert module.read_bytes_per_second(variant, pool, 0.01) > 0


def test_a_variant_that_cannot_run_here_is_refused():
    module = native()
    for measure in (module.multiply_adds_per_second, module.read_bytes_per_second):
        with pytest.raises(ValueError, match="no kernels for this machine"):
            measure("z80", module.Pool(1), 0.01)
