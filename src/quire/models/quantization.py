"""Reads `quantization_config` of config.json, and joins the tensors of a quantized checkpoint to matrices.

Which matrices are quantized is read from the tensors; how, from the configuration. Scales of activations
(`input_scale`) and of the KV cache are ignored: a device computes better ones from the actual values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.graph.weight import StoredTensor
from quire.models.errors import BadCheckpoint, UnsupportedModel
from quire.models.values import Values, brief
from quire.quant.int4 import Int4, from_awq, from_gptq, from_packed
from quire.weights.quantized_tensors import GroupedInt4, Mxfp4Tensor, ScaledTensor

Tensors = Mapping[str, StoredTensor]
Array = NDArray[Any]

FP8, AWQ, GPTQ, PACKED, MXFP4 = "fp8", "awq", "gptq", "packed", "mxfp4"
FLOAT8 = "f8_e4m3"
_NOT_WEIGHTS = re.compile(r"\.(input_scale|input_zero_point|output_scale|[qkv]_scale|weight_shape)$")


@dataclass(frozen=True, slots=True)
class Quantization:
    """How a checkpoint's matrices are stored."""

    kind: str  # FP8, AWQ, GPTQ, PACKED, or MXFP4: stacks of experts alone
    ignored: tuple[str, ...] = ()  # modules that are not quantized; see `covers`
    block: tuple[int, int] = (128, 128)  # FP8: rows and columns of a block, where blocks have scales
    group: int = 128  # 4 bits: weights of a row that share a scale; -1: all of them
    zero_offset: int = 1  # GPTQ: to be added to stored zeros
    has_blocks: bool = False  # FP8: the configuration says that blocks have scales

    def covers(self, module: str) -> bool:
        """Return whether the module is quantized.

        `ignored` has full names, parts between dots (`*`: any one part), or `re:` patterns.
        """
        return not any(_matches(name, module) for name in self.ignored)


def _matches(name: str, module: str) -> bool:
    if name.startswith("re:"):
        return re.match(name.removeprefix("re:"), module) is not None
    return re.search(rf"\.{re.escape(name)}\.".replace(r"\*", r"[^.]+"), f".{module}.") is not None


def read_quantization(config: Mapping[str, Any] | None) -> Quantization | None:
    """Read `quantization_config`. None: the weights are not quantized."""
    if not config:
        return None
    c = Values(config, "quantization_config.")
    method = c.text("quant_method", "unknown")
    if method not in _METHODS:
        raise UnsupportedModel(
            f"quantization_config has the quant_method {brief(method)}, which is not supported. "
            f"Supported are: {', '.join(sorted(_METHODS))}."
        )
    return _METHODS[method](c)


def _fp8(c: Values) -> Quantization:
    if (fmt := c.text("fmt", "e4m3")) not in ("e4m3", "float8_e4m3fn"):
        raise c.refusal("fmt", f"'e4m3', as {fmt} weights are not supported")
    ignored = _modules(c, "ignored_layers", "modules_to_not_convert")
    return Quantization(FP8, ignored, _block(c, "weight_block_size"), has_blocks="weight_block_size" in c)


def _mxfp4(c: Values) -> Quantization:
    return Quantization(MXFP4, _modules(c, "modules_to_not_convert"))


def _awq(c: Values) -> Quantization:
    _require_4_bits(c, "bits" if "bits" in c else "w_bit")
    if c.text("version", "gemm").lower() != "gemm":
        layout = brief(c.text("version", ""))
        raise UnsupportedModel(
            f"quantization_config: AWQ weights in the layout {layout} are not supported: only 'gemm' is."
        )
    return Quantization(AWQ, _modules(c, "modules_to_not_convert"), group=_group_size(c, 128))


def _gptq(c: Values) -> Quantization:
    _require_4_bits(c, "bits")
    layouts = {"gptq": 1, "gptq_v2": 0}
    layout = c.text("checkpoint_format", "gptq") or "gptq"
    if layout not in layouts or c.flag("is_marlin_format"):
        raise UnsupportedModel(
            f"quantization_config: GPTQ weights in the layout {brief(layout)} are not supported: "
            f"{', '.join(layouts)} are."
        )
    return Quantization(GPTQ, group=_group_size(c, 128), zero_offset=layouts[layout])


