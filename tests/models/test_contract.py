"""The contract of every architecture: its toys give the logits and tokens of transformers on every device.

The interpreter is compared in test_parity.py, CUDA in tests/devices/cuda/test_contract.py. A new file of cases needs no
edit here.
"""

from __future__ import annotations

import ast
import inspect
import sys

import numpy as np
import pytest

from quire.devices import base
from quire.devices.cpu.bindings import native
from quire.devices.facts import DeviceUnavailable, available
from quire.models.draw import DrawnModel
from quire.models.registry import Architecture, all_architectures
from quire.ops.cache import State
from quire.ops.registry import relative_error
from quire.types.request import SamplingParams
from tests.devices.cpu.programs import session
from tests.engine.driver import Driver, expected
from tests.models.sources import KINDS
from tests.models.toys import (
    CASES,
    CONVERSIONS,
    ENCODERS,
    FIRST_CASES,
    ORIGINALS,
    SOURCES,
    make_toy,
    some_tokens,
)

ARCHITECTURES = pytest.mark.parametrize("arch", ORIGINALS, ids=lambda arch: arch.name)
ALL = pytest.mark.parametrize("arch", [*ORIGINALS, *ENCODERS, *SOURCES], ids=lambda arch: arch.name)
NEEDS_NATIVE = pytest.mark.skipif(native() is None, reason="the extension was not built")
LENGTHS = (1, 17, 300, 1000)
NUM_BLOCKS = 80
LIMITS = base.Limits(max_tokens=1000, max_rows=4, max_logits=1000, max_blocks=66, num_blocks=NUM_BLOCKS, kv_dtype="f32")
MAX_LINES = 100  # of a file of an architecture, with its tables of names and keys


@pytest.mark.pure
@ARCHITECTURES
def test_every_architecture_has_cases(arch: Architecture):
    assert arch.name in {case.kind for case in CASES.values()}, "add a file to tests/models/cases"


@pytest.mark.pure
def test_every_case_is_of_an_architecture():
    assert {case.kind for case in CASES.values()} <= {arch.name for arch in all_architectures()}


@pytest.mark.pure
@pytest.mark.parametrize("arch", [each for each in ORIGINALS if each.gguf], ids=lambda arch: arch.name)
def test_every_gguf_architecture_has_a_conversion_and_a_case(arch: Architecture):
    assert arch.name in CONVERSIONS, f"add GGUF = Conversion({arch.gguf!r}, …) to its file in tests/models/cases"
    assert CONVERSIONS[arch.name].arch == arch.gguf
    assert any(case.in_gguf for case in CASES.values() if case.kind == arch.name)


# Every second case of those that are not the first of their architecture; the interpreter runs all of them.
OTHERS = [name for name in CASES if name not in FIRST_CASES]
QUICK_CASES = [pytest.param(name, marks=[pytest.mark.slow] if name in OTHERS[1::2] else []) for name in CASES]


def cpu_program(model: DrawnModel, *, fuse: bool) -> base.Program:
    return base.open("cpu").lower(model.graph, model.weights, LIMITS, base.LoweringOptions(dtype="f32", fuse=fuse))


@pytest.mark.device
@pytest.mark.parametrize("case", QUICK_CASES)
@NEEDS_NATIVE
def test_logits_on_the_cpu_are_those_of_transformers(case: str, caplog: pytest.LogCaptureFixture):
    """Plain and fused; the longest prompt in one step and in chunks, with the same bits."""
    model = make_toy(case).draw()
    programs = {fuse: cpu_program(model, fuse=fuse) for fuse in (False, True)}
    caplog.clear()
    for length in (each for each in LENGTHS if CASES[case].min_tokens <= each <= CASES[case].max_tokens):
        tokens, found = some_tokens(length), {}
        right = make_toy(case).expected_logits(tokens)
        for fuse, program in programs.items():
            found[fuse] = session(program, model, length, NUM_BLOCKS).step({"a": tokens})["a"]
            assert relative_error(found[fuse], right) < 1e-4, (length, fuse)
    texts = session(programs[True], model, 3, NUM_BLOCKS)
    pieces = [texts.step({"a": tokens[at : at + 333]})["a"] for at in range(0, len(tokens), 333)]
    assert np.array_equal(np.concatenate(pieces), found[True])


