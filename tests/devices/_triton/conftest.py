"""Where there is no accelerator, kernels run on the CPU through Triton's interpreter: it must be asked for before they
are imported, and this file is read before the tests are."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
tl = pytest.importorskip("triton.language")


@pytest.fixture(scope="session")
def place() -> str:
    """Where tensors of a test live: the device of torch that kernels run on here."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="session", autouse=True)
def whole_interpreter() -> None:
    """Three things that Triton 3.6's interpreter does not do.

    It keeps a scalar as an array of one number, which numpy 2.4 does not take for an end of `range`. It multiplies
    bfloat16 as the whole numbers that its bits are. And a row of a product depends on the row's place, by a library
    for CPUs: on an accelerator it does not.
    """
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_with_index(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def numbers(x: Any) -> Any:
        return (x.data.astype(np.uint32) << 16).view(np.float32) if x.dtype == tl.bfloat16 else x.data

    def multiply(self: Any, a: Any, b: Any, sums: Any, *_: Any) -> Any:
        rows = np.matmul(numbers(a)[:, None, :], numbers(b), dtype=sums.data.dtype)
        return interpreter.TensorHandle(rows[:, 0] + sums.data, sums.dtype.scalar)

    interpreter._patch_lang_tensor = patch_with_index
    interpreter.InterpreterBuilder.create_dot = multiply
