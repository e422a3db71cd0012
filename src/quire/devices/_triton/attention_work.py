"""Plans the work of paged attention in a step: items of about equal cost. Numpy only, no loop over rows.

    item     first, count, row, begin, end, part: the tokens members[first : first + count] attend to the keys at the
             positions begin .. end - 1 of `row`'s block table; begin is the start of a block
    narrow   items of one row's few tokens (decoding, drafts): as many queries as the smallest matrix product has rows;
             a row with more drafts has several, if `split_tokens` says so
    wide     items of prompts, and of tokens of many rows over the blocks that their tables share
    part     a token whose keys are split over several items has a partial result in each, merged in the order of parts

With `fixed_chunk` a token's numbers depend on its own text only: all items are wide, every item has whole chunks of
that many keys (or the row's last chunk), and the kernel folds chunks in the same way as the merge.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quire.ops.batch import Batch
from quire.ops.cache import PagedKV

Array = NDArray[Any]

FIRST, COUNT, ROW, BEGIN, END, PART = range(6)
STEP = 128  # chunks are multiples of this many keys: no kernel has a larger tile
MIN_NARROW_CHUNK = 128  # below this, the overhead of a chunk and its merge outweigh the better balance
MIN_WIDE_CHUNK = 512
MIN_SHARED = 2048  # keys that a group must save its members from reading to be worth the merge


class AttentionKind(NamedTuple):
    """What determines the work of a layer's attention. Layers of one kind share a plan."""

    kv_heads: int
    group: int  # query heads that share a key head
    key_dim: int
    value_dim: int
    window: int | None = None
    chunk: int | None = None
    is_source: bool = False  # keys are of an encoder's output, all of which every token reads
    is_latent: bool = False  # all heads read the same latents; `kv_heads` are blocks of `group` heads each

    @classmethod
    def of(cls, spec: PagedKV, width: int) -> AttentionKind:
        """Return the kind of a layer with this cache and queries of this total width."""
        group = width // spec.key_dim // spec.num_heads
        return cls(spec.num_heads, group, spec.key_dim, spec.value_dim, spec.window, spec.chunk)

    @property
    def num_heads(self) -> int:
        return self.kv_heads * self.group

    @property
    def reach(self) -> int | None:
        """A query reads no token further back than this, its own included; None: all before it."""
        return min((size for size in (self.window, self.chunk) if size is not None), default=None)

    @property
    def dim(self) -> int:
        """The size that determines the tiles."""
        return max(self.key_dim, self.value_dim)


