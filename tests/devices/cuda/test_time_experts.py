"""Times of routing and experts are reported for every number of tokens, and the fastest tiles are ones that run."""

from __future__ import annotations

import pytest

from quire.devices.cuda.expert_tiles import ExpertKey, ExpertTiles
from quire.devices.cuda.time_experts import HEADS, ExpertShape, RandomExperts, expert_candidates, time_experts

pytestmark = pytest.mark.device

SHAPE = ExpertShape(num_experts=8, top=2, dim=64, ffn=32)


def test_there_is_a_row_for_each_number_of_tokens(place):
    rows = list(time_experts(RandomExperts(SHAPE, num_layers=2, place=place), (1, 33), 1e12))
    assert [row[0] for row in rows] == ["1", "33"]
    assert all(len(row) == len(HEADS) for row in rows)


@pytest.mark.parametrize("height", [16, 128])
def test_the_current_tile_is_the_first_candidate_and_all_are_supported(height):
    for key in (ExpertKey(768, 2048, "bf16", True, height), ExpertKey(2048, 768, "fp8_blocks", False, height)):
        current = ExpertTiles().find(key)
        found = list(expert_candidates(key, current))
        assert found[0] == current and len(found) == len(set(found)) > 10
        assert all(key.supports(tile) for tile in found)