def _compressed(c: Values) -> Quantization:
    """Read compressed-tensors. Groups of modules may differ in scales, but not in the number format."""
    if c.mapping("transform_config"):
        raise c.refusal("transform_config", "left out, as rotated weights are not supported")
    groups = c.table("config_groups")
    schemes = [groups.table(name).table("weights") for name in c.mapping("config_groups")]
    kinds = {(scheme.text("type", "unknown"), scheme.size("num_bits", 0)) for scheme in schemes}
    supported: dict[Any, str] = {("float", 8): FP8, ("int", 4): PACKED}
    if len(kinds) != 1 or not kinds <= set(supported):
        found = ", ".join(f"{kind[:20]} of {bits} bits" for kind, bits in sorted(kinds)) or "no weights"
        raise UnsupportedModel(
            f"quantization_config declares compressed tensors with {found}. Supported are float of 8 bits or int of 4 "
            "bits, one of them for all groups."
        )
    block, group = _block(schemes[0], "block_structure"), _group_size(schemes[0], -1)
    return Quantization(supported[kinds.pop()], _modules(c, "ignore"), block, group)


_METHODS: dict[str, Callable[[Values], Quantization]] = {
    "awq": _awq,
    "compressed-tensors": _compressed,
    "fp8": _fp8,
    "gptq": _gptq,
    "mxfp4": _mxfp4,
}


def _modules(c: Values, *keys: str) -> tuple[str, ...]:
    """Return names of modules. An invalid regular expression is refused here, not when it is first used."""
    names = tuple(name for key in keys for name in c.texts(key) or ())
    for name in names:
        try:
            re.compile(name.removeprefix("re:") if name.startswith("re:") else "")
        except (re.error, RecursionError, OverflowError):
            raise UnsupportedModel(
                f"quantization_config has the pattern {brief(name)}, which is not a valid regular expression."
            ) from None
    return names


def _block(c: Values, key: str) -> tuple[int, int]:
    sizes = c.sizes(key)
    if sizes is None:
        return (128, 128)
    if len(sizes) != 2:
        raise c.refusal(key, "two whole numbers")
    return sizes[0], sizes[1]


def _group_size(c: Values, default: int) -> int:
    """Return how many weights share a scale; -1, and in some files 0: all of a row."""
    size = c.integer_or_none("group_size", least=-1)
    return default if size is None else size or -1


def _require_4_bits(c: Values, key: str) -> None:
    if (bits := c.size(key, 4)) != 4:
        raise UnsupportedModel(
            f"quantization_config: weights of {bits} bits are not supported in this format, only those of 4 bits."
        )


def join_tensors(tensors: Tensors, quantization: Quantization | None) -> Tensors:
    """Join the parts of each quantized matrix to one tensor named `….weight`. Reads none of them."""
    if quantization is None:
        return tensors
    left = {name: tensor for name, tensor in tensors.items() if not _NOT_WEIGHTS.search(name)}
    for name in list(left):
        stem, _, part = name.rpartition(".")
        if part.endswith("_blocks") and quantization.kind == MXFP4:
            left[name] = _mxfp4_stack(name, left)
        elif part == "qweight" and quantization.kind in (AWQ, GPTQ):
            left[f"{stem}.weight"] = _from_words(_Parts(stem, left), quantization)
        elif part == "weight_packed":
            left[f"{stem}.weight"] = _from_packed(_Parts(stem, left))
        elif part in ("weight_scale", "weight_scale_inv") and {name, f"{stem}.weight"} <= left.keys():
            left[f"{stem}.weight"] = _scaled(_Parts(stem, left), part, quantization)
    for name, tensor in left.items():
        if tensor.format == FLOAT8 and not isinstance(tensor, ScaledTensor):
            raise BadCheckpoint(f"The checkpoint lacks the scale of {name}.")
    return left


class _Parts:
    """The tensors of one matrix. Taking one removes it from the checkpoint's tensors."""

    def __init__(self, stem: str, tensors: dict[str, StoredTensor]) -> None:
        self.stem, self._tensors = stem, tensors

    def maybe(self, part: str) -> StoredTensor | None:
        return self._tensors.pop(f"{self.stem}.{part}", None)

    def take(self, part: str) -> StoredTensor:
        found = self.maybe(part)
        if found is None:
            raise BadCheckpoint(f"The checkpoint lacks {self.stem}.{part}.")
        return found

    def take_matrix(self, part: str) -> StoredTensor:
        """Take a part that has rows and columns."""
        found = self.take(part)
        if len(found.shape) != 2:
            raise self.fail(f"its {part} has the shape {list(found.shape)}, which is not a matrix")
        return found

    def fail(self, why: str) -> BadCheckpoint:
        return BadCheckpoint(f"The matrix {self.stem} cannot be read: {why}.")