@dataclass(frozen=True, slots=True)
class WorkLimits:
    """What is known before any step: the sizes that determine how work is split, and its maximum."""

    max_tokens: int
    max_rows: int
    max_length: int  # tokens of a row
    kv_heads: int
    group: int  # query heads that share a key head
    num_ctas: int  # narrow programs that the device runs at once
    wide_ctas: int
    narrow_queries: int = 16  # BLOCK_M of the launches
    wide_queries: int = 128
    block_tokens: int = 16
    window: int | None = None
    chunk: int | None = None  # a query reads only keys of its own chunk of this many positions
    fixed_chunk: int | None = None
    split_tokens: int = 0  # rows of up to so many tokens have narrow items, several if they do not fit into one
    reads_all: bool = False  # every token reads all `lengths` keys of its row: they are no tokens of the text
    expanded_tokens: int | None = None  # rows of so many tokens, with no earlier ones, have no items; None: all have

    @property
    def hides_keys(self) -> bool:
        """Whether a query does not see all keys before it."""
        return self.window is not None or self.chunk is not None

    @property
    def narrow_tokens(self) -> int:
        """Maximum members of a narrow item."""
        return 0 if self.fixed_chunk else max(1, self.narrow_queries // self.group)

    @property
    def few_tokens(self) -> int:
        """Maximum tokens of a row that has narrow items."""
        return 0 if self.fixed_chunk else max(self.narrow_tokens, self.split_tokens)

    @property
    def wide_tokens(self) -> int:
        return max(1, self.wide_queries // self.group)

    @property
    def narrow_budget(self) -> int:
        """Items that fill the device if there are fewer rows."""
        return -(-self.num_ctas // self.kv_heads)

    @property
    def wide_budget(self) -> int:
        return -(-self.wide_ctas // self.kv_heads)

    @property
    def fixed_budget(self) -> int:
        """Enough items to split the longest row into all its chunks."""
        return max(self.wide_budget, -(-self.max_length // (self.fixed_chunk or self.max_length)))


class Capacity(NamedTuple):
    """The maximum that a step of some tokens and rows can need; grids of captured launches have these sizes."""

    narrow: int
    wide: int
    partials: int

    @classmethod
    def of(cls, limits: WorkLimits, num_tokens: int, num_rows: int) -> Capacity:
        """Return the capacity for steps of up to these tokens and rows.

        If both are equal, all rows decode. With `split_tokens` there may be as many rows, with more than a token each.
        """
        tokens = limits.wide_tokens
        if limits.fixed_chunk:
            wide = num_rows + (num_tokens - num_rows) // tokens + limits.fixed_budget
            return cls(0, wide, 2 * limits.fixed_budget * min(tokens, num_tokens))
        few = min(num_tokens, num_rows * limits.few_tokens)  # tokens of narrow rows
        is_decode = num_tokens == num_rows and not limits.split_tokens
        spans = min(num_tokens, num_rows + num_tokens // limits.narrow_tokens) if limits.split_tokens else num_rows
        narrow = max(spans, limits.narrow_budget)
        shared = _max_shared(limits, few)
        prompts = 0 if is_decode else -(-num_tokens // tokens) + num_rows
        wide = max(prompts + shared, limits.wide_budget)
        narrow_partials = narrow * (1 if is_decode else limits.narrow_tokens)
        return cls(narrow, wide, narrow_partials + max(shared, limits.wide_budget) * tokens)


class WorkViews(NamedTuple):
    """Where a step's work is written: numpy views of one int32 buffer, or tensors of its copy on a device."""

    counts: Any  # [2] narrow and wide items
    narrow: Any  # [capacity, 6]
    wide: Any  # [capacity, 6]
    members: Any  # [2 * max tokens] the tokens themselves, 0, 1, 2 …; then members of groups
    first_part: Any  # [max tokens] index of a token's part 0 among all partial results; undefined for a single part
    num_parts: Any  # [max tokens]

    @classmethod
    def of(cls, buffer: Any, limits: WorkLimits) -> WorkViews:
        """Return views of a flat buffer of `work_size(limits)` numbers, for steps up to the limits."""
        views, begin = [], 0
        for shape in _shapes(limits):
            size = math.prod(shape)
            views.append(buffer[begin : begin + size].reshape(shape))
            begin += aligned(size)
        return cls(*views)


class WorkCounts(NamedTuple):
    narrow: int
    wide: int
    partials: int  # 0: nothing has to be merged
    has_expanded: bool = False  # some tokens have no items


def work_size(limits: WorkLimits) -> int:
    """Return the maximum size of a step's work, in int32."""
    return sum(aligned(math.prod(shape)) for shape in _shapes(limits))


def aligned(size: int) -> int:
    """Round a number of int32 up to 16 bytes: kernels are specialized for aligned pointers."""
    return -(-size // 4) * 4


def _shapes(limits: WorkLimits) -> list[tuple[int, ...]]:
    most = Capacity.of(limits, limits.max_tokens, limits.max_rows)
    tokens = limits.max_tokens
    return [(2,), (most.narrow, 6), (most.wide, 6), (2 * tokens,), (tokens,), (tokens,)]


def plan_work(batch: Batch, limits: WorkLimits, out: WorkViews) -> WorkCounts:
    """Split the step into items, and write them to `out`."""
    num_tokens = len(batch.positions)
    counts = batch.starts[1:] - batch.starts[:-1]
    is_few = counts <= limits.few_tokens
    out.members[:num_tokens] = np.arange(num_tokens, dtype=np.int32)
    shared, begins = _shared_spans(batch, counts, is_few, limits, out.members)
    spans = _own_spans(batch, counts, is_few, begins, limits)
    is_expanded = _expanded_rows(batch, counts, limits)
    if is_expanded.any():
        spans[is_expanded[spans[:, ROW]], END] = 0  # no keys, hence no pieces and no parts
    if limits.fixed_chunk:
        pieces = _fixed_pieces(spans, limits)
        out.num_parts[:num_tokens] = np.repeat(pieces, spans[:, COUNT])
        narrow, wide = spans[:0], _cut(spans, pieces, limits.fixed_chunk)
    else:
        narrow, wide = _cut_both(spans, shared, is_few, limits, out)
    for view, items in ((out.narrow, narrow), (out.wide, wide)):
        if len(items) > len(view):
            raise ValueError(f"{len(items)} attention items, but the buffer holds {len(view)}")
        view[: len(items)] = _longest_first(items)
    out.counts[:] = len(narrow), len(wide)
    partials = _place_parts(out.num_parts[:num_tokens], out.first_part[:num_tokens])
    return WorkCounts(len(narrow), len(wide), partials, bool(is_expanded.any()))


def _expanded_rows(batch: Batch, counts: Array, limits: WorkLimits) -> Array:
    """Return which rows have no items: bool [R]."""
    if limits.expanded_tokens is None:
        return np.zeros(len(counts), np.bool_)
    is_expanded: Array = (counts == batch.lengths) & (counts >= limits.expanded_tokens)
    return is_expanded


def _place_parts(num_parts: Array, first_part: Array) -> int:
    """Assign indices to the partial results of each token; return how many there are."""
    if num_parts.max() <= 1:
        return 0
    partials = num_parts * (num_parts > 1)
    ends = partials.cumsum(dtype=np.int32)
    np.subtract(ends, partials, out=first_part)
    return int(ends[-1])


def _cut_both(spans: Array, shared: Array, is_few: Array, limits: WorkLimits, out: WorkViews) -> tuple[Array, Array]:
    """Return narrow and wide items of the rows' own spans and of shared ones; write each token's parts to `out`."""
    few = None if is_few.all() else is_few[spans[:, ROW]]
    narrow = spans if few is None else spans[few]
    wide = shared if few is None else np.concatenate([shared, spans[~few]])
    chunk = _chunk(narrow, max(len(narrow), limits.narrow_budget), MIN_NARROW_CHUNK)
    narrow_pieces = _pieces(narrow, chunk)
    wide_chunk = _chunk(wide, max(len(wide), limits.wide_budget), MIN_WIDE_CHUNK)
    wide_pieces = _pieces(wide, wide_chunk)
    pieces = narrow_pieces
    if few is not None:
        pieces = np.empty(len(spans), np.int32)
        pieces[few], pieces[~few] = narrow_pieces, wide_pieces[len(shared) :]
    num_tokens = int(spans[-1, FIRST] + spans[-1, COUNT])
    out.num_parts[:num_tokens] = pieces if num_tokens == len(spans) else np.repeat(pieces, spans[:, COUNT])
    if len(shared):
        parts = np.zeros(num_tokens, np.int32)
        members = out.members[num_tokens : num_tokens + shared[:, COUNT].sum()]
        parts[members] = np.repeat(wide_pieces[: len(shared)], shared[:, COUNT])
        narrow[:, PART] = parts[narrow[:, FIRST]]  # a row's own keys come after the shared ones
        out.num_parts[:num_tokens] += parts
    return _cut(narrow, narrow_pieces, chunk), _cut(wide, wide_pieces, wide_chunk)


def _own_spans(batch: Batch, counts: Array, is_few: Array, begins: Array, limits: WorkLimits) -> Array:
    """Return spans [S, 6] in the order of tokens: every token once, with the keys that no shared span covers."""
    num_rows, num_tokens = len(counts), len(batch.positions)
    if num_tokens == num_rows:
        spans = np.zeros((num_rows, 6), np.int32)
        spans[:, FIRST] = spans[:, ROW] = np.arange(num_rows)
        spans[:, COUNT] = 1
        spans[:, END] = batch.lengths
    else:
        sizes = np.where(is_few, max(limits.narrow_tokens, 1), limits.wide_tokens)
        tiles = -(-counts // sizes)
        rows = np.arange(num_rows).repeat(tiles)
        tile = np.arange(len(rows)) - np.repeat(tiles.cumsum() - tiles, tiles)
        last = batch.starts[rows + 1]
        spans = np.zeros((len(rows), 6), np.int32)
        spans[:, FIRST] = batch.starts[rows] + tile * sizes[rows]
        stop = np.minimum(spans[:, FIRST] + sizes[rows], last)
        spans[:, COUNT] = stop - spans[:, FIRST]
        spans[:, ROW] = rows
        spans[:, END] = batch.lengths[rows] - (0 if limits.reads_all else last - stop)
    if limits.hides_keys:
        position = spans[:, END] - spans[:, COUNT]  # of the first member
        seen = np.zeros_like(position) if limits.window is None else np.maximum(position - limits.window + 1, 0)
        if limits.chunk is not None:
            seen = np.maximum(seen, position // limits.chunk * limits.chunk)
        step = limits.fixed_chunk or limits.block_tokens
        spans[:, BEGIN] = seen // step * step
    elif len(begins):
        spans[:, BEGIN] = begins[spans[:, ROW]]
        np.maximum(spans[:, END], spans[:, BEGIN], out=spans[:, END])
    return spans


def _shared_spans(
    batch: Batch, counts: Array, is_few: Array, limits: WorkLimits, members: Array
) -> tuple[Array, Array]:
    """Return spans [S, 6] over the blocks that groups share, and where each row's own keys begin [R] (empty: all at 0).

    Rows with many tokens are left out: their tokens already share what they read. So are groups that save too little.
    """
    none = np.zeros((0, 6), np.int32), np.zeros(0, np.int32)
    if not len(batch.groups) or limits.hides_keys or limits.fixed_chunk:
        return none
    groups = batch.groups[is_few[batch.groups[:, 1]]]
    if not len(groups):
        return none
    at = np.concatenate([[0], np.flatnonzero(np.diff(groups[:, 0])) + 1])
    tokens = np.add.reduceat(counts[groups[:, 1]], at)
    # blocks beyond the longest member are not written yet, though its last block may be shared
    ends = np.minimum(groups[at, 2] * limits.block_tokens, np.maximum.reduceat(batch.lengths[groups[:, 1]], at))
    sizes = np.diff(np.append(at, len(groups)))
    tiles = np.where((sizes - 1) * ends >= MIN_SHARED, -(-tokens // limits.wide_tokens), 0)
    tiles[tiles.cumsum() > _max_shared(limits, int(counts[is_few].sum()))] = 0
    if not tiles.any():
        return none
    rows = groups[np.repeat(tiles > 0, sizes)]
    begins = np.zeros(len(counts), np.int32)
    begins[rows[:, 1]] = rows[:, 2] * limits.block_tokens
    lists = counts[rows[:, 1]]
    offset = np.arange(lists.sum()) - np.repeat(lists.cumsum() - lists, lists)
    place = len(batch.positions)
    members[place : place + len(offset)] = np.repeat(batch.starts[rows[:, 1]], lists) + offset
    return _shared_tiles(groups[at, 1], tokens, ends, tiles, place, limits), begins


def _shared_tiles(rows: Array, tokens: Array, ends: Array, tiles: Array, place: int, limits: WorkLimits) -> Array:
    """Return the spans of groups with `tokens` in `tiles` each; the members of the first group begin at `place`."""
    tokens = np.where(tiles > 0, tokens, 0)
    group = np.arange(len(tiles)).repeat(tiles)
    tile = np.arange(len(group)) - np.repeat(tiles.cumsum() - tiles, tiles)
    spans = np.zeros((len(group), 6), np.int32)
    spans[:, FIRST] = place + (tokens.cumsum() - tokens)[group] + tile * limits.wide_tokens
    spans[:, COUNT] = np.minimum(tokens[group] - tile * limits.wide_tokens, limits.wide_tokens)
    spans[:, ROW], spans[:, END] = rows[group], ends[group]
    return spans


def _max_shared(limits: WorkLimits, num_tokens: int) -> int:
    """Return the maximum of shared tiles: those of one group with all tokens, plus enough small ones for the device."""
    return -(-num_tokens // limits.wide_tokens) + limits.wide_budget


def _chunk(spans: Array, most: int, least: int) -> int:
    """Return about the smallest multiple of STEP, at least `least`, that splits the spans into up to `most` items."""
    if not len(spans):
        return least
    lengths = spans[:, END] - spans[:, BEGIN]
    high = max(-(-int(lengths.max()) // STEP) * STEP, least)  # always enough: nothing is split
    if most <= len(spans):
        return high
    low = max(int(lengths.sum()) // most // STEP * STEP, least)  # too small, or exact
    step = STEP << max(0, (low // (8 * STEP)).bit_length() - 1)  # not finer than an eighth
    while low < high:
        middle = low + (high - low) // 2 // step * step
        if int(((lengths + (middle - 1)) // middle).sum()) <= most:
            high = middle
        else:
            low = min(middle + step, high)
    return low


def _pieces(spans: Array, chunk: int) -> Array:
    pieces: Array = (spans[:, END] - spans[:, BEGIN] + (chunk - 1)) // chunk
    return pieces


def _fixed_pieces(spans: Array, limits: WorkLimits) -> Array:
    """Return 1 for a span that stays one item, else its number of chunks: the longest are split, within the budget."""
    chunks = _pieces(spans, limits.fixed_chunk or 1)
    order = np.argsort(-chunks, kind="stable")
    fits = np.cumsum(chunks[order] - 1) <= limits.fixed_budget
    pieces = np.ones_like(chunks)
    pieces[order[fits]] = chunks[order[fits]]
    return pieces


def _cut(spans: Array, pieces: Array, chunk: int) -> Array:
    """Split every span into its number of pieces, one chunk each. A span with no pieces is dropped."""
    if not len(pieces) or pieces.min() == pieces.max() == 1:
        return spans
    items = spans.repeat(pieces, axis=0)
    piece = np.arange(len(items), dtype=np.int32) - (pieces.cumsum(dtype=np.int32) - pieces).repeat(pieces)
    items[:, BEGIN] += piece * chunk
    items[:, PART] += piece
    np.minimum(items[:, END], items[:, BEGIN] + chunk, out=items[:, END], where=(pieces > 1).repeat(pieces))
    return items


def _longest_first(items: Array) -> Array:
    """Sort items by length, so that no long one starts last. Units of 16 keys: numpy sorts 16 bits in linear time."""
    if not len(items):
        return items
    lengths = (items[:, END] - items[:, BEGIN]) >> 4
    longest = int(lengths.max())
    if longest == lengths.min():
        return items
    shorter = (longest - lengths).astype(np.uint16)  # a row of a million tokens has 65,536 blocks
    sorted_items: Array = items[shorter.argsort(kind="stable")]
    return sorted_items
