"""How pairs (token, chosen expert) are divided into tiles, and what that takes. It does not import torch.

Tiles have about as many tokens as an expert gets, if all get equally many. In deterministic mode they have one height.
"""

from __future__ import annotations

MAX_FEW = 128  # tokens: a program reads the experts that all of them chose
MAX_LOGITS = 16384  # of few tokens
MAX_SUMMED = 16  # tokens: the kernel of the second product adds up the answers
HEIGHTS = (16, 32, 64, 128)
FIXED_HEIGHT = 64
COUNTED = 32  # tokens whose pairs a program counts
INT_BYTES = 4


def most_few(num_experts: int) -> int:
    """Return the most tokens that are few."""
    return min(MAX_FEW, max(16, MAX_LOGITS >> (num_experts - 1).bit_length()))


def is_few(num_tokens: int, num_experts: int, is_fixed: bool) -> bool:
    """Return whether the kernels of routing for few tokens are used."""
    return not is_fixed and num_tokens <= most_few(num_experts)


def is_summed(num_tokens: int, is_fixed: bool) -> bool:
    """Return whether the kernel of the second product adds up the answers."""
    return not is_fixed and num_tokens <= MAX_SUMMED


def tile_height(num_tokens: int, top: int, num_experts: int, is_fixed: bool) -> int:
    """Return the tokens of a tile."""
    if is_fixed:
        return FIXED_HEIGHT
    mean = num_tokens * top / num_experts
    return next((each for each in HEIGHTS if mean <= 0.75 * each), HEIGHTS[-1])


def first_counts(top: int, num_experts: int) -> list[int]:
    """Return the smallest number of tokens for each kernel that such experts use, without those for one token."""
    counts = [2, 5, 17, 33, 65, most_few(num_experts) + 1]  # of sums and of routing
    return sorted({*counts, *(int(0.75 * height * num_experts / top) + 1 for height in HEIGHTS[:-1])})


def most_tiles(num_tokens: int, top: int, num_experts: int, height: int) -> int:
    """Return the most tiles that there can be."""
    num_pairs = num_tokens * top
    return (num_pairs + min(num_pairs, num_experts) * (height - 1)) // height


def grouping_bytes(num_tiles: int, height: int) -> int:
    """Return the size of a `Grouping`."""
    return INT_BYTES * (num_tiles * height + 2 * (-(-num_tiles // 4) * 4) + 4)


def count_bytes(num_tokens: int, num_experts: int) -> int:
    """Return the size of the counts of pairs."""
    return INT_BYTES * -(-num_tokens // COUNTED) * (1 << (num_experts - 1).bit_length())