def _scaled(parts: _Parts, part: str, quantization: Quantization) -> ScaledTensor:
    values, scales = parts.take_matrix("weight"), parts.take(part)
    (rows, columns), (height, width) = values.shape, quantization.block
    if values.format != FLOAT8:
        raise parts.fail(f"its values are {values.format}, and only {FLOAT8} is supported")
    if scales.shape in ((), (1,), (1, 1), (rows,), (rows, 1)):
        return ScaledTensor(values, scales)
    if scales.shape != (-(-rows // height), -(-columns // width)):
        raise parts.fail(f"its scales are {list(scales.shape)}, its values {list(values.shape)}")
    return ScaledTensor(values, scales, quantization.block)


def _mxfp4_stack(name: str, tensors: dict[str, StoredTensor]) -> Mxfp4Tensor:
    """Of NAME_blocks [experts, rows, groups, 16] and NAME_scales [experts, rows, groups]."""
    blocks, scales = tensors[name], tensors.pop(f"{name.removesuffix('_blocks')}_scales", None)
    if scales is None:
        raise BadCheckpoint(f"The checkpoint lacks the scales of {name}.")
    if blocks.shape != (*scales.shape, 16) or len(scales.shape) != 3 or {blocks.format, scales.format} != {"u8"}:
        raise BadCheckpoint(
            f"The tensor {name} is {blocks.format} {list(blocks.shape)}, and its scales are {scales.format} "
            f"{list(scales.shape)}: they must be u8, with 16 bytes for each scale."
        )
    return Mxfp4Tensor(blocks, scales)


def _from_words(parts: _Parts, quantization: Quantization) -> GroupedInt4:
    """AWQ and GPTQ."""
    qweight, qzeros, scales = (parts.take_matrix(part) for part in ("qweight", "qzeros", "scales"))
    groups = parts.maybe("g_idx")
    is_awq = quantization.kind == AWQ
    columns = qweight.shape[0] * (1 if is_awq else 8)
    num_groups, rows = scales.shape
    if qweight.shape != ((columns, rows // 8) if is_awq else (columns // 8, rows)):
        raise parts.fail(f"its values are {list(qweight.shape)}, its scales {list(scales.shape)}")
    group = _group(parts, columns, num_groups)
    if qzeros.shape != (num_groups, rows // 8) or rows % 8:
        raise parts.fail(f"its zeros are {list(qzeros.shape)}, its scales {list(scales.shape)}")

    def read() -> Int4:
        words, scale = (_words(qweight), _words(qzeros)), scales.dequantize()
        if is_awq:
            return from_awq(*words, scale)
        try:
            group_of_column = None if groups is None else _words(groups).reshape(-1)
            return from_gptq(*words, scale, group_of_column, quantization.zero_offset)
        except ValueError as error:
            raise parts.fail(str(error)) from None

    return GroupedInt4(f"{parts.stem}.weight", (rows, columns), group, read)


def _from_packed(parts: _Parts) -> GroupedInt4:
    packed, scales = parts.take_matrix("weight_packed"), parts.take("weight_scale")
    zeros, groups = parts.maybe("weight_zero_point"), parts.maybe("weight_g_idx")
    rows, columns = packed.shape[0], packed.shape[1] * 8
    if len(scales.shape) != 2 or scales.shape[0] != rows:
        raise parts.fail(f"its values are {list(packed.shape)}, its scales {list(scales.shape)}")
    group = _group(parts, columns, scales.shape[1])

    def read() -> Int4:
        group_of_column = None if groups is None else _words(groups).reshape(-1)
        packed_zeros = None if zeros is None else _words(zeros)
        try:
            return from_packed(_words(packed), scales.dequantize(), packed_zeros, group_of_column)
        except ValueError as error:
            raise parts.fail(str(error)) from None

    return GroupedInt4(f"{parts.stem}.weight", (rows, columns), group, read)


def _group(parts: _Parts, columns: int, num_groups: int) -> int:
    if num_groups == 0 or columns % num_groups or columns // num_groups % 2:
        raise parts.fail(f"its {columns} columns cannot be divided into {num_groups} groups")
    return columns // num_groups


def _words(tensor: StoredTensor) -> Array:
    """Return the stored integers: int32, or int64, which some files use for small tables."""
    dtype = {"i32": "<i4", "i64": "<i8"}.get(tensor.format)
    if dtype is None:
        raise BadCheckpoint(f"The tensor {tensor.name} is {tensor.format}; it should be i32 or i64.")
    return np.ascontiguousarray(tensor.data).view(dtype).reshape(tensor.shape).astype(np.int32, copy=False)
