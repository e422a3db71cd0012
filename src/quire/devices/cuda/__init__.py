"""NVIDIA GPUs: torch for memory, streams and large products, Triton and CUDA C++ for all other kernels.

This file is the device's facts, and imports neither.
"""

from pathlib import Path

from quire.devices.facts import DeviceFacts, DeviceMemory, MemoryKind

FP8, INT4, ACTIVATIONS = "f8_e4m3", "int4", "bf16"  # activations: unless the setting dtype is another
TO_INT4 = ("int4", "q4_0", "q4_1", "q4_k")  # the same values, 4 bits with a scale and a zero for each group
TO_ACTIVATIONS = (
    *("f32", "f16", "bf16", "f64", "f8_e5m2", "f8_e8m0"),
    *("q8_0", "q5_0", "q5_1", "q2_k", "q3_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "mxfp4"),
    *("bool", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"),
)
# Experts' matrices, as _triton/packing.py stores them: most as they are, some in more bits.
STACKS = {
    **{name: name for name in ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k", "mxfp4", "int4")},
    **dict.fromkeys(("q2_k", "q3_k"), "q4_k"),
    **dict.fromkeys(("iq4_nl", "iq4_xs"), "q8_0"),
}

FACTS = DeviceFacts(
    name="cuda",
    memory=DeviceMemory(MemoryKind.OWN),
    kv_formats=("bf16", "f32", "f16", "f8_e4m3"),
    weight_formats={FP8: FP8, **dict.fromkeys(TO_INT4, INT4), **dict.fromkeys(TO_ACTIVATIONS, ACTIVATIONS)},
    stack_formats=STACKS,
    conversions=("fp8", "plain"),
    fused_ops=frozenset(
        {
            *("qkv_attention", "gated_linear", "normed_gated_linear", "activated_linear", "normed_linear"),
            *("linear_add", "scaled_linear_add", "normed_linear_add", "head", "normed_head", "scaled_embed"),
            *("normed_route", "experts_add", "linear_split"),
            *("activated_short_conv", "gated_delta_rule", "gated_norm"),
        }
    ),
    plan="quire.devices.cuda.plan",
    frees_windows=True,
    moves_blocks=True,
    reads_sources=True,
    steps_in_flight=2,
    packages=("torch", "triton"),  # a torch that was built for CPUs alone comes without triton
    driver=Path("/dev/nvidiactl"),
    state_grain=64,  # tokens of a chunk of the scan
)
