"""Sampling on the device selects the same tokens as the host's filters and the same random numbers."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch

from quire.devices._triton import sample
from quire.devices._triton.sample import DrawArrays, SampleBuffers, SampleSizes, sample_tokens
from quire.ops.batch import Draws
from quire.sampling.mask import blank
from tests.devices.interpreted import in_interpreter
from tests.sampling.device_reference import expected_token, kept_tokens

pytestmark = pytest.mark.device

VOCAB = 300
SMALL, TINY = SampleSizes(block=64, num_candidates=128), SampleSizes(64, 16)  # the interpreter is slow
OFF: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "chance": 0.5}
KINDS = {"rows": np.int32, "top_k": np.int32, "masked": np.bool_}


def draws_of(*entries: dict[str, Any]) -> Draws:
    """Build draws from entries, each with its changes to OFF; its row is its index unless it has another."""
    rows = [{"rows": at, "masked": False, **OFF, **each} for at, each in enumerate(entries)]
    columns = {f.name: [row[f.name] for row in rows] for f in fields(Draws)}
    return Draws(**{name: np.array(column, KINDS.get(name, np.float32)) for name, column in columns.items()})


def run(
    logits: np.ndarray,
    draws: Draws,
    place: str,
    bits: np.ndarray | None = None,
    sizes: SampleSizes = SMALL,
    **more: Any,
) -> tuple[list[int], list[int]]:
    """Return the tokens, and the table of last tokens, which was filled with -7."""
    mask_of = np.full(len(draws.rows), -1, np.int32)
    mask_of[draws.masked] = np.arange(draws.masked.sum())

    def on_device(array: np.ndarray) -> Any:
        return torch.from_numpy(array).to(place)

    words = None if bits is None else on_device(bits.view(np.int32))
    params = (on_device(getattr(draws, name)) for name in DrawArrays._fields[:6])
    arrays = DrawArrays(*params, on_device(mask_of), words)
    tokens = torch.zeros(len(logits), dtype=torch.int32, device=place)
    last = torch.full((16,), -7, dtype=torch.int32, device=place)
    tensor = torch.from_numpy(logits).to(place, more.pop("dtype", torch.float32))
    sample_tokens(tensor, arrays, tokens, last, SampleBuffers.of(len(logits), logits.shape[1], place, sizes), **more)
    return tokens.tolist(), last.tolist()


def expected(logits: np.ndarray, draws: Draws, bits: np.ndarray | None = None) -> list[int]:
    masks = iter(() if bits is None else bits)
    mask_of = [next(masks) if is_masked else None for is_masked in draws.masked]
    return [expected_token(x, draws, at, mask_of[at]) if draws.rows[at] >= 0 else -1 for at, x in enumerate(logits)]


def normal(num_rows: int, spread: float = 3.0, vocab: int = VOCAB) -> np.ndarray:
    return np.random.default_rng(num_rows).normal(0.0, spread, (num_rows, vocab)).astype(np.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, *in_interpreter(torch.float32)])
@pytest.mark.parametrize("is_greedy", [True, False])
def test_greedy_takes_the_likeliest_and_the_first_of_equals(place: str, dtype: Any, is_greedy: bool) -> None:
    logits = normal(5).round(0)  # many are equal, also as bfloat16
    logits[0, [3, 130, 299]] = 99.0
    logits[1, [128, 240]] = 99.0
    draws = draws_of(*[{"temperature": 0.0, "rows": row} for row in (4, 0, -1, 9, 2)])
    tokens, last = run(logits, draws, place, dtype=dtype, is_greedy=is_greedy)
    assert tokens == expected(logits, draws) and tokens[:3] == [3, 128, -1]
    assert last == [tokens[1], -7, tokens[4], -7, tokens[0], *[-7] * 4, tokens[3], *[-7] * 6]


def test_a_row_with_invalid_logits_has_no_token_and_others_have(place: str) -> None:
    logits = normal(8)
    logits[[0, 5], 200], logits[1], logits[2, 17] = np.nan, -np.inf, np.inf
    logits[3, 250] = np.nan
    draws = draws_of(*[{"temperature": 0.0}] * 3, {"temperature": 0.0, "masked": True}, *[{"top_k": 5}] * 4)
    bits = blank(1, VOCAB)
    bits[0, :3] = 0xFFFFFFFF  # the NaN is at a token that the grammar rules out
    tokens, last = run(logits, draws, place, bits)
    assert tokens[:3] == [-1] * 3 == [tokens[5]] * 3 and last[:3] == [0] * 3
    assert tokens == expected(logits, draws, bits) and tokens[3] == logits[3, :96].argmax()


FILTERS: dict[str, list[dict[str, Any]]] = {
    "none": [{}, {"temperature": 0.4}, {"temperature": 2.5}],
    "min-p": [{"min_p": 0.2}, {"min_p": 0.01, "temperature": 1.7}, {"min_p": 1.0}],
    "top-k": [{"top_k": 1}, {"top_k": 40, "temperature": 2.0}, {"top_k": 7}, {"top_k": 5000}],
    "top-p": [{"top_p": 0.5}, {"top_p": 0.95, "temperature": 1.4}, {"top_p": 1e-6}],
    "all": [{"top_k": 30, "top_p": 0.8, "min_p": 0.02, "temperature": 1.8}, {"top_k": 3, "top_p": 0.99}],
}


@pytest.mark.parametrize("few", [True, *in_interpreter(False)], ids=["all logits", "candidates"])
@pytest.mark.parametrize("name", ["all", *in_interpreter(*(name for name in FILTERS if name != "all"))])
def test_filters_and_random_numbers_select_the_hosts_token(place: str, name: str, few: bool) -> None:
    """With at most 16 candidates, all logits of most rows have to be searched."""
    entries = [{**each, "chance": chance} for each in FILTERS[name] for chance in ((0.81,) if few else (0.0, 0.999))]
    logits, draws = normal(len(entries)), draws_of(*entries)
    tokens, _ = run(logits, draws, place, sizes=TINY if few else SMALL)
    assert tokens == expected(logits, draws)


@pytest.mark.interpreted
@pytest.mark.parametrize("few", [False, True], ids=["candidates", "all logits"])
def test_equal_logits_at_the_edge_are_kept_in_the_order_of_their_ids(place: str, few: bool) -> None:
    logits = np.tile(normal(1, 1.0).round(0), (4, 1))
    entries = [{**cut, "chance": chance} for cut in ({"top_k": 25}, {"top_p": 0.37}) for chance in (0.0, 0.9999)]
    draws = draws_of(*entries)
    for entry in (0, 2):
        ids, x = kept_tokens(logits[entry], draws, entry)
        assert (x == x.min()).sum() < (logits[entry] == logits[entry, ids].min()).sum(), "some equal ones are dropped"
    assert run(logits, draws, place, sizes=TINY if few else SMALL)[0] == expected(logits, draws)


def test_entries_use_their_own_masks_and_very_unlikely_tokens_can_be_drawn(place: str) -> None:
    logits = normal(6)
    logits[4, [70, 200]] = -300.0, -340.0  # the only two that are allowed, beyond the range of bins
    draws = draws_of(
        {"masked": True, "temperature": 0.0},
        {"top_k": 20},
        {"masked": True, "top_p": 0.9, "chance": 0.7},
        {"masked": True, "chance": 0.2},
        {"masked": True, "top_k": 5, "temperature": 30.0, "chance": 0.9},
        {"masked": True, "top_k": 5},
    )
    bits = blank(5, VOCAB)
    bits[:3] = np.random.default_rng(1).integers(0, 1 << 32, (3, bits.shape[1]), dtype=np.uint32)
    bits[3, 70 // 32], bits[3, 200 // 32] = 1 << (70 % 32), 1 << (200 % 32)
    tokens, _ = run(logits, draws, place, bits)
    assert tokens == expected(logits, draws, bits)
    assert tokens[4] == 200 and tokens[5] == -1  # the last mask allows nothing


@pytest.mark.interpreted
def test_tokens_are_drawn_as_often_as_they_are_likely(place: str) -> None:
    """With evenly spaced random numbers, each token's count is its share, rounded."""
    num_draws, logits = 16, normal(1, vocab=40)
    entries = [{"top_k": 12, "top_p": 0.9, "rows": 0, "chance": (at + 0.5) / num_draws} for at in range(num_draws)]
    draws = draws_of(*entries)
    tokens, _ = run(np.repeat(logits, num_draws, 0), draws, place, sizes=SampleSizes(32, 32))
    ids, x = kept_tokens(logits[0], draws, 0)
    shares = np.zeros(40)
    shares[ids] = np.exp(x) / np.exp(x).sum()
    assert np.abs(np.bincount(tokens, minlength=40) - shares * num_draws).max() <= 1.0


