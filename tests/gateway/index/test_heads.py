"""Common heads with the children of a block, against all of them compared."""

from __future__ import annotations

from array import array
from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.gateway.index.heads import MAX_TRIED, BlockHeads

pytestmark = pytest.mark.pure

CHUNKS = st.lists(st.integers(0, 300), min_size=1, max_size=4)
PARENT = b"p" * 16


def packed(tokens: list[int]) -> bytes:
    return array("I", tokens).tobytes()


def num_common(left: tuple[int, ...], right: list[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))


@given(st.lists(CHUNKS, max_size=MAX_TRIED), st.lists(CHUNKS, max_size=4), CHUNKS)
def test_the_longest_head_comes_first_and_all_of_them_come(added, removed, asked):
    heads, kept = BlockHeads(), {tuple(each) for each in added} - {tuple(each) for each in removed}
    for chunk in added:
        heads.add(PARENT, packed(chunk))
    for chunk in removed:
        heads.discard(PARENT, packed(chunk))
    common = {packed(list(each)): num_common(each, asked) for each in kept}
    found = list(heads.nearest(PARENT, packed(asked)))
    assert [size for size, _ in found] == sorted((size for size in common.values() if size), reverse=True)
    assert all(common[chunk] == size for size, chunk in found)


def test_what_is_used_outlives_what_is_not():
    heads = BlockHeads(max_parents=4)
    heads.add(PARENT, packed([1, 2]))
    for number in range(30):
        heads.add(bytes([number] * 16), packed([number + 1]))
        assert list(heads.nearest(PARENT, packed([1]))) == [(1, packed([1, 2]))]
    assert list(heads.nearest(bytes(16), packed([1]))) == []
