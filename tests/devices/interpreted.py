"""Without an accelerator, kernels run on the CPU through Triton's interpreter, which must be enabled before they are
imported. The conftests of folders with such tests import this file; pytest reads them before the tests."""

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
    """Parameters that only run on a GPU: in the interpreter they would be slow and show nothing new."""
    return [pytest.param(value, marks=pytest.mark.gpu) for value in values]


def in_interpreter(*values: Any) -> list[Any]:
    """Parameters that only run in the interpreter: a GPU would compile kernels for each and show nothing new."""
    return [pytest.param(value, marks=pytest.mark.interpreted) for value in values]


@pytest.fixture(scope="session")
def place() -> str:
    """The torch device that kernels run on."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="session", autouse=True)
def whole_interpreter() -> None:
    """Patch Triton 3.6's interpreter: four errors, and two things that take half of its time.

    It keeps a scalar as an array of one number, which numpy 2.4 does not accept as an end of `range`. It multiplies
    bfloat16 by the integer values of its bits. It loses half of a number that is rounded up to a power of two. And a
    row of a product depends on its index, because of the CPU library; on an accelerator it does not.

    It patches the language at every call of every function: here once. And it computes every integer sum twice, to
    detect overflows, which cannot occur in shapes this small.
    """
    if torch.cuda.is_available():
        return
    from triton.runtime import interpreter

    patch, convert = interpreter._patch_lang_tensor, interpreter._convert_float
    kinds = {"fp8e4nv": torch.float8_e4m3fn, "bf16": torch.bfloat16, "fp16": torch.float16}

    def patch_with_index(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def convert_as_torch(x: Any, source: Any, target: Any, mode: Any) -> Any:
        if source.name != "fp32" or target.name not in kinds:
            return convert(x, source, target, mode)
        rounded = torch.from_numpy(np.ascontiguousarray(x)).to(kinds[target.name])
        return rounded.view(torch.uint8 if target.name == "fp8e4nv" else torch.int16).numpy()

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
