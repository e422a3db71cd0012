"""Where there is no accelerator, kernels run on the CPU through Triton's interpreter: it must be asked for before they
are imported. The conftests of folders with such tests import this file, and are read before the tests are."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
tl = pytest.importorskip("triton.language")


def on_gpu(*values: Any) -> list[Any]:
    """Parameters that only repeat what others show, and wait for a GPU, where kernels are fast."""
    return [pytest.param(value, marks=pytest.mark.gpu) for value in values]


def in_interpreter(*values: Any) -> list[Any]:
    """Parameters that the interpreter is enough for: a GPU compiles kernels for each, and they show it nothing new."""
    return [pytest.param(value, marks=pytest.mark.interpreted) for value in values]


@pytest.fixture(scope="session")
def place() -> str:
    """Where tensors of a test live: the device of torch that kernels run on here."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="session", autouse=True)
def whole_interpreter() -> None:
    """Things that Triton 3.6's interpreter does not do, and two that take half of its time.

    It keeps a scalar as an array of one number, which numpy 2.4 does not take for an end of `range`. It multiplies
    bfloat16 as the whole numbers that its bits are. It loses half of a number that is rounded up to a power of two. And
    a row of a product depends on the row's place, by a library for CPUs: on an accelerator it does not.

    It puts its own functions into the language at every call of every function: here once. And it computes every sum of
    whole numbers a second time, to see whether it overflows, which none does in shapes as small as these.
    """
    if torch.cuda.is_available():
        return
    from triton.runtime import interpreter

    patch, convert = interpreter._patch_lang_tensor, interpreter._convert_float
    kinds = {"fp8e4nv": torch.float8_e4m3fn, "bf16": torch.bfloat16, "fp16": torch.float16}

    def patch_with_index(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def convert_as_torch(x: Any, given: Any, wanted: Any, mode: Any) -> Any:
        if given.name != "fp32" or wanted.name not in kinds:
            return convert(x, given, wanted, mode)
        rounded = torch.from_numpy(np.ascontiguousarray(x)).to(kinds[wanted.name])
        return rounded.view(torch.uint8 if wanted.name == "fp8e4nv" else torch.int16).numpy()

    def numbers(x: Any) -> Any:
        if x.dtype == tl.float8e4nv:
            return torch.from_numpy(np.ascontiguousarray(x.data).view(np.uint8)).view(kinds["fp8e4nv"]).float().numpy()
        return (x.data.astype(np.uint32) << 16).view(np.float32) if x.dtype == tl.bfloat16 else x.data

    def multiply(self: Any, a: Any, b: Any, sums: Any, *_: Any) -> Any:
        rows = np.matmul(numbers(a)[:, None, :], numbers(b), dtype=sums.data.dtype)
        return interpreter.TensorHandle(rows[:, 0] + sums.data, sums.dtype.scalar)

    interpreter._convert_float = convert_as_torch
    interpreter._patch_lang_tensor = patch_with_index
    interpreter.InterpreterBuilder.create_dot = multiply
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)
    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    interpreter._patch_lang = lambda _: SimpleNamespace(restore=lambda: None)