class CpuDriver(Driver):
    """An engine over the CPU device."""

    device_name = "cpu"


@pytest.mark.device
@pytest.mark.parametrize("case", FIRST_CASES)
@NEEDS_NATIVE
def test_chunks_hits_preemption_and_mixed_batches_change_no_token_on_the_cpu(case: str):
    sampling = SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True)
    first = some_tokens(max(37, CASES[case].min_tokens))
    prompts = {
        "first": first,
        "the same": first,
        "a longer one": [*first[:33], *some_tokens(20)],
        "one token": [5],
        "others": some_tokens(50),
        "more": some_tokens(21),
    }
    alone = CpuDriver(case, max_rows=1, num_blocks=200, max_step_tokens=64)
    busy = CpuDriver(case, max_step_tokens=13, max_rows=5, num_blocks=13, num_states=16)
    for driver in (alone, busy):
        for name, prompt in prompts.items():
            driver.submit(name, prompt, sampling)
            driver.step()
        driver.run()
    assert alone.tokens("first") == expected(case, first, 32)
    assert {name: busy.tokens(name) for name in prompts} == {name: alone.tokens(name) for name in prompts}
    keeps_tokens = any(not isinstance(spec, State) for spec in make_toy(case).draw().graph.caches)
    assert bool(busy.core.counters().num_preemptions) == keeps_tokens  # states alone never fill a cache of blocks
    for name in ("again", "once more"):
        busy.submit(name, first, sampling)
        busy.run()
        assert busy.tokens(name) == alone.tokens("first")
    assert busy.records["once more", 0].num_hit
    assert max(tokens for tokens, _, _ in busy.program.batches) <= 13
    assert max(rows for _, rows, _ in busy.program.batches) >= 3


@pytest.mark.pure
@pytest.mark.parametrize("arch", SOURCES, ids=lambda arch: arch.name)
def test_every_encoder_decoder_has_a_toy_and_its_gguf_names(arch: Architecture):
    assert arch.name in {kind for kind, _ in KINDS.values()}, "add it to tests/models/sources.py"
    stored = [
        entry.gguf for names in (arch.names, arch.source.names, arch.source.pairs) for entry in names.entries.values()
    ]
    assert arch.gguf is None or None not in stored


@pytest.mark.pure
@ALL
def test_an_architecture_is_a_declaration(arch: Architecture):
    """A short file, whose drawing function has one loop at most, over layers; devices lower it, nothing runs it."""
    source = inspect.getsource(sys.modules[arch.draw.__module__])
    assert len(source.splitlines()) <= MAX_LINES
    (draw,) = (node for node in ast.parse(source).body if getattr(node, "name", "") == arch.draw.__name__)
    assert len([node for node in ast.walk(draw) if isinstance(node, ast.For | ast.While)]) <= 1


@pytest.mark.pure
def test_an_unknown_device_is_refused_with_the_known_ones():
    with pytest.raises(DeviceUnavailable, match=r"no device 'abacus'\. Installed are: "):
        base.open("abacus")
    assert "base" not in available()


@pytest.mark.pure
def test_a_device_folder_without_a_device_is_refused(tmp_path, monkeypatch):
    import quire.devices

    (tmp_path / "toaster").mkdir()
    (tmp_path / "toaster" / "__init__.py").write_text('"""Warm."""\n')
    monkeypatch.setattr(quire.devices, "__path__", [*quire.devices.__path__, str(tmp_path)])
    assert "toaster" in available()
    with pytest.raises(DeviceUnavailable, match="'toaster' cannot run models"):
        base.open("toaster")
