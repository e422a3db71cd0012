"""What fits: the machine's memory, a container's limit, and how many blocks that makes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from quire.config import BadSetting, Config
from quire.runner.memory import (
    HOST_CONTEXTS,
    HOST_GROWTH,
    DeviceFacts,
    block_bytes,
    host_bytes,
    plan_blocks,
    used_bytes,
)
from tests.devices.cpu.programs import quantized_model
from tests.models.toys import make_toy

pytestmark = pytest.mark.pure

GB = 1 << 30


def machine(root: Path, total: int, groups: dict[str, str], membership: str) -> tuple[Path, Path]:
    """A /proc and a /sys/fs/cgroup that say this."""
    proc, cgroups = root / "proc", root / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemFree: 1 kB\nMemTotal:       {total // 1024} kB\n")
    (proc / "self" / "cgroup").write_text(membership)
    for name, text in groups.items():
        (cgroups / name).parent.mkdir(parents=True, exist_ok=True)
        (cgroups / name).write_text(text)
    return proc, cgroups


def test_memory_is_the_machines_where_no_limit_is(tmp_path: Path) -> None:
    assert host_bytes(*machine(tmp_path, 16 * GB, {}, "0::/\n")) == 16 * GB
    assert host_bytes(tmp_path / "no", tmp_path / "such") == 8 * GB
    assert host_bytes() > 1 << 28  # of the machine that runs this


@pytest.mark.parametrize(
    "groups, membership",
    [
        ({"a/b/memory.max": f"{4 * GB}\n", "a/memory.max": "max\n"}, "0::/a/b\n"),
        ({"a/b/memory.max": "max\n", "a/memory.max": f"{4 * GB}\n"}, "0::/a/b\n"),  # a limit above ours holds too
        ({"memory/box/memory.limit_in_bytes": f"{4 * GB}\n"}, "3:cpu:/x\n7:memory:/box\n"),
    ],
)
def test_a_containers_limit_is_found(tmp_path: Path, groups: dict[str, str], membership: str) -> None:
    assert host_bytes(*machine(tmp_path, 64 * GB, groups, membership)) == 4 * GB


def test_a_host_gets_room_for_a_few_contexts_and_not_all_of_its_memory() -> None:
    config = Config()
    one = config.scheduler.max_context // config.cache.block_tokens
    large = plan_blocks(config, DeviceFacts(512 * GB, GB, 1 << 20))
    assert large.cache.num_blocks == HOST_CONTEXTS * one
    assert large.cache.most_blocks == HOST_GROWTH * HOST_CONTEXTS * one  # it can be given more while it runs
    small = plan_blocks(config, DeviceFacts(8 * GB, GB, 1 << 20))
    assert small.cache.num_blocks == 2048  # a quarter of 8 GB
    tiny = plan_blocks(config, DeviceFacts(2 * GB, GB, 1 << 20))
    assert tiny.cache.num_blocks == one  # at least one context, if it fits
    assert tiny.cache.most_blocks == int(2 * GB * 0.9 - GB) >> 20  # and never more than fits
    device = plan_blocks(config, DeviceFacts(64 * GB, GB, 1 << 20), is_host=False)
    assert device.cache.num_blocks == int(64 * GB * 0.9 - GB) >> 20


def test_what_was_asked_for_is_kept_and_what_cannot_be_is_said() -> None:
    asked = replace(Config(), cache=replace(Config().cache, num_blocks=77))
    assert plan_blocks(asked, DeviceFacts(GB, GB, 1 << 20)) is asked
    with pytest.raises(BadSetting, match="No memory is left"):
        plan_blocks(Config(), DeviceFacts(GB, 2 * GB, 1 << 20))


def test_weights_and_blocks_are_counted_in_bytes() -> None:
    model = make_toy("qwen2").draw()  # its head is its embedding: one array under two names
    stored = sum(tensor.array.nbytes for tensor in make_toy("qwen2").checkpoint.tensors.values())
    logits = (256 + 128) * model.config.vocab_size * 4
    assert 0 <= used_bytes(model.weights, model.config.vocab_size, Config()) - stored - logits < 100  # and frequencies
    per_token = 2 * 2 * model.config.num_kv_heads * model.config.head_dim  # layers, K and V
    assert block_bytes(model.graph, Config()) == per_token * 2 * 16


def test_a_block_of_q8_0_has_34_bytes_for_32_numbers_and_heads_must_fill_them() -> None:
    graph = make_toy("qwen2").draw().graph  # heads of 8
    for kv_dtype, expected in (("f32", 4), ("f16", 2), ("bf16", 2)):
        config = replace(Config(), cache=replace(Config().cache, kv_dtype=kv_dtype))
        assert block_bytes(graph, config) == sum(spec.values_per_token for spec in graph.caches) * expected * 16
    small = replace(Config(), cache=replace(Config().cache, kv_dtype="q8_0"))
    with pytest.raises(BadSetting, match="blocks of 32; the heads of this model have"):
        block_bytes(graph, small)
    wide = quantized_model("q4_1").graph  # heads of 32
    assert block_bytes(wide, small) == sum(spec.values_per_token for spec in wide.caches) * 16 * 34 // 32
