"""Every number format: its contract, its values against the `gguf` and `torch` packages, and round trips."""

from __future__ import annotations

import pkgutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import quire.quant
from quire.quant.format import QuantFormat, quant_format
from quire.quant.registry import all_formats, gguf_formats, safetensors_formats
from tests.quant.blocks import FLOAT16_AT, random_blocks

pytestmark = pytest.mark.pure


@pytest.fixture(autouse=True)
def _floating_point_is_quiet():
    """Random bytes hold numbers beyond float32: both sides turn them into infinities, and numpy would warn."""
    with np.errstate(all="ignore"):
        yield


FLOATS_OF_GGUF = [*FLOAT16_AT, "bf16", "mxfp4"]
WRITTEN = ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1"]
TORCH_DTYPES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "f8_e4m3": "float8_e4m3fn",
    "f8_e5m2": "float8_e5m2", "f8_e8m0": "float8_e8m0fnu", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
    "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
}  # fmt: skip


def blocks_of(name: str, weights: np.ndarray) -> np.ndarray:
    return weights.reshape(-1, all_formats()[name].block_weights)


def test_discovery_finds_every_file_of_the_package_and_every_required_format():
    promised = set("f32 f16 bf16 q4_0 q4_1 q5_0 q5_1 q8_0 q2_k q3_k q4_k q5_k q6_k iq4_nl mxfp4".split())  # noqa: SIM905
    plain = {"f64", "i8", "u8", "i16", "i32", "i64", "bool", "f8_e4m3", "f8_e5m2"}
    assert promised <= {fmt.name for fmt in gguf_formats().values()}
    assert plain <= {fmt.name for fmt in safetensors_formats().values()}
    homes = {type(fmt).__module__.rpartition(".")[2] for fmt in all_formats().values()}
    files = {module.name for module in pkgutil.iter_modules(quire.quant.__path__)}
    assert files - homes == {"format", "registry", "bits", "int4"}  # int4: matrices spread over several tensors


@pytest.mark.parametrize("fmt", all_formats().values(), ids=lambda fmt: fmt.name)
def test_a_format_keeps_the_contract(fmt: QuantFormat):
    assert fmt.name == fmt.name.lower()
    assert fmt.gguf_type is not None or fmt.safetensors_dtype is not None
    assert type(fmt).__doc__
    raw = random_blocks(fmt, 3, seed=1)
    raw.flags.writeable = False
    weights = fmt.dequantize(raw)
    assert weights.dtype == np.float32
    assert weights.shape == (3, fmt.block_weights)
    assert fmt.dequantize(raw[:0]).shape == (0, fmt.block_weights)
    assert fmt.bytes_for(5 * fmt.block_weights) == 5 * fmt.block_bytes


@pytest.mark.parametrize("fmt", all_formats().values(), ids=lambda fmt: fmt.name)
def test_a_block_does_not_depend_on_its_neighbours(fmt: QuantFormat):
    raw = random_blocks(fmt, 9, seed=2)
    whole = fmt.dequantize(raw)
    for i in range(9):
        np.testing.assert_array_equal(fmt.dequantize(raw[i : i + 1])[0], whole[i])


def test_numbers_and_names_in_containers_are_those_of_the_reference_packages():
    gguf = pytest.importorskip("gguf")
    for number, fmt in gguf_formats().items():
        assert gguf.GGMLQuantizationType(number).name.lower() == fmt.name
        assert gguf.GGML_QUANT_SIZES[number] == (fmt.block_weights, fmt.block_bytes)


@pytest.mark.parametrize("name", FLOATS_OF_GGUF)
def test_dequantizes_random_blocks_bit_for_bit_as_the_gguf_package(name: str):
    gguf = pytest.importorskip("gguf")
    fmt = all_formats()[name]
    for seed in range(4):
        raw = random_blocks(fmt, 2000, seed)
        expected = gguf.dequantize(raw, gguf.GGMLQuantizationType(fmt.gguf_type))
        np.testing.assert_array_equal(fmt.dequantize(raw), blocks_of(name, expected))


@pytest.mark.parametrize("name", [n for n in FLOATS_OF_GGUF if n not in ("f16", "bf16")])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_dequantizes_any_bytes_as_the_gguf_package_even_where_a_scale_is_not_finite(name: str, data: st.DataObject):
    gguf = pytest.importorskip("gguf")
    fmt = all_formats()[name]
    raw = data.draw(hnp.arrays(np.uint8, (2, fmt.block_bytes)))
    expected = gguf.dequantize(raw, gguf.GGMLQuantizationType(fmt.gguf_type))
    np.testing.assert_array_equal(fmt.dequantize(raw), blocks_of(name, expected))


