"""The mixers of Mamba and Mamba-2: their numbers, their tensors, and how they are drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, TypedDict, Unpack

from quire.graph.graph import Graph, Layer, Value
from quire.models.config import ModelConfig
from quire.models.errors import UnsupportedModel
from quire.models.names import Stored, TensorName, part
from quire.models.values import Values
from quire.ops.cache import State

Only = Callable[[Any, int], bool] | None  # which layers have the mixer; None: all

MAMBA_KEYS = ("mamba_d_state", "mamba_d_conv", "mamba_expand", "mamba_dt_rank", "mamba_conv_bias", "mamba_proj_bias")
MAMBA2_KEYS = ("mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv", "mamba_expand",
               "mamba_conv_bias", "mamba_proj_bias", "time_step_limit")  # fmt: skip
MAMBA_GGUF = ("ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank")
MAMBA2_GGUF = (*MAMBA_GGUF, "ssm.group_count")
# how weights began in training, the chunks of kernels, and the format in which residuals are added
UNUSED_KEYS = ("time_step_min", "time_step_max", "time_step_floor", "time_step_scale", "time_step_init_scheme",
               "rescale_prenorm_residual", "residual_in_fp32", "chunk_size", "mamba_chunk_size", "use_mambapy",
               "use_falcon_mambapy", "use_associative_scan", "use_mamba_kernels", "mamba_ssm_cache_dtype",
               "num_logits_to_keep")  # fmt: skip
# In some architectures transformers norms several groups as one, and other engines each: no published model has them.
ONE_GROUP = {"mamba_n_groups": (1,)}
PROJECTIONS = {"mamba_conv_bias": ("ssm.kernel",), "mamba_proj_bias": ("ssm.x", "ssm.z", "ssm.out")}
PROJECTIONS2 = {"mamba_conv_bias": ("ssm.kernel",), "mamba_proj_bias": ("ssm.z", "ssm.xbc", "ssm.dt", "ssm.out")}


@dataclass(frozen=True, slots=True)
class ScanSizes:
    """The numbers of a mixer. In Mamba every column is a head, with a state of its own."""

    inner: int  # columns that a state is kept of
    size: int  # of the state of a column
    taps: int  # tokens that the convolution reads
    heads: int
    groups: int = 1  # of heads that share b and c
    rank: int = 0  # Mamba: numbers from which the step sizes of all heads are computed
    low: float = 0.0  # limits of step sizes
    high: float = math.inf

    @property
    def state(self) -> State:
        """The state of the scan."""
        return State((self.heads, self.inner // self.heads, self.size))

    @property
    def words(self) -> dict[str, int]:
        """The words in which shapes are stated."""
        shared, group = self.groups * self.size, self.inner // self.groups
        return {
            **{"ssm": self.inner, "ssm_size": self.size, "ssm_heads": self.heads, "ssm_rank": self.rank},
            **{"ssm_groups": self.groups, "ssm_group": group, "ssm_conv": self.inner + 2 * shared, "taps": self.taps},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanConfig(ModelConfig):
    """A decoder with mixers."""

    scan: ScanSizes

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        return cls(**base, scan=read_mamba2(base, values, is_gguf))

    def sizes(self, layer: int | None = None) -> dict[str, int]:
        return {**ModelConfig.sizes(self, layer), **self.scan.words}


class HasScan(Protocol):
    """A configuration with the numbers of a mixer."""

    @property
    def scan(self) -> ScanSizes: ...
    @property
    def norm_eps(self) -> float: ...


def read_mamba(base: dict[str, Any], c: Values, is_gguf: bool) -> ScanSizes:
    """The numbers of a Mamba mixer."""
    if is_gguf:
        inner, rank = c.size("ssm.inner_size"), c.size("ssm.time_step_rank")
        return ScanSizes(inner, c.size("ssm.state_size"), c.size("ssm.conv_kernel"), inner, rank=rank)
    inner = c.size_or_none("mamba_d_ssm") or c.size("mamba_expand") * base["hidden"]
    rank = c.size_unless_auto("mamba_dt_rank") or -(-base["hidden"] // 16)
    return ScanSizes(inner, c.size("mamba_d_state"), c.size("mamba_d_conv"), inner, rank=rank)


def read_mamba2(base: dict[str, Any], c: Values, is_gguf: bool) -> ScanSizes:
    """The numbers of a Mamba-2 mixer. `mamba_d_ssm`, or else `mamba_expand`, is not in all architectures."""
    if is_gguf:
        inner, heads = c.size("ssm.inner_size"), c.size("ssm.time_step_rank")
        found = ScanSizes(inner, c.size("ssm.state_size"), c.size("ssm.conv_kernel"), heads, c.size("ssm.group_count"))
    else:
        heads, dim = c.size("mamba_n_heads"), c.size_unless_auto("mamba_d_head")
        expanded = c.size("mamba_expand") * base["hidden"] if "mamba_expand" in c else None
        inner = c.size_or_none("mamba_d_ssm") or expanded or heads * c.size("mamba_d_head")
        if dim is not None and dim * heads != inner:
            raise c.refusal("mamba_d_head", f"{inner} divided by the number of heads, {heads}")
        sizes = (c.size("mamba_d_state"), c.size("mamba_d_conv"), heads, c.size("mamba_n_groups", 1), 0)
        found = ScanSizes(inner, *sizes, *c.limits("time_step_limit"))
    if found.inner % heads or heads % found.groups:
        raise UnsupportedModel(f"{found.inner} numbers cannot be {heads} heads in {found.groups} groups.")
    return found


def mamba_names(block: str, only: Only = None) -> dict[str, TensorName]:
    """The tensors of a Mamba mixer. `block`: its name in safetensors."""
    parts = {
        **{"ssm.x": ("in", 0, ("ssm", "ssm")), "ssm.z": ("in", 1, ("ssm", "ssm"))},
        **{word: ("x", i, _FROM_X) for i, word in enumerate(("ssm.rank", "ssm.b", "ssm.c"))},
    }
    return {
        **_parts(block, parts, only),
        **_shared_names(block, ("ssm", "ssm_size"), only, kernel="ssm"),
        "ssm.dt": TensorName(f"{block}.dt_proj", "ssm_dt", ("ssm", "ssm_rank"), biased=True, only=only),
    }


def mamba2_names(block: str, only: Only = None) -> dict[str, TensorName]:
    """The tensors of a Mamba-2 mixer. `block`: its name in safetensors."""
    parts = {word: ("in", i, _IN) for i, word in enumerate(("ssm.z", "ssm.xbc", "ssm.dt"))}
    by_group = Stored("ssm_norm", shape=("ssm_groups", "ssm_group"))
    return {
        **_parts(block, parts, only),
        **_shared_names(block, ("ssm_heads", "one"), only, kernel="ssm_conv"),
        "ssm.dt_bias": TensorName(
            f"{block}.dt_bias", Stored("ssm_dt", kind="bias"), ("ssm_heads",), only=only, kind=""
        ),
        "ssm.norm": TensorName(f"{block}.norm", by_group, ("ssm",), only=only),
    }


_IN, _FROM_X = ("ssm", "ssm_conv", "ssm_heads"), ("ssm_rank", "ssm_size", "ssm_size")  # rows of matrices with parts


def _parts(block: str, parts: Mapping[str, tuple[str, int, tuple[str, ...]]], only: Only) -> dict[str, TensorName]:
    """Words whose weights are parts of a matrix: its name, the index of the part, and the rows of all parts."""
    return {
        word: TensorName(
            Stored(f"{block}.{name}_proj", part(index, *rows)),
            Stored(f"ssm_{name}", part(index, *rows)),
            (rows[index], "hidden" if name == "in" else "ssm"),
            only=only,
        )
        for word, (name, index, rows) in parts.items()
    }


def _shared_names(block: str, rate: tuple[str, str], only: Only, kernel: str) -> dict[str, TensorName]:
    """What both mixers have. `rate`: the shape of rates in GGUF; `kernel`: the columns of the convolution."""
    is_matrix = rate[1] != "one"
    rates, skips = rate if is_matrix else rate[:1], None if is_matrix else rate
    convolution = Stored(f"{block}.conv1d", shape=(kernel, "one", "taps"))
    entries = {
        "ssm.kernel": TensorName(convolution, "ssm_conv1d", (kernel, "taps")),
        "ssm.rate": TensorName(Stored(f"{block}.A_log", negated_exp=True), Stored("ssm_a", shape=rate), rates, kind=""),
        "ssm.skip": TensorName(f"{block}.D", Stored("ssm_d", shape=skips), rate[:1], kind=""),
        "ssm.out": TensorName(f"{block}.out_proj", "ssm_out", ("hidden", "ssm")),
    }
    return {word: replace(entry, only=only) for word, entry in entries.items()}


def mamba_mixer(g: Graph, c: HasScan, layer: Layer, h: Value, *, norm_eps: float | None = None) -> Value:
    """The mixer of Mamba. `norm_eps`: of norms of what the scan reads; None: there are none."""
    x, z = (g.linear(h, layer[f"ssm.{word}"]) for word in "xz")
    x = g.activation(g.short_conv(x, layer["ssm.kernel"]), "silu")
    rank, b, d = (_normed(g, layer, g.linear(x, layer[f"ssm.{word}"]), word, norm_eps) for word in ("rank", "b", "c"))
    names = (layer["ssm.rate"], None, layer["ssm.skip"])
    out = g.state_scan((x, b, d), g.linear(rank, layer["ssm.dt"]), c.scan.state, names)
    return g.linear(g.multiply(out, g.activation(z, "silu")), layer["ssm.out"])


def _normed(g: Graph, layer: Layer, x: Value, word: str, eps: float | None) -> Value:
    """Norm x with `ssm.WORD_norm`, or, if the model does not have that, without weights."""
    name = layer[f"ssm.{word}_norm"]
    return x if eps is None else g.rms_norm(x, name if name in g.shapes else None, eps=eps)


class Mamba2Choices(TypedDict, total=False):
    """How a Mamba-2 mixer differs from most."""

    norm_first: bool  # the norm is before the gate
    factors: tuple[float, str | None, float]  # of z, x with b and c (a weight), and dt


def mamba2_mixer(g: Graph, c: HasScan, layer: Layer, h: Value, **choices: Unpack[Mamba2Choices]) -> Value:
    """The mixer of Mamba-2. Without `ssm.norm` there is only the gate."""
    s, (of_z, of_xbc, of_dt) = c.scan, choices.get("factors", (1.0, None, 1.0))
    z, xbc, dt = (g.linear(h, layer[f"ssm.{word}"]) for word in ("z", "xbc", "dt"))
    xbc = xbc if of_xbc is None else g.scale_by(xbc, of_xbc)
    xbc = g.activation(g.short_conv(xbc, layer["ssm.kernel"]), "silu")
    shared = s.groups * s.size
    x, b, d = g.columns(xbc, 0, s.inner), g.columns(xbc, s.inner, shared), g.columns(xbc, s.inner + shared, shared)
    names = (layer["ssm.rate"], layer["ssm.dt_bias"], layer["ssm.skip"])
    out = g.state_scan((x, b, d), g.scale(dt, of_dt), s.state, names, low=s.low, high=s.high)
    gate, norm = g.activation(g.scale(z, of_z), "silu"), layer["ssm.norm"]
    is_first = choices.get("norm_first", False)
    out = out if is_first else g.multiply(out, gate)
    if norm in g.shapes:
        out = g.rms_norm(out, norm, eps=c.norm_eps, group=s.inner // s.groups)
    return g.linear(g.multiply(out, gate) if is_first else out, layer["ssm.out"])
