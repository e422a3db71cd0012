"""The CPU device: native kernels where they were built, the numpy references elsewhere. This file is its facts."""

from quire.devices.facts import DeviceFacts, DeviceMemory, MemoryKind

# Formats with kernels: packed without touching a number.
FLOATS = ("f32", "f16", "bf16")
QUANTIZED = (
    *("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"),
    *("iq4_nl", "iq4_xs", "mxfp4"),
)
TO_F16 = ("f8_e4m3", "f8_e5m2", "int4")  # f16 holds every value of theirs; times a scale it is rounded
TO_F32 = ("f64", "f8_e8m0", "bool", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")

FACTS = DeviceFacts(
    name="cpu",
    memory=DeviceMemory(MemoryKind.HOST),
    kv_formats=("f16", "f32", "bf16", "q8_0"),
    weight_formats={
        **{name: name for name in (*FLOATS, *QUANTIZED)},
        **dict.fromkeys(TO_F16, "f16"),
        **dict.fromkeys(TO_F32, "f32"),
    },
    conversions=("q8_0",),
    plan="quire.devices.cpu.plan",
    reads_sources=True,
    frees_windows=True,
    moves_blocks=True,
    fused_ops=frozenset(
        {"linear_split", "gated_linear", "activated_linear", "linear_add", "head", "activated_short_conv"}
    ),
)
