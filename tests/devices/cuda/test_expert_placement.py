"""The placement of experts: how many are in host memory, which ones exchange their places, and the speed."""

from __future__ import annotations

import pytest

from quire.devices.cuda.expert_placement import (
    LEAST_GAIN,
    Bandwidths,
    ExpertPair,
    HostChoice,
    TokenBytes,
    exchanges,
    num_on_host,
)

pytestmark = pytest.mark.pure


def test_auto_keeps_in_host_memory_what_does_not_fit():
    auto = HostChoice(None)
    assert auto.share(100, None) == 0 and auto.share(100, 100) == 0 and auto.share(100, 250) == 0
    assert auto.share(100, 60) == pytest.approx(0.4)
    assert auto.share(100, 0) == 1 and auto.share(100, -50) == 1
    assert auto.share(0, -50) == 0  # a model without experts


def test_a_number_of_bytes_is_kept_in_host_memory_even_if_all_would_fit():
    assert HostChoice(0).share(100, 10) == 0
    assert HostChoice(30).share(100, None) == pytest.approx(0.3) and HostChoice(30).share(100, 10) == pytest.approx(0.3)
    assert HostChoice(200).share(100, 10) == 1


def test_a_share_is_rounded_up_to_whole_experts():
    assert [num_on_host(share, 8) for share in (0, 0.01, 0.125, 0.126, 0.99, 1)] == [0, 1, 1, 2, 8, 8]
    assert num_on_host(0.3, 10) == 3  # and not 4, by an error of rounding


def test_the_most_read_expert_takes_the_place_of_the_least_read_one():
    reads = [50, 3, 90, 0, 70, 8]
    is_on_gpu = [True, True, False, True, False, False]
    assert exchanges(reads, is_on_gpu, 8) == [ExpertPair(2, 3), ExpertPair(4, 1)]
    assert exchanges(reads, is_on_gpu, 1) == [ExpertPair(2, 3)]


def test_experts_that_are_read_about_equally_often_stay():
    is_on_gpu = [True, False]
    assert exchanges([10, 10 + LEAST_GAIN - 1], is_on_gpu, 8) == []
    assert exchanges([10, 10 + LEAST_GAIN], is_on_gpu, 8) == [ExpertPair(1, 0)]
    assert exchanges([10, 0], is_on_gpu, 8) == []
    assert exchanges([1, 100], [True, True], 8) == exchanges([1, 100], [False, False], 8) == []


def test_the_same_counts_again_move_nothing():
    reads, is_on_gpu = [0, 9, 9, 0, 30, 7], [True, True, False, True, False, False]
    for pair in exchanges(reads, is_on_gpu, 8):
        is_on_gpu[pair.to_gpu], is_on_gpu[pair.to_host] = True, False
    assert exchanges(reads, is_on_gpu, 8) == []


def test_tokens_per_second_are_limited_by_both_memories():
    token = TokenBytes(gpu=4e9, host=1e9)
    assert token.tokens_per_second(Bandwidths(4e12, 50e9)) == pytest.approx(1 / (1e-3 + 20e-3))
    assert TokenBytes(4e9, 0).tokens_per_second(Bandwidths(4e12, 50e9)) == pytest.approx(1000)
