"""How much memory a model will take, known before it is loaded: from its header alone, in milliseconds."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from quire.config import BadSetting, Config
from quire.devices.base import GPU, choose
from quire.graph.graph import Graph
from quire.models.config import read_config
from quire.models.draw import draw
from quire.models.registry import find_architecture
from quire.runner.memory import HOST_CONTEXTS, HOST_SHARE, block_bytes, host_bytes, used_bytes
from quire.weights.checkpoint import open_checkpoint

PROCESS_BYTES = 72 << 20  # of an engine that has no model: the interpreter, its packages, and what requests leave there
WHOLE = 1000  # parts of a GPU's memory
VALUE_BYTES = 5  # of an activation: a float, and the same number in a block
NUM_LIVE = 2  # as many values as the widest op reads and writes are held at once, and as many again for its neighbours
WIDER = {"f8_e4m3": 2, "f8_e5m2": 2, "int4": 4}  # formats whose numbers become larger ones on their way to a device


class Need(NamedTuple):
    """What a model takes."""

    fixed_bytes: int  # weights, buffers, and the process
    block_bytes: int  # of KV
    block_tokens: int
    max_context: int  # what the model was made for, or less, as set

    def num_blocks(self, context: int) -> int:
        """KV blocks of so many tokens."""
        return -(-context // self.block_tokens)

    def bytes_for(self, context: int, contexts: int = 1) -> int:
        """With KV for some contexts of this length."""
        return self.fixed_bytes + contexts * self.num_blocks(context) * self.block_bytes

    def most_bytes(self, context: int, budget: int) -> int:
        """With as much KV as is of use: a few contexts, and no more than a share of the memory beyond the first."""
        share = self.fixed_bytes + int(budget * HOST_SHARE)
        return min(budget, max(self.bytes_for(context), min(self.bytes_for(context, HOST_CONTEXTS), share)))

    def longest(self, num_bytes: int) -> int:
        """The longest context that fits; 0 if not even the rest does."""
        num_blocks = max(0, num_bytes - self.fixed_bytes) // max(1, self.block_bytes)
        return min(self.max_context, num_blocks * self.block_tokens)


class Share(NamedTuple):
    """What a model takes of a GPU: the share that its engine may use, in parts of WHOLE, whatever the model's size.

    How much KV fits into that is known when it is loaded.
    """

    parts: int
    max_context: int


class Budget(NamedTuple):
    """What all models together may take."""

    amount: int
    unit: str = "bytes"  # of the host's memory; of a GPU's, thousandths


def budget_of(device: str, config: Config) -> Budget:
    """Of a GPU, all of its memory: each model has its share of that."""
    if choose(device) != GPU:
        return Budget(budget_bytes(config))
    if config.serve.memory_budget is not None:
        raise BadSetting(
            f"memory_budget is {config.serve.memory_budget:g}, which is of the host's memory, and models run on a GPU. "
            "Set memory_share: of a GPU's memory every model has that share, and as many are loaded as that allows.",
            field="memory_budget",
        )
    return Budget(WHOLE, "thousandths")


def measure(path: Path, device: str, config: Config) -> Need | Share:
    """What the checkpoint at this path takes of its device."""
    if choose(device) != GPU:
        return need_of(path, config)
    checkpoint = open_checkpoint(path, config.weights.load_format)
    model = read_config(checkpoint, find_architecture(checkpoint).keys)  # the graph is drawn by the engine alone
    max_context = min(config.scheduler.max_context, model.max_context)
    return Share(min(WHOLE, int(WHOLE * config.cache.memory_share)), max_context)


def budget_bytes(config: Config) -> int:
    """What all models together may take: as set, or the machine's share that engines may use."""
    if config.serve.memory_budget is not None:
        return int(config.serve.memory_budget * 1e9)
    return int(host_bytes() * config.cache.memory_share)


def need_of(path: Path, config: Config) -> Need:
    """Of the checkpoint at this path."""
    model = draw(open_checkpoint(path, config.weights.load_format))
    grown = {id(each): each.num_bytes * (WIDER.get(each.format, 1) - 1) for each in model.weights.values()}
    fixed = used_bytes(model.weights, model.config.vocab_size, config) + sum(grown.values())
    return Need(
        fixed_bytes=PROCESS_BYTES + fixed + _activation_bytes(model.graph, config),
        block_bytes=block_bytes(model.graph, config),
        block_tokens=config.cache.block_tokens,
        max_context=min(config.scheduler.max_context, model.config.max_context),
    )


def _activation_bytes(graph: Graph, config: Config) -> int:
    """Of the largest step. The head's are logits, which are counted with the weights."""
    widths = (sum(value.dim for value in (*node.inputs, *node.outputs)) for node in graph.nodes[:-1])
    return NUM_LIVE * max(widths, default=0) * VALUE_BYTES * config.scheduler.max_step_tokens
