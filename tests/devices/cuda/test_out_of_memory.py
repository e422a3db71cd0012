"""A step without enough memory raises OutOfDeviceMemory, and leaves the state of other rows unchanged."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch

from quire.devices.cuda import program as programs
from quire.devices.cuda.device import CudaDevice
from quire.devices.cuda.out_of_memory import convert_out_of_memory, is_out_of_memory
from quire.devices.cuda.program import CudaProgram
from quire.devices.facts import DeviceUnavailable
from quire.types.errors import OutOfDeviceMemory
from quire.types.request import SamplingParams
from tests.devices.cuda.models import LIMITS, CudaDriver, Texts, draws_of, lowered, random_llama, small
from tests.models.toys import some_tokens

pytestmark = pytest.mark.device

NAME = "qwen3"  # of one layer
PROMPT = some_tokens(21)
GREEDY = SamplingParams(temperature=0.0, max_tokens=4)


class Failing:
    """An instruction that runs out of memory `count` times."""

    def __init__(self, count: int = 1) -> None:
        self.left = count

    def __call__(self, run: object) -> None:
        self.left -= 1
        if self.left >= 0:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has ...")


@pytest.mark.parametrize(
    "error, is_one",
    [
        (torch.OutOfMemoryError("CUDA out of memory."), True),
        (RuntimeError("Triton Error [CUDA]: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_out_of_memory_is_distinguished_from_other_errors(error, is_one):
    def fails() -> None:
        raise error

    assert is_out_of_memory(error) is is_one
    with pytest.raises(OutOfDeviceMemory if is_one else type(error)):
        convert_out_of_memory(fails)


def test_a_capture_that_failed_for_lack_of_memory_is_out_of_memory():
    try:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        finally:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
    except RuntimeError as error:
        assert is_out_of_memory(error)


def test_the_tensors_of_the_step_are_freed_before_the_error_is_raised():
    references: list[weakref.ref[torch.Tensor]] = []

    def fails() -> None:
        tensor = torch.zeros(4)
        references.append(weakref.ref(tensor))
        raise torch.OutOfMemoryError("CUDA out of memory.")

    gc.disable()
    try:
        convert_out_of_memory(fails)
    except OutOfDeviceMemory as error:
        assert references[0]() is None and error.__context__ is None
    finally:
        gc.enable()


def test_a_model_whose_largest_step_does_not_fit_is_not_loaded(place, monkeypatch):
    def fails(*_):
        raise OutOfDeviceMemory

    monkeypatch.setattr(CudaDevice, "_fitting", fails)
    with pytest.raises(DeviceUnavailable, match="max_step_tokens"):
        lowered(small(NAME).draw(), place, replace(LIMITS, num_blocks=0))


def failing_last(program: CudaProgram, count: int = 1) -> None:
    """Make the program fail before its head: all KV is written by then."""
    program.instructions.insert(len(program.instructions) - 1, Failing(count))


def test_a_step_that_failed_can_be_launched_again(place):
    program = lowered(small(NAME).draw(), place, dtype="f32")
    texts, wanted = Texts(program), Texts(lowered(small(NAME).draw(), place, dtype="f32"))
    assert np.array_equal(texts.step({0: PROMPT[:9], 1: PROMPT[:4]}), wanted.step({0: PROMPT[:9], 1: PROMPT[:4]}))
    batch = texts.batch({0: PROMPT[9:10], 1: PROMPT[4:12]})
    failing_last(program)
    with pytest.raises(OutOfDeviceMemory):
        program.launch(batch)
    again = program.launch(batch).result().logits
    assert np.array_equal(again, wanted.step({0: PROMPT[9:10], 1: PROMPT[4:12]}))


def test_tokens_sampled_earlier_are_kept_on_the_device(place):
    """A row continues with its token on the device."""
    program = lowered(small(NAME).draw(), place, dtype="f32")
    texts = Texts(program)
    best = int(Texts(program).step({0: PROMPT[:9]}).argmax())
    assert program.launch(texts.batch({0: PROMPT[:9]}, draws=draws_of([5]))).result().tokens.tolist() == [best]
    batch = replace(texts.batch({0: [best]}), token_ids=np.array([-6], np.int32), draws=draws_of([5]))
    failing_last(program)
    with pytest.raises(OutOfDeviceMemory):
        program.launch(batch)
    alone = Texts(lowered(small(NAME).draw(), place, dtype="f32"))
    expected = int(alone.step({0: [*PROMPT[:9], best]}).argmax())
    assert program.launch(batch).result().tokens.tolist() == [expected]


def test_one_request_fails_and_the_other_has_the_same_output_as_alone(place):
    alone, driver = (CudaDriver(place, small(NAME).checkpoint) for _ in range(2))
    alone.submit("it", PROMPT, GREEDY)
    alone.run()
    driver.submit("it", PROMPT, GREEDY)
    driver.step()
    driver.submit("large", [7, *some_tokens(40)], GREEDY)
    failing_last(driver.program.inner, 2)
    driver.run()
    assert isinstance(driver.records["large", 0].error, OutOfDeviceMemory)
    assert driver.tokens("it") == alone.tokens("it")


def test_without_memory_for_a_graph_its_steps_run_without_one(place, monkeypatch, caplog):
    program = lowered(small(NAME).draw(), place, dtype="f32")
    texts, wanted = Texts(program), Texts(lowered(small(NAME).draw(), place, dtype="f32", captures=False))
    tried = []

    def fails(whole, stream, pool, layout):
        tried.append(layout.sizes.rows)
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(programs, "capture", fails)
    program.captures = True
    for each in (texts, wanted):
        each.step({0: PROMPT[:5], 1: PROMPT[:3]})
    for token in PROMPT[5:10]:
        assert np.array_equal(texts.step({0: [token], 1: [token]}), wanted.step({0: [token], 1: [token]}))
    assert tried == [2] and caplog.text.count("steps of 2 tokens") == 1
    assert not program.use_idle_time() and tried == [2]  # nothing is captured in idle time when memory is short


@pytest.mark.gpu
def test_a_prompt_without_memory_on_a_full_gpu_fails_alone(place):
    """Torch may allocate 8 MB more; a step of 4,000 tokens needs a hundred."""
    checkpoint, long = random_llama(1024, num_layers=2, context=8192), replace(GREEDY, max_tokens=64)
    settings = {"max_step_tokens": 4096, "num_blocks": 600, "max_context": 8192, "stream_gap": 60.0}
    alone, driver = (CudaDriver(place, checkpoint, **settings) for _ in range(2))
    for name, each in (("first", alone), ("second", alone), ("first", driver), ("second", driver)):
        each.submit(name, some_tokens(30 + len(name)), long)
    alone.run()
    for _ in range(8):
        driver.step()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    whole = torch.cuda.get_device_properties(0).total_memory
    try:
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (8 << 20)) / whole)
        driver.submit("large", [7, *some_tokens(4000)], long)
        driver.run()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert isinstance(driver.records["large", 0].error, OutOfDeviceMemory)
    assert all(driver.tokens(name) == alone.tokens(name) for name in ("first", "second"))
    driver.submit("again", [7, *some_tokens(4000)], long)
    assert driver.run().records["again", 0].error is None
