"""What fits: weights and buffers first, then KV blocks from what is left under the budget."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from quire.config import BadSetting, Config
from quire.graph.graph import Graph
from quire.graph.weight import Weights

# Bytes of so many neighbouring numbers of a head: a block of q8_0 has 32 bytes and a scale of two.
KV_BYTES = {"f32": (4, 1), "f16": (2, 1), "bf16": (2, 1), "q8_0": (34, 32), "f8_e4m3": (1, 1)}
HOST_KV = "f16"  # of a host, unless it is told otherwise
HOST_CONTEXTS = 8  # full contexts that a host's cache has room for unless it is told otherwise
HOST_SHARE = 0.25  # and the most of its memory that this may be: a laptop has other things to do
HOST_GROWTH = 4  # times as many blocks have an address, should other models need their memory less
PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def host_bytes(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Memory that this process may use: the machine's, or less if a container's limit says so."""
    return min([_total_bytes(proc / "meminfo"), *_cgroup_limits(proc / "self" / "cgroup", cgroups)])


def _total_bytes(meminfo: Path) -> int:
    try:
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return 8 << 30  # no such file: not Linux, and 8 GB is what a small laptop has


def _cgroup_limits(membership: Path, cgroups: Path) -> list[int]:
    """The limits of our group and of all groups above it, in version 2 and version 1 of the files."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return []
    limits = []
    for line in lines:
        _, kinds, group = line.split(":", 2)
        root, name = (cgroups, "memory.max") if not kinds else (cgroups / "memory", "memory.limit_in_bytes")
        if kinds and "memory" not in kinds.split(","):
            continue
        below = root / group.lstrip("/")
        for folder in [each for each in (below, *below.parents) if each.is_relative_to(root)]:
            try:
                limits.append(int((folder / name).read_text()))
            except (OSError, ValueError):  # not there, or "max"
                continue
    return limits


def block_bytes(graph: Graph, config: Config) -> int:
    """One KV block, over all layers. A model whose heads the KV format cannot hold is refused."""
    num_bytes, numbers = KV_BYTES[kv_dtype(config)]
    for spec in graph.caches:
        if spec.key_dim % numbers or spec.value_dim % numbers:
            raise BadSetting(
                f"kv_dtype is {config.cache.kv_dtype!r}, which stores numbers in blocks of {numbers}; "
                f"the heads of this model have {spec.key_dim}. Choose f16 or bf16.",
                field="kv_dtype",
            )
    values = sum(spec.values_per_token for spec in graph.caches)
    return values // numbers * num_bytes * config.cache.block_tokens


def kv_dtype(config: Config, preferred: str = HOST_KV) -> str:
    """How K and V are stored: as set, or as the device prefers."""
    return preferred if config.cache.kv_dtype == "auto" else config.cache.kv_dtype


def used_bytes(weights: Weights, vocab_size: int, config: Config) -> int:
    """Weights as they are stored, each once, and the largest buffers of a step, which are logits."""
    stored = {id(weight): weight.num_bytes for weight in weights.values()}
    max_logits = config.scheduler.max_rows + config.scheduler.max_scored_tokens
    return sum(stored.values()) + max_logits * vocab_size * 4


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What was measured of the device once the model is on it."""

    total_bytes: int
    used_bytes: int  # weights, buffers, and the step's largest activations
    block_bytes: int  # one KV block, over all layers


def resolve(config: Config, facts: DeviceFacts) -> Config:
    """Fill every None from measured facts. Logs nothing, changes nothing."""
    if config.cache.num_blocks is not None:
        return config
    room = int(facts.total_bytes * config.cache.memory_share) - facts.used_bytes
    num_blocks = room // facts.block_bytes
    if num_blocks < 1:
        raise BadSetting(
            f"No memory is left for the KV cache: {facts.used_bytes / 1e6:.0f} MB of "
            f"{facts.total_bytes * config.cache.memory_share / 1e6:.0f} MB are taken. "
            "Use a smaller model, or raise memory_share.",
            field="memory_share",
        )
    return replace(config, cache=replace(config.cache, num_blocks=num_blocks))


def plan_blocks(config: Config, facts: DeviceFacts, is_host: bool = True) -> Config:
    """The configuration with its number of KV blocks. A host gets room for a few contexts, not all of its memory."""
    if config.cache.num_blocks is not None:
        return config
    fitting = num_blocks = resolve(config, facts).cache.num_blocks or 1
    if is_host:
        one = -(-config.scheduler.max_context // config.cache.block_tokens)
        share = int(facts.total_bytes * HOST_SHARE) // facts.block_bytes
        num_blocks = min(fitting, max(one, min(HOST_CONTEXTS * one, share)))
    most = config.cache.most_blocks or min(fitting, HOST_GROWTH * num_blocks)
    return replace(config, cache=replace(config.cache, num_blocks=min(num_blocks, most), most_blocks=most))
