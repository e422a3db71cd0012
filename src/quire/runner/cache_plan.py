"""How many blocks each cache group gets, and how many states there are, in one budget of memory.

A request of C tokens holds
    all C tokens          in the layers that keep all of them: the blocks of tokens
    window + chunk tokens in each window group, at most: the window before a chunk of its prompt, and the chunk; a
                          device that computes two steps at once holds two chunks, since a block is released when the
                          step that read it is over
    one state             in the recurrent layers
A cached prefix that a request can resume from needs its tokens, a window in each group, and a checkpoint: a state too.
The number of blocks of tokens is chosen by the budget; `plan_cache` derives the rest from it. A device with memory of
its own chooses that number when it is lowered, and `plan_own` the rest before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import NamedTuple

from quire.config import BadSetting, Config
from quire.devices.base import WindowLimits
from quire.ops.cache import CacheSpec, Cross, State
from quire.types.formats import KV_FORMATS

REQUESTS = 4  # running or cached, for each whole context of blocks: few are as long as the longest context
LEAST_ROWS = 8  # that can run at once if their texts are short, however few blocks there are
EXTRA_SHARE = 0.25  # of the bytes of the blocks of tokens: what a group may take so that all rows can run
OWN_STATES = 1 / 3  # most of a device's own memory beside the weights that states take: the rest is for blocks
SOURCES, USUAL_SOURCE = 8, 1500  # sources to keep, and tokens of each: half a minute of sound
MOST_NODES = 1 << 17  # blocks of tokens where no layer stores any: then they only number the nodes of the prefix tree


class WindowRule(NamedTuple):
    """How many blocks a window group may have beyond those of REQUESTS for each context."""

    share: float  # of the bytes of the blocks of tokens
    per_row: int  # windows that are useful for each row
    in_flight: int = 1  # steps that are computed at once


HOST = WindowRule(EXTRA_SHARE, 1)


class WindowBytes(NamedTuple):
    """The layers whose queries read no further back than `window` tokens."""

    window: int
    block: int  # bytes of one block, over these layers


@dataclass(frozen=True, slots=True)
class CacheBytes:
    """Bytes of one block and of one state of a model, over all of its layers."""

    tokens: int  # one block of the layers that keep all tokens; 0: there are none
    windows: tuple[WindowBytes, ...] = ()  # ascending
    state: int = 0  # 0: no layer has a state
    source: int = 0  # one block of the layers that read a source; 0: there are none
    source_blocks: int = 0  # blocks of the longest source

    def within(self, longest: int) -> CacheBytes:
        """For texts up to `longest`: layers whose window is not much shorter keep all tokens, like those without one.

        Their blocks would be freed so late that a group would not take less memory.
        """
        groups = tuple(each for each in self.windows if REQUESTS * each.window < longest)
        kept = sum(each.block for each in self.windows if each not in groups)
        return replace(self, tokens=self.tokens + kept, windows=groups)


@dataclass(frozen=True, slots=True)
class CachePlan:
    """Blocks of each group, and slots for states."""

    sizes: CacheBytes
    num_blocks: int  # of all tokens; 0: as many as fit, which the device finds out
    windows: tuple[WindowLimits, ...] = ()  # those of `sizes`
    num_states: int = 0
    num_source_blocks: int = 0

    @property
    def window_pairs(self) -> tuple[tuple[WindowLimits, WindowBytes], ...]:
        """The window groups, each with the bytes of its blocks."""
        return tuple(zip(self.windows, self.sizes.windows, strict=True))

    @property
    def group_bytes(self) -> int:
        """Bytes of window groups, states and sources: they keep their size when the number of blocks changes."""
        windows = sum(group.num_blocks * size.block for group, size in self.window_pairs)
        return windows + self.num_states * self.sizes.state + self.num_source_blocks * self.sizes.source

    @property
    def num_bytes(self) -> int:
        """Bytes of everything."""
        return self.num_blocks * self.sizes.tokens + self.group_bytes


def cache_bytes(specs: Sequence[CacheSpec], config: Config, frees_windows: bool, longest_source: int = 0) -> CacheBytes:
    """Return the bytes of blocks and states. A model whose heads the KV format cannot hold is refused."""
    kv_format = KV_FORMATS[config.cache.kv_dtype]
    values: dict[int | None, int] = {}
    for spec in specs:
        if any(size % kv_format.num_values for size in spec.vectors):
            raise BadSetting(
                f"kv_dtype is {kv_format.name!r}, which stores values in blocks of {kv_format.num_values}; "
                f"the heads of this model have {min(spec.vectors)}. Choose f16 or bf16.",
                field="kv_dtype",
            )
        if not isinstance(spec, State | Cross):
            reach = spec.reach if frees_windows else None
            values[reach] = values.get(reach, 0) + spec.values_per_token
    blocks = {
        reach: count // kv_format.num_values * kv_format.num_bytes * config.cache.block_tokens
        for reach, count in values.items()
    }
    windows = tuple(WindowBytes(reach, blocks[reach]) for reach in sorted(each for each in blocks if each is not None))
    state = sum(spec.num_bytes for spec in specs if isinstance(spec, State))
    read = sum(spec.values_per_token for spec in specs if isinstance(spec, Cross))
    source = read // kv_format.num_values * kv_format.num_bytes * config.cache.block_tokens
    return CacheBytes(blocks.get(None, 0), windows, state, source, -(-longest_source // config.cache.block_tokens))


def context_blocks(config: Config) -> int:
    """Return the blocks of one whole context."""
    return -(-config.scheduler.max_context // config.cache.block_tokens)


def plan_cache(sizes: CacheBytes, config: Config, num_blocks: int, rule: WindowRule = HOST) -> CachePlan:
    """Plan the window groups and the states beside so many blocks of tokens."""
    sizes = sizes.within(config.scheduler.max_context)
    contexts, spare = num_blocks / context_blocks(config), int(EXTRA_SHARE * num_blocks * sizes.tokens)
    windows = plan_windows(sizes, config, num_blocks, rule)
    num_states = 0
    if sizes.state:
        num_rows = max(ceil(REQUESTS * contexts), min(LEAST_ROWS, config.scheduler.max_rows, num_blocks))
        planned = 2 * num_rows  # each with a state and a checkpoint
        cheap = min(useful_states(config, num_blocks), spare // sizes.state)
        num_states = config.cache.num_states or max(planned, cheap)
    if not sizes.tokens:
        num_blocks = _free_blocks(config, num_blocks, windows, num_states)
    return CachePlan(sizes, num_blocks, windows, num_states, planned_sources(sizes, config))


def plan_windows(sizes: CacheBytes, config: Config, num_blocks: int, rule: WindowRule) -> tuple[WindowLimits, ...]:
    """Return the blocks of the window groups: the tokens of steps, and windows. More than those of tokens are never
    needed."""
    tokens, requests = config.cache.block_tokens, ceil(REQUESTS * num_blocks / context_blocks(config))
    step = rule.in_flight * -(-config.scheduler.max_step_tokens // tokens) + 1  # and one that a head is copied to
    groups = []
    for each in sizes.windows:
        window = -(-each.window // tokens) + 1  # it begins and ends inside blocks
        spare = int(rule.share * num_blocks * sizes.tokens) // each.block
        rows = min(rule.per_row * config.scheduler.max_rows * window, spare)
        groups.append(WindowLimits(each.window, min(num_blocks, step + max(requests * window, rows))))
    return tuple(groups)


def planned_sources(sizes: CacheBytes, config: Config) -> int:
    """Return the blocks of sources: of one of the longest, and of some for rows that run together or come again."""
    if not sizes.source:
        return 0
    usual = min(sizes.source_blocks, -(-USUAL_SOURCE // config.cache.block_tokens))
    return max(sizes.source_blocks, min(config.scheduler.max_rows, SOURCES) * usual)


def useful_states(config: Config, num_blocks: int) -> int:
    """Return the states beyond which more would not help: for each row one that it runs with, and checkpoints at the
    ends of its prompt and of its answer; and those inside long prompts."""
    every = config.cache.checkpoint_every
    inside = num_blocks * config.cache.block_tokens // every if every else 0
    return 3 * config.scheduler.max_rows + inside


def plan_own(sizes: CacheBytes, config: Config, room: int | None, in_flight: int = 1) -> CachePlan:
    """Plan the cache of a device that fills its own memory with blocks of tokens: the states, then the window groups.

    States are as many as are useful, in at most a third of the `room` beside the weights. A window group has two
    windows for each row, one that it runs with and a cached one, as long as all groups take no more bytes than the
    blocks of tokens that fit beside them. None: the size of the memory is not known.
    """
    sizes = sizes.within(config.scheduler.max_context)
    num_blocks, num_states = config.cache.num_blocks or 0, 0
    if sizes.state:
        num_states = config.cache.num_states or _own_states(sizes, config, room)
    rule = WindowRule(1 / max(1, len(sizes.windows)), 2, in_flight)
    expected = num_blocks
    if not expected and sizes.windows:
        rest = 0 if room is None else room - num_states * sizes.state
        most = max(0, rest // sizes.tokens) if sizes.tokens else MOST_NODES
        expected = max(context_blocks(config), blocks_within(replace(sizes, state=0), config, rest, most, rule))
    windows = plan_windows(sizes, config, expected, rule)
    if not sizes.tokens:
        num_blocks = _free_blocks(config, num_blocks, windows, num_states)
    return CachePlan(sizes, num_blocks, windows, num_states, planned_sources(sizes, config))


def _own_states(sizes: CacheBytes, config: Config, room: int | None) -> int:
    num_blocks = config.cache.num_blocks or config.scheduler.max_rows * context_blocks(config)
    useful = useful_states(config, num_blocks)
    return useful if room is None else max(2, min(useful, int(room * OWN_STATES) // sizes.state))


def blocks_within(sizes: CacheBytes, config: Config, num_bytes: int, most: int, rule: WindowRule = HOST) -> int:
    """Return the most blocks of tokens, up to `most`, that fit into these bytes with what is planned beside them."""
    counts = range(1, most + 1)
    return bisect_right(counts, num_bytes, key=lambda count: plan_cache(sizes, config, count, rule).num_bytes)


def _free_blocks(config: Config, num_blocks: int, windows: Sequence[WindowLimits], num_states: int) -> int:
    """Return the blocks of tokens where they take no memory: a whole context for each text that can be resumed."""
    one, tokens = context_blocks(config), config.cache.block_tokens
    counts = [each.num_blocks // (-(-each.window // tokens) + 1) for each in windows]
    counts += [num_states] if num_states else []
    return max(num_blocks, min(MOST_NODES, min(counts, default=1) * one))
