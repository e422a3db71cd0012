"""`@op` turns a plain numpy function into an op with a shape rule, examples and a tolerance.

The signature of the reference is all that a graph, an interpreter or a device needs:
    positional   arrays. A name that is a field of `Batch` is that array of the step; `batch` is the whole step; `cache`
                 is the layer's state; a name declared in `weights=` is bound from the checkpoint; the rest are inputs.
    keyword-only attributes, fixed when the graph is drawn.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.ops.batch import Batch

Array = NDArray[Any]
Shape = tuple[int | str, ...]  # a str is a size known only when a step runs: "tokens", "logits"
Args = dict[str, Any]

_BATCH_FIELDS = frozenset(field.name for field in fields(Batch))
_OPS: dict[str, Op] = {}


class ShapeError(ValueError):
    """An array has the wrong shape for an op: the parameter, the expected shape, the actual one. `*` is any size."""

    def __init__(self, parameter: str, expected: tuple[int | str, ...], found: tuple[int | str, ...]) -> None:
        super().__init__(f"{parameter}: expected {format_shape(expected)}, found {format_shape(found)}")
        self.parameter, self.expected, self.found = parameter, expected, found


class Op:
    """One op. Call it to run its reference."""

    def __init__(self, reference: Callable[..., Any], weights: tuple[str, ...], tolerance: Mapping[str, float]) -> None:
        self.name: str = reference.__name__
        self.reference = reference
        self.tolerance = dict(tolerance)  # of `relative_error`, by the number format of the arrays
        self.weights = weights
        parameters = inspect.signature(reference).parameters.values()
        positional = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
        self.reads = tuple(name for name in positional if name in _BATCH_FIELDS)
        self.uses_batch = "batch" in positional
        self.uses_cache = "cache" in positional
        special = {*self.reads, *weights, "batch", "cache"}
        self.inputs = tuple(name for name in positional if name not in special)
        self.attrs = tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
        self._rule: Callable[..., Shape | list[Shape]] | None = None
        self._examples: Callable[[ArrayMaker], Iterator[Args]] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.reference(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    def shape(self, rule: Callable[..., Shape | list[Shape]]) -> Callable[..., Shape | list[Shape]]:
        """Decorator: the rule takes the reference's arguments, with shapes in place of arrays (and no `batch`)."""
        self._rule = rule
        return rule

    def examples(self, source: Callable[[ArrayMaker], Iterator[Args]]) -> Callable[[ArrayMaker], Iterator[Args]]:
        """Decorator: yields arguments by name. Arrays come from `make`, which decides their number format."""
        self._examples = source
        return source

    def infer(self, **args: Any) -> tuple[Shape, ...]:
        """Return the shapes of the outputs. Raises ShapeError if a parameter does not fit."""
        if self._rule is None:
            raise TypeError(f"op {self.name} has no shape rule")
        out = self._rule(**args)
        return tuple(out) if isinstance(out, list) else (out,)

    def example_args(self, dtype: str = "f32", seed: int = 0) -> Iterator[Args]:
        """Yield the arguments of every example. Arrays are float32, with values that `dtype` can hold exactly."""
        if self._examples is None:
            raise TypeError(f"op {self.name} has no examples")
        return self._examples(ArrayMaker(np.random.default_rng(seed), dtype))


class ArrayMaker:
    """Makes the arrays of examples: normal values, rounded to what a number format can hold."""

    def __init__(self, rng: np.random.Generator, dtype: str) -> None:
        self.rng, self.dtype = rng, dtype

    def __call__(self, *shape: int) -> Array:
        return round_to(self.rng.standard_normal(shape, dtype=np.float32), self.dtype)


def op(*, tolerance: Mapping[str, float], weights: tuple[str, ...] = ()) -> Callable[[Callable[..., Any]], Op]:
    """Register a reference under its function name."""

    def register(reference: Callable[..., Any]) -> Op:
        if reference.__name__ in _OPS:
            raise TypeError(f"there are two ops named {reference.__name__}")
        _OPS[reference.__name__] = Op(reference, weights, tolerance)
        return _OPS[reference.__name__]

    return register


def find_op(name: str) -> Op:
    """Return the op of this name."""
    if name not in _OPS:
        all_ops()
    return _OPS[name]


def all_ops() -> tuple[Op, ...]:
    """Return the ops of every file in this package, sorted by name."""
    package = importlib.import_module("quire.ops")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"quire.ops.{module.name}")
    return tuple(_OPS[name] for name in sorted(_OPS))


def expect(parameter: str, found: Shape, *expected: int | str) -> None:
    """Raise ShapeError unless `found` is `expected`, where `*` is any size."""
    if len(found) != len(expected) or any(e not in (f, "*") for e, f in zip(expected, found, strict=True)):
        raise ShapeError(parameter, expected, found)


def format_shape(shape: tuple[int | str, ...]) -> str:
    """Format a shape as `[tokens, 64]`."""
    return f"[{', '.join(map(str, shape))}]"


def relative_error(actual: Array, expected: Array) -> float:
    """Return the largest difference over the largest expected magnitude. Tolerances limit this number."""
    if actual.shape != expected.shape:
        raise ShapeError("actual", expected.shape, actual.shape)
    if not expected.size:
        return 0.0
    difference = np.abs(actual.astype(np.float64) - expected.astype(np.float64)).max()
    return float(difference / max(float(np.abs(expected).max()), 1e-30))


def round_to(x: Array, dtype: str) -> Array:
    """Round every value of float32 `x` to the nearest one that `dtype` can hold."""
    if dtype == "f32":
        return x
    if dtype == "f16":
        return x.astype(np.float16).astype(np.float32)
    if dtype == "bf16":  # numpy has no bfloat16: keep the upper 16 bits, ties to even
        bits = x.view(np.uint32)
        rounded: Array = ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
        return rounded
    raise ValueError(f"unknown number format {dtype!r}: f32, f16 or bf16")
