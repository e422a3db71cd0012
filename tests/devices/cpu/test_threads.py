"""A step never uses more threads than the system allows, and works with several Python threads and after a fork."""

from __future__ import annotations

import os
import threading
from dataclasses import replace

import numpy as np
import pytest

from quire.devices.cpu.threads import allowed_threads, cgroup_quota, pool_for
from quire.ops.batch import Batch, RowPart
from tests.devices.cpu.programs import HAS_NATIVE, LIMITS, lower, quantized_model, session
from tests.models.toys import make_toy, some_tokens

needs_native = pytest.mark.skipif(not HAS_NATIVE, reason="the extension was not built")


@pytest.mark.pure
@pytest.mark.parametrize(
    "membership, files, expected",
    [
        ("0::/app/web\n", {"app/web/cpu.max": "150000 100000\n", "app/cpu.max": "max 100000\n"}, 1.5),
        ("0::/app/web\n", {"app/web/cpu.max": "max 100000\n", "app/cpu.max": "50000 100000\n"}, 0.5),
        ("0::/\n", {"cpu.max": "400000 100000\n"}, 4.0),
        ("0::/of/the/host\n", {"cpu.max": "300000 100000\n"}, 3.0),
        (
            "3:cpu,cpuacct:/box\n",
            {"cpu/box/cpu.cfs_quota_us": "250000\n", "cpu/box/cpu.cfs_period_us": "100000\n"},
            2.5,
        ),
        ("3:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, float(1 << 20)),
        ("0::/\n", {"cpu.max": "nonsense\n"}, float(1 << 20)),
        ("", {}, float(1 << 20)),
    ],
)
def test_the_quota_is_that_of_the_strictest_group(tmp_path, membership, files, expected):
    (tmp_path / "membership").write_text(membership)
    for name, text in files.items():
        file = tmp_path / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert cgroup_quota(tmp_path / "cgroup", tmp_path / "membership") == expected


@pytest.mark.pure
def test_no_more_threads_than_processors():
    assert 1 <= allowed_threads() <= len(os.sched_getaffinity(0))

    class FakeNative:
        Pool = staticmethod(lambda num_threads: num_threads)

    assert pool_for(FakeNative, 1000) == pool_for(FakeNative, None) == allowed_threads()  # type: ignore[arg-type]
    assert pool_for(FakeNative, 1) == 1  # type: ignore[arg-type]


@pytest.mark.device
@needs_native
def test_steps_of_several_python_threads_take_turns():
    model = quantized_model("q4_1")
    programs = [lower(model) for _ in range(3)]
    batch = Batch.of([RowPart(some_tokens(40), 0, [3, 1, 2])], 16)
    expected, found = programs[0].launch(batch).result().logits, []

    def work(program):
        for _ in range(30):
            found.append(np.array_equal(program.launch(batch).result().logits, expected))

    threads = [threading.Thread(target=work, args=(program,)) for program in programs for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 180


@pytest.mark.device
@needs_native
@pytest.mark.filterwarnings("ignore:This process")
def test_a_forked_child_computes_the_same():
    model, tokens = quantized_model("q4_1"), some_tokens(40)
    program = lower(model)
    expected = session(program, model).step({"a": tokens})["a"]
    child = os.fork()
    if child == 0:
        same = np.array_equal(session(program, model).step({"a": tokens})["a"], expected)
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.device
@needs_native
def test_two_threads_weigh_inputs_of_experts_without_overwriting_what_the_other_reads():
    """Rows of weighted inputs are narrower than those of the router that were in the same buffer."""
    model, tokens = make_toy("llama4").draw(), some_tokens(56)
    limits = replace(LIMITS, kv_dtype="f32")
    program = lower(model, limits, fuse=False, num_threads=2)
    expected = session(lower(model, limits, fuse=False, num_threads=1), model).step({"a": tokens})["a"]
    for _ in range(5):
        texts = session(program, model)
        pieces = [texts.step({"a": tokens[at : at + 7]})["a"] for at in range(0, len(tokens), 7)]
        assert np.array_equal(np.concatenate(pieces), expected)