@pytest.mark.interpreted
def test_a_token_does_not_depend_on_how_many_programs_share_the_vocabulary(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [{"top_p": 0.9, "chance": 0.3}, {"chance": 0.6}, {"temperature": 0.0}, {"top_k": 9, "chance": 0.9}]
    logits, draws = normal(4), draws_of(*entries)
    tokens, _ = run(logits, draws, place)
    monkeypatch.setattr(sample, "NUM_PROGRAMS", 8)
    assert run(logits, draws, place)[0] == tokens == expected(logits, draws)


@pytest.mark.gpu
def test_a_vocabulary_of_128256_on_an_accelerator(place: str) -> None:
    """With the default sizes, also for nearly flat distributions."""
    rng = np.random.default_rng(0)
    spread = np.where(np.arange(64) % 8 == 0, 0.01, 2.5).astype(np.float32)
    logits = rng.normal(0.0, 1.0, (64, 128_256)).astype(np.float32) * spread[:, None]
    cuts = [{}, {"top_k": 40}, {"top_p": 0.9}, {"min_p": 0.05}, {"top_k": 5000, "top_p": 0.95}, {"temperature": 0.0}]
    draws = draws_of(*[{**cuts[at % 6], "rows": at % 16, "chance": float(rng.random())} for at in range(64)])
    tokens, _ = run(logits, draws, place, sizes=SampleSizes())
    exact = expected(logits, draws)
    assert np.mean(np.array(tokens) == exact) > 0.95  # rounding of a sum of 128,256 float32 may select a neighbour
    for at, token in enumerate(tokens):
        assert token in kept_tokens(logits[at], draws, at)[0] if draws.temperature[at] else token == exact[at]
