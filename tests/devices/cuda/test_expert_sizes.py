"""Heights of tiles: by the tokens that an expert gets; every height is warmed up."""

from __future__ import annotations

from itertools import pairwise

import pytest

from quire.devices.cuda.expert_sizes import (
    FIXED_HEIGHT,
    HEIGHTS,
    first_counts,
    is_few,
    most_few,
    most_tiles,
    tile_height,
)

pytestmark = pytest.mark.pure

SHAPES = ((8, 128), (4, 32), (6, 64), (1, 16))


@pytest.mark.parametrize("top, num_experts", SHAPES)
def test_there_is_a_first_count_for_every_height(top, num_experts):
    counts = first_counts(top, num_experts)
    heights = [tile_height(count, top, num_experts, is_fixed=False) for count in counts]
    assert set(heights) == set(HEIGHTS) and heights == sorted(heights)
    before = [tile_height(count - 1, top, num_experts, is_fixed=False) for count in counts]
    assert {(low, high) for low, high in zip(before, heights, strict=True) if low != high} == {*pairwise(HEIGHTS)}


def test_deterministic_mode_has_one_height_and_no_kernels_for_few():
    assert {tile_height(count, 8, 128, is_fixed=True) for count in (1, 40, 8192)} == {FIXED_HEIGHT}
    assert not is_few(1, 8, is_fixed=True) and is_few(1, 8, is_fixed=False)


def test_fewer_tokens_are_few_if_there_are_many_experts():
    assert [most_few(count) for count in (8, 128, 160, 384, 1024)] == [128, 128, 64, 32, 16]


def test_there_are_enough_tiles_when_one_expert_has_all_tokens_and_when_all_have_some():
    assert most_tiles(1, 8, 128, 16) == 8
    assert most_tiles(100, 1, 8, 16) >= 7
    assert most_tiles(33, 8, 128, 16) >= 128 + (33 * 8 - 128) // 16
