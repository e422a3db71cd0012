"""The KV caches and the states of a native program."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

from quire.devices.base import Limits
from quire.graph.graph import Graph, Node
from quire.ops.cache import Cross, Latent, State, cache_groups

ALL_TOKENS = 0  # the group of caches that keep all tokens


class StateLayout(NamedTuple):
    """How the native program stores a state: matrices [rows, columns], whose columns never meet; see csrc/states.h."""

    shape: tuple[int, int, int]  # matrices, rows, columns
    is_transposed: bool = False  # in the state's shape a matrix is [columns, rows]
    is_tiled: bool = True  # some columns lie together, with all of their rows
    has_scales: bool = False  # a column has a scale, which decays in place of its rows


def add_caches(program: Any, graph: Graph, limits: Limits) -> None:
    """Add the window groups, then the cache of every layer, in their order."""
    groups = cache_groups(graph.caches, [each.window for each in limits.windows])
    numbers = [program.window(*each) for each in limits.windows]
    for index, spec in enumerate(graph.caches):
        if isinstance(spec, State):
            program.states(limits.num_states or limits.max_rows, *state_layout(graph, index, spec))
        elif isinstance(spec, Cross):
            sizes = (spec.num_heads, spec.key_dim, spec.value_dim)
            program.source_cache(limits.kv_dtype, *sizes, limits.num_source_blocks)
        elif isinstance(spec, Latent):
            program.latent_cache(limits.kv_dtype, spec.dim, spec.rope_dim)
        else:
            at = groups.window_of(index)
            reads = (spec.num_heads, spec.key_dim, spec.value_dim, spec.window or 0, spec.chunk or 0)
            program.cache(limits.kv_dtype, *reads, ALL_TOKENS if at is None else numbers[at])


def state_layout(graph: Graph, cache: int, spec: State) -> StateLayout:
    """Return the layout that the kernel of the cache's node needs."""
    if len(spec.shape) == 2:  # of a convolution
        dim, before = spec.shape
        return StateLayout((1, before, dim), is_transposed=True, is_tiled=False)
    node = next(node for node in graph.nodes if node.cache == cache)
    heads, first, last = spec.shape
    if node.op.name == "delta_rule":
        return StateLayout((heads, first, last), has_scales=node.input("decay").dim == heads)
    groups, rate = node.input("b").dim // last, graph.shapes[str(node.weights["rate"])]
    channels = heads // groups * first
    return StateLayout((groups, last, channels), is_transposed=True, has_scales=prod(map(int, rate)) == heads)


def native_index(graph: Graph, node: Node) -> int:
    """The program's index of a node's cache: states and KV caches are counted apart."""
    assert node.cache is not None
    is_state = isinstance(graph.caches[node.cache], State)
    return sum(isinstance(spec, State) == is_state for spec in graph.caches[: node.cache])