@pytest.mark.parametrize("name", TORCH_DTYPES)
def test_dequantizes_every_plain_dtype_as_torch(name: str):
    torch = pytest.importorskip("torch")
    fmt = all_formats()[name]
    if fmt.block_bytes == 1:
        raw = np.arange(256, dtype=np.uint8)[:, None]
    elif fmt.block_bytes == 2:
        raw = np.arange(65536, dtype="<u2").view(np.uint8).reshape(-1, 2)
    else:
        raw = np.random.default_rng(5).integers(0, 256, (10_000, fmt.block_bytes), dtype=np.uint8)
    expected = torch.from_numpy(raw.copy()).view(getattr(torch, TORCH_DTYPES[name])).float().numpy()
    np.testing.assert_array_equal(fmt.dequantize(raw), expected)


def test_a_bool_is_zero_or_one_whatever_its_byte():
    raw = np.array([[0], [1], [2], [255]], np.uint8)
    assert all_formats()["bool"].dequantize(raw).tolist() == [[0], [1], [1], [1]]


@pytest.mark.parametrize("name", WRITTEN)
def test_quantizes_as_the_gguf_package(name: str):
    gguf = pytest.importorskip("gguf")
    fmt = all_formats()[name]
    rng = np.random.default_rng(6)
    weights = rng.standard_normal((500, 256), np.float32) * np.exp(rng.uniform(-6, 3, (500, 1))).astype(np.float32)
    weights[0] = 0
    expected = gguf.quantize(weights, gguf.GGMLQuantizationType(fmt.gguf_type)).view(np.uint8)
    np.testing.assert_array_equal(fmt.quantize(blocks_of(name, weights)), expected.reshape(-1, fmt.block_bytes))


@pytest.mark.parametrize(("name", "steps"), [("q8_0", 254), ("q4_0", 15), ("q4_1", 15)])
@settings(max_examples=60, deadline=None)
@given(weights=hnp.arrays(np.float32, (3, 32), elements=st.floats(-100, 100, width=32)))
def test_a_quantized_weight_comes_back_within_half_a_step(name: str, steps: int, weights: np.ndarray):
    fmt = all_formats()[name]
    back = fmt.dequantize(fmt.quantize(weights))
    spread = np.ptp(np.concatenate([weights, -weights], axis=1), axis=1) if name != "q4_1" else np.ptp(weights, axis=1)
    # Half a step, a whole one for the end of Q4_0's range that has 7 steps instead of 8, and the scales' rounding.
    allowed = spread / steps * (1.2 if name == "q4_0" else 0.5) + np.abs(weights).max(axis=1) * 2e-3 + 1e-5
    assert (np.abs(back - weights) <= allowed[:, None]).all()


@settings(max_examples=100, deadline=None)
@given(weights=hnp.arrays(np.float32, (4, 1), elements=st.floats(width=32)))
def test_bfloat16_rounds_like_torch_and_keeps_every_nan(weights: np.ndarray):
    torch = pytest.importorskip("torch")
    fmt = all_formats()["bf16"]
    expected = torch.from_numpy(weights.copy()).bfloat16().float().numpy()
    np.testing.assert_array_equal(fmt.dequantize(fmt.quantize(weights)), expected)


def test_writing_a_read_only_format_and_partial_blocks_are_refused():
    with pytest.raises(NotImplementedError, match="q6_k"):
        all_formats()["q6_k"].quantize(np.zeros((1, 256), np.float32))
    with pytest.raises(ValueError, match="blocks of 32"):
        all_formats()["q8_0"].bytes_for(33)


def test_two_formats_cannot_share_a_name():
    with pytest.raises(ValueError, match="q8_0"):
        quant_format("q8_0")(type(all_formats()["q8_0"]))


def test_eight_bit_floats_round_like_torch():
    torch = pytest.importorskip("torch")
    fmt, rng = all_formats()["f8_e4m3"], np.random.default_rng(7)
    codes = np.arange(0x7F, dtype=np.uint8)[:, None]
    exact = fmt.dequantize(codes)[:, 0]
    ties = (exact[1:] + exact[:-1]) / 2
    weights = np.concatenate([exact, ties, np.nextafter(ties, np.float32(0)), rng.uniform(0, 448, 9999)])
    weights = np.concatenate([weights, -weights, [np.nan]]).astype(np.float32)[:, None]
    expected = torch.from_numpy(weights.copy()).to(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(fmt.dequantize(fmt.quantize(weights)), expected)
    assert fmt.dequantize(fmt.quantize(np.array([[1e9]], np.float32))) == 448
