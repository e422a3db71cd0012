"""The search of sample.py: which tokens the filters keep for one row, and which of them a random number selects.

A token's distance is how far its logit, divided by the temperature, is below the likeliest one's: 0 or more, so the
bits of its float are in the order of likelihood, likeliest first, and its weight is exp(-distance). What top-k and
top-p keep is given by two numbers: all tokens whose key, the distance's bits, is below `edge`, and of those at the edge
the first `num_equal` by id.

`source` is where one row's logits are read from: (logits, stride, vocab, entry, mask row, bits, stride of bits, the
largest logit, temperature, the distance that min-p allows).
"""

from __future__ import annotations

import triton
import triton.language as tl

NUM_BINS = tl.constexpr(256)
BINS_PER_UNIT = tl.constexpr(8.0)  # bins for a difference of 1 between logits
MANY = tl.constexpr(2147483647)
INFINITE = tl.constexpr(0x7F800000)  # the bits of infinity


@triton.jit
def allowed(logits, stride, vocab, entry, mask_row, bits, bits_stride, ids):
    """Load the logits of these tokens; minus infinity beyond the vocabulary and if the grammar rules a token out."""
    is_token = ids < vocab
    x = tl.load(logits + entry.to(tl.int64) * stride + ids, mask=is_token, other=float("-inf")).to(tl.float32)
    is_masked = is_token & (mask_row >= 0)
    words = tl.load(bits + tl.maximum(mask_row, 0).to(tl.int64) * bits_stride + ids // 32, mask=is_masked, other=-1)
    return tl.where((words >> (ids % 32)) & 1 == 1, x, float("-inf"))


@triton.jit
def largest_logit(tops, entry, num_blocks, BLOCKS: tl.constexpr):
    """Return the largest logit of a row."""
    at = tl.arange(0, BLOCKS)
    return tl.max(tl.load(tops + entry * num_blocks + at, mask=at < num_blocks, other=float("-inf")), 0)


@triton.jit
def likeliest(tops, firsts, entry, num_blocks, top, BLOCKS: tl.constexpr):
    """Return the first token that has the row's largest logit."""
    at = tl.arange(0, BLOCKS)
    x = tl.load(tops + entry * num_blocks + at, mask=at < num_blocks, other=float("-inf"))
    return tl.min(tl.load(firsts + entry * num_blocks + at, mask=x == top, other=MANY), 0)


@triton.jit
def is_finite(top):
    """Return whether the row has a distribution. The largest logit is infinite if one is NaN, or no token is left."""
    return (top > float("-inf")) & (top < float("inf"))


@triton.jit
def max_distance(min_p):
    """Return the distance that min-p allows."""
    return tl.where(min_p > 0.0, -tl.log(tl.maximum(min_p, 1e-37)), float("inf"))


@triton.jit
def bin_of(difference):
    """Return the bin of a difference between logits; the last bin has all large ones."""
    return tl.minimum(difference * BINS_PER_UNIT, NUM_BINS - 1.0).to(tl.int32)


@triton.jit
def bins_that_fit(bins, entry, num_blocks, CANDIDATES: tl.constexpr, BLOCKS: tl.constexpr):
    """Find how many bins, from the likeliest on, hold at most CANDIDATES tokens.

    Return how many tokens of those bins each block has, the tokens of all bins, and the number of bins.
    """
    block, at = tl.arange(0, BLOCKS)[:, None], tl.arange(0, NUM_BINS)[None, :]
    counts = tl.load(bins + (entry * num_blocks + block) * NUM_BINS + at, mask=block < num_blocks, other=0)
    reached = tl.cumsum(tl.sum(counts, 0), 0)
    num_bins = tl.sum((reached <= CANDIDATES).to(tl.int32), 0)
    return tl.sum(tl.where(at < num_bins, counts, 0), 1), tl.max(reached, 0), num_bins


@triton.jit
def weight_at(key):
    """Return the weight of a token with this key."""
    return tl.exp(-key.to(tl.float32, bitcast=True))


@triton.jit
def num_needed_for(target, below, weight):
    """Return how many tokens of this weight raise the sum from `below` to the target; at least one."""
    return tl.minimum(tl.maximum(tl.ceil((target - below) / tl.maximum(weight, 1e-37)), 1.0), 1e9).to(tl.int32)


@triton.jit
def first_passing(reached, weights, target, ids):
    """Return the first token with a weight at which the running sum passes the target; MANY: there is none."""
    return tl.min(tl.where((reached > target) & (weights > 0.0), ids, MANY), 0)


@triton.jit
def last_with_weight(weights, ids):
    """Return the last token with a weight; -1: there is none."""
    return tl.max(tl.where(weights > 0.0, ids, -1), 0)


# ── without top-k and top-p ──


@triton.jit
def weights_of(source, block, BLOCK: tl.constexpr):
    """Return tokens, keys and weights of one block of a row; the weight of a ruled-out token is 0."""
    logits, stride, vocab, entry, mask_row, bits, bits_stride, top, heat, most = source
    ids = block * BLOCK + tl.arange(0, BLOCK)
    x = allowed(logits, stride, vocab, entry, mask_row, bits, bits_stride, ids)
    distance = (top - x) / heat
    is_left = (distance <= most) & (x > float("-inf"))
    keys = tl.where(is_left, distance.to(tl.int32, bitcast=True), MANY)
    return ids, keys, tl.where(is_left, tl.exp(-distance), 0.0)


@triton.jit
def draw_in_block(source, sums, chance, BLOCK: tl.constexpr, BLOCKS: tl.constexpr):
    """Find the block by the sums of blocks, and the token by its weights."""
    reached = tl.cumsum(sums, 0)
    target = chance * tl.sum(sums, 0)
    at = tl.arange(0, BLOCKS)
    block = first_passing(reached, sums, target, at)
    block = tl.where(block == MANY, last_with_weight(sums, at), block)
    before = tl.sum(tl.where(at == block, reached - sums, 0.0), 0)
    ids, _, weights = weights_of(source, block, BLOCK)
    token = first_passing(before + tl.cumsum(weights, 0), weights, target, ids)
    return tl.where(token == MANY, last_with_weight(weights, ids), token)


# ── candidates ──


@triton.jit
def draw_of_candidates(
    found, found_ids, num_found, num_all, heat, k, p, whole, chance, CANDIDATES: tl.constexpr
):  # fmt: skip
    """Draw a token from the candidates that top-k and top-p keep. -1: they may keep tokens that are not candidates.

    `whole` is the weight of all tokens, `num_all` their number.
    """
    at = tl.arange(0, CANDIDATES)
    here = at < num_found
    distance = tl.load(found + at, mask=here, other=float("inf")) / heat
    ids = tl.load(found_ids + at, mask=here, other=-1)
    keys = tl.where(here, distance.to(tl.int32, bitcast=True), MANY)
    weights = tl.where(here, tl.exp(-distance), 0.0)
    edge, num_equal = tl.full((), INFINITE, tl.int32), tl.full((), MANY, tl.int32)
    is_enough = num_found == num_all
    if (k > 0) & (k <= num_found):
        low = 0
        while low < edge:
            middle = low + (edge - low) // 2
            reaches = tl.sum((keys <= middle).to(tl.int32), 0) >= k
            low = tl.where(reaches, low, middle + 1)
            edge = tl.where(reaches, middle, edge)
        num_equal = k - tl.sum((keys < edge).to(tl.int32), 0)
        below = tl.sum(tl.where(keys < edge, weights, 0.0), 0)
        whole = below + num_equal.to(tl.float32) * weight_at(edge)
        is_enough = True
    elif k > 0:
        is_enough = num_found == num_all
    elif tl.sum(weights, 0) >= p * whole:
        is_enough = True
    token = -1
    if is_enough:
        if p < 1.0:
            low, high = 0, edge
            while low < high:
                middle = low + (high - low) // 2
                reaches = tl.sum(tl.where(keys <= middle, weights, 0.0), 0) >= p * whole
                low = tl.where(reaches, low, middle + 1)
                high = tl.where(reaches, middle, high)
            below = tl.sum(tl.where(keys < high, weights, 0.0), 0)
            num_needed = num_needed_for(p * whole, below, weight_at(high))
            num_equal = tl.where(high < edge, num_needed, tl.minimum(num_equal, num_needed))
            edge = high
        is_equal = keys == edge
        is_kept = (keys < edge) | (is_equal & (tl.cumsum(is_equal.to(tl.int32), 0) <= num_equal))
        weights = tl.where(is_kept, weights, 0.0)
        reached = tl.cumsum(weights, 0)
        place = first_passing(reached, weights, chance * tl.sum(weights, 0), at)
        place = tl.where(place == MANY, last_with_weight(weights, at), place)
        token = tl.max(tl.where(at == place, ids, -1), 0)
    return token


# ── all logits, if there are too few candidates ──


@triton.jit
def up_to(source, key, BLOCK: tl.constexpr):
    """Return how many tokens have at most this key, and their weight."""
    count, weight = 0, 0.0
    for block in range(0, tl.cdiv(source[2], BLOCK)):
        _, keys, weights = weights_of(source, block, BLOCK)
        count += tl.sum((keys <= key).to(tl.int32), 0)
        weight += tl.sum(tl.where(keys <= key, weights, 0.0), 0)
    return count, weight


@triton.jit
def draw_of_all(source, k, p, chance, BLOCK: tl.constexpr):
    """Draw a token from all that top-k and top-p keep."""
    edge, num_equal = tl.full((), INFINITE, tl.int32), tl.full((), MANY, tl.int32)
    count, whole = up_to(source, edge, BLOCK)
    if (k > 0) & (k < count):
        low = 0
        while low < edge:
            middle = low + (edge - low) // 2
            count, _ = up_to(source, middle, BLOCK)
            low = tl.where(count >= k, low, middle + 1)
            edge = tl.where(count >= k, middle, edge)
        count, below = up_to(source, edge - 1, BLOCK)
        num_equal = k - count
        whole = below + num_equal.to(tl.float32) * weight_at(edge)
    if p < 1.0:
        low, high = 0, edge
        while low < high:
            middle = low + (high - low) // 2
            _, weight = up_to(source, middle, BLOCK)
            low = tl.where(weight >= p * whole, low, middle + 1)
            high = tl.where(weight >= p * whole, middle, high)
        _, below = up_to(source, high - 1, BLOCK)
        num_needed = num_needed_for(p * whole, below, weight_at(high))
        num_equal = tl.where(high < edge, num_needed, tl.minimum(num_equal, num_needed))
        edge = high
    num_below, below = up_to(source, edge - 1, BLOCK)
    count, _ = up_to(source, edge, BLOCK)
    num_equal = tl.minimum(num_equal, count - num_below)
    target = chance * (below + num_equal.to(tl.float32) * weight_at(edge))
    token, last, passed, num_seen = tl.full((), MANY, tl.int32), -1, 0.0, 0
    for block in range(0, tl.cdiv(source[2], BLOCK)):
        ids, keys, weights = weights_of(source, block, BLOCK)
        is_equal = keys == edge
        is_kept = (keys < edge) | (is_equal & (num_seen + tl.cumsum(is_equal.to(tl.int32), 0) <= num_equal))
        weights = tl.where(is_kept, weights, 0.0)
        token = tl.minimum(token, first_passing(passed + tl.cumsum(weights, 0), weights, target, ids))
        last = tl.maximum(last, last_with_weight(weights, ids))
        passed += tl.sum(weights, 0)
        num_seen += tl.sum(is_equal.to(tl.int32), 0)
    return tl.where(token == MANY, last, token)
