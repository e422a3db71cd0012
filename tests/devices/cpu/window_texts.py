"""Texts in a program with window groups: each group has its own pool, and blocks behind a window are used again.

Also the graphs and limits that the tests of several devices use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from quire.devices import base
from quire.graph.graph import Graph
from quire.ops.batch import Batch, RowPart
from quire.ops.cache import window_sizes
from tests.graph.sketch import DIM, HEAD, HEADS, VOCAB, Sketch
from tests.models.toys import BLOCK, some_tokens

UNDEFINED = 2**31 - 1  # what tables say of blocks behind a window: no such block


def with_windows(limits: base.Limits, graph: Graph, most_new: int, num_texts: int) -> base.Limits:
    """Add groups for all windows of a graph, with no more blocks than so many texts need at once."""
    needed = {window: num_texts * (-(-(window + most_new) // BLOCK) + 1) for window in window_sizes(graph.caches, 1000)}
    return replace(limits, windows=tuple(base.WindowLimits(*each) for each in needed.items()))


@cache
def odd() -> Sketch:
    """Layers with windows, with chunks and without; one that reads the cache of another; latent attention."""
    s = Sketch()
    x, table = s.embed(), s.frequencies()
    for limits in ({"window": 5}, {}, {"window": 150}, {"chunk": 40}, {"window": 150, "chunk": 170}):
        spec = s.cache(**limits)
        q, k, v = s.qkv(s.norm(x))
        x = s.graph.add(x, s.linear(s.attend(s.rope(q, table), s.rope(k, table), v, spec), DIM))
        if limits.get("window") == 5:
            late = s.rope(s.linear(s.norm(x), HEADS * HEAD), table)
            x = s.graph.add(x, s.linear(s.graph.attention_shared(late, spec, scale=0.25), DIM))
    x = s.graph.add(x, s.latent_attention(s.norm(x), table))
    s.logits(s.graph.add(x, s.mlp(s.norm(x))))
    return s


def some_words(count: int) -> list[int]:
    """Tokens of a sketch's vocabulary."""
    return [token % VOCAB for token in some_tokens(count)]


class Pool:
    """The blocks of one group. The block released last is taken first; texts may share blocks."""

    def __init__(self, num_blocks: int, window: int | None, seed: int) -> None:
        self.window = window
        self._free = np.random.default_rng(seed).permutation(num_blocks).tolist()
        self._holds: Counter[int] = Counter()
        self.num_taken = 0

    def extend(self, table: list[int], start: int, end: int) -> None:
        """Release what queries from `start` on do not read; then take blocks up to `end`."""
        first = 0 if self.window is None else max(0, start + 1 - self.window) // BLOCK
        for place in range(min(first, len(table))):
            self.release(table, place)
        while len(table) * BLOCK < end:
            table.append(self.take())

    def take(self) -> int:
        """A block that no text holds."""
        block: int = self._free.pop()
        self._holds[block] = 1
        self.num_taken += 1
        return block

    def share(self, table: list[int]) -> list[int]:
        """A table with the same blocks, for another text."""
        self._holds.update(block for block in table if block != UNDEFINED)
        return list(table)

    def release(self, table: list[int], place: int) -> None:
        """Give up a block, if the table has it."""
        block, table[place] = table[place], UNDEFINED
        if block != UNDEFINED:
            self._holds[block] -= 1
            if not self._holds[block]:
                self._free.append(block)


class WindowTexts:
    """Texts that grow in one program. `windows` are those of its limits; without them all layers keep all tokens."""

    def __init__(self, program: base.Program, limits: base.Limits, seed: int = 0) -> None:
        self.program, self.num_blocks = program, limits.num_blocks
        sizes = [(limits.num_blocks, None), *((each.num_blocks, each.window) for each in limits.windows)]
        self.pools = [Pool(num_blocks, window, seed + at) for at, (num_blocks, window) in enumerate(sizes)]
        self.tables: dict[str, list[list[int]]] = {}
        self.computed: dict[str, int] = {}

    def part(self, text: str, tokens: Sequence[int]) -> RowPart:
        """The next tokens of a text, with its tables in all groups."""
        tables, start = self.tables.setdefault(text, [[] for _ in self.pools]), self.computed.get(text, 0)
        end = self.computed[text] = start + len(tokens)
        for pool, table in zip(self.pools, tables, strict=True):
            pool.extend(table, start, end)
        first, *others = (list(table) for table in tables)
        return RowPart(tokens, start, first, len(tokens), windows=others)

    def fork(self, text: str, name: str) -> None:
        """Begin another text with the same tokens, in the same blocks. Its last block must be full, or copied."""
        tables = zip(self.pools, self.tables[text], strict=True)
        self.tables[name], self.computed[name] = [pool.share(table) for pool, table in tables], self.computed[text]

    def step(self, chunks: Mapping[str, Sequence[int]], num_shared: int = 0) -> dict[str, np.ndarray]:
        """Append a chunk to each text, which begin with so many same blocks; return logits [len(chunk), vocab]."""
        batch = Batch.of([self.part(text, tokens) for text, tokens in chunks.items()], BLOCK)
        if num_shared and len(chunks) > 1:
            groups = np.array([(0, row, num_shared) for row in range(len(chunks))], np.int32)
            batch = replace(batch, groups=groups)
        batch.check(self.num_blocks, BLOCK)
        logits = self.program.launch(batch).result().logits
        assert logits is not None
        return {text: logits[batch.starts[row] : batch.starts[row + 1]] for row, text in enumerate(chunks)}

    def write(self, texts: Mapping[str, Sequence[int]], chunk: int) -> dict[str, np.ndarray]:
        """Compute these texts together, `chunk` tokens of each in a step; return the logits of all tokens."""
        found: dict[str, list[np.ndarray]] = {name: [] for name in texts}
        for at in range(0, max(map(len, texts.values())), chunk):
            step = {name: tokens[at : at + chunk] for name, tokens in texts.items() if at < len(tokens)}
            for name, logits in self.step(step).items():
                found[name].append(logits)
        return {name: np.concatenate(pieces) for name, pieces in found.items()}


def logits_after_copied_heads(
    program: base.Program, limits: base.Limits, prompt: list[int], rest: list[int]
) -> tuple[np.ndarray | None, np.ndarray]:
    """Continue the first 37 tokens of a text with others, after copying heads of its blocks, whose numbers differ in
    each group. Return the logits, and those of that text computed by itself."""
    expected = WindowTexts(program, limits).write({"b": prompt[:37] + rest}, 64)["b"]
    texts = WindowTexts(program, limits, seed=7)
    texts.write({"a": prompt}, 64)
    texts.fork("a", "b")
    texts.computed["b"], copies = 37, []
    for pool, table in zip(texts.pools, texts.tables["b"], strict=True):
        source, table[2:] = table[2], [pool.take()]
        copies.append(np.array([[source, table[2], 5]], np.int32))
    assert len({tuple(each[0]) for each in copies}) == len(copies), "the groups have different numbers"
    batch = Batch.of([texts.part("b", rest)], BLOCK)
    groups = [replace(each, copies=copy) for each, copy in zip(batch.windows, copies[1:], strict=True)]
    found = program.launch(replace(batch, copies=copies[0], windows=tuple(groups))).result().logits
    assert texts.tables["b"][1][:2] == [UNDEFINED] * 2, "behind the window of 5"
    return found, expected[37:]
