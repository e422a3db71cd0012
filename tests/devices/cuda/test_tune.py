"""Tuning: which candidates are timed, which one is used, and that all of them are correct."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from quire.bench.tune import tune_model
from quire.devices._triton.norm import Product, Rounded
from quire.devices._triton.stream import Scratch, Tile
from quire.devices.cuda.candidates import Candidate, candidates
from quire.devices.cuda.capture import IDLE_ROWS, Buckets, CapturedStep, GraphKind, idle_captures
from quire.devices.cuda.device import CudaDevice
from quire.devices.cuda.drafted import SINGLY, TOGETHER
from quire.devices.cuda.linear import Linear
from quire.devices.cuda.program import CudaProgram
from quire.devices.cuda.tiles import BUCKETS, MEASURED, ProductKey, Tiles
from quire.devices.cuda.tune import Multiplying, TimedPass, Tuner, fastest
from quire.devices.cuda.tuned_table import TunedTable, TuningTarget
from quire.models.draw import draw
from quire.ops.registry import relative_error
from tests.devices.cuda.models import Texts, lowered, random_llama, small
from tests.models.toys import VOCAB, some_tokens

pytestmark = pytest.mark.device

NUM_PROCESSORS = 132  # of an H200
ERRORS = {None: 2e-2, "fp8": 5e-2}


def table(folder: Path) -> TunedTable:
    return TunedTable(folder, TuningTarget.here("some GPU"))


def product_of(key: ProductKey) -> Linear:
    """Return a product without numbers."""
    dtype = torch.bfloat16 if key.width == 2 else torch.float8_e4m3fn
    weight = torch.empty((key.rows, key.columns), dtype=dtype, device="meta")
    return Linear(weight, None, None, Tiles(NUM_PROCESSORS), Scratch(torch.device("meta")), key.is_gate)


def choice_of(run: TimedPass) -> Tile | None:
    linear = run.instructions[0].linear
    assert isinstance(linear, Linear)
    return linear.tiles.find(linear.weight, len(run.x), linear.is_gate)


def key_of(run: TimedPass) -> ProductKey:
    linear = run.instructions[0].linear
    assert isinstance(linear, Linear)
    return ProductKey.of(linear.weight, next(most for most in BUCKETS if len(run.x) <= most), linear.is_gate)


@pytest.mark.parametrize("key", MEASURED, ids=str)
def test_the_shipped_tile_is_among_a_few_candidates(key):
    names = {each.choice: each.name for each in candidates(key, product_of(key))}
    assert names[None] == "library" and MEASURED[key] in names
    assert 5 <= len(names) <= 40 and len(set(names.values())) == len(names)
    for tokens in BUCKETS[1:]:
        more = [each.choice for each in candidates(key._replace(tokens=tokens), product_of(key))]
        assert 5 <= len(more) <= 30 and all(tile is None or tile.tokens == tokens for tile in more)


@pytest.mark.parametrize(
    "key", [ProductKey(6144, 4096, 2, False, 16), ProductKey(576, 576, 2, False, 32), ProductKey(96, 48, 1, True, 64)]
)
def test_every_candidate_is_supported_and_its_shares_fit_the_scratch_memory(key):
    linear = product_of(key)
    for each in candidates(key, linear):
        made = each.apply(linear)
        assert made.tiles.find(made.weight, key.tokens, key.is_gate) == each.choice
        if each.choice is not None:
            programs = -(-key.outputs // each.choice.rows)
            assert key.supports(each.choice) and (each.choice.shares == 1 or linear.scratch.fits(programs, each.choice))


def test_more_than_few_tokens_are_streamed_only_if_that_is_clearly_faster():
    tile = Tile(64, 128)

    def chosen(tokens: int, streamed: float, library: float = 1.0) -> Any:
        key = ProductKey(6144, 4096, 2, False, tokens)
        best = fastest({Candidate(key, None): library, Candidate(key, tile): streamed})
        return best and best.choice

    assert chosen(16, 0.99) == tile and chosen(16, 1.01) is None
    assert chosen(32, 0.98) is None and chosen(64, 0.98) is None and chosen(32, 0.96) == tile
    assert chosen(64, 5.0, math.inf) == tile, "the library does not run"
    key = ProductKey(6144, 4096, 2, False, 16)
    assert fastest({Candidate(key, None): math.inf, Candidate(key, tile): math.inf}) is None


@cache
def model() -> Any:
    return small("llama").draw()  # two layers


def tuner(place: str, folder: Path, timer: Callable[[TimedPass], float], **wishes: Any) -> Tuner:
    return Tuner(lowered(model(), place, **wishes).instructions, table(folder), timer)


def test_every_candidate_is_timed_over_all_matrices_and_the_fastest_is_stored(place, tmp_path):
    """At each number of tokens; one candidate per step of the walk; those that fail are skipped."""
    timed: dict[ProductKey, list[tuple[Tile | None, int]]] = defaultdict(list)
    read: dict[ProductKey, set[tuple[frozenset[int], frozenset[int]]]] = defaultdict(set)

    def speed(choice: Tile | None) -> float:
        return 1.0 if choice is None else math.inf if choice.stages == 4 else 0.5 if choice.rows == 32 else 0.9

    def timer(run: TimedPass) -> float:
        key, choice = key_of(run), choice_of(run)
        timed[key].append((choice, len(run.x)))
        linears = [each.linear for each in run.instructions]
        ahead = frozenset(each.ahead.data_ptr() for each in linears if each.ahead is not None)
        read[key].add((frozenset(each.raw.data_ptr() for each in linears), ahead))
        if math.isinf(speed(choice)):
            raise RuntimeError("out of resource: shared memory")
        return speed(choice)

    walker = tuner(place, tmp_path, timer)
    steps = 0
    while walker.advance():
        steps += 1
        assert sum(len({choice for choice, _ in each}) for each in timed.values()) == steps
    assert list(timed) == walker.keys() and len(timed) == 5 * len(BUCKETS)
    for key, each in timed.items():
        assert each[0][0] is None
        ((weights, ahead),) = read[key]
        assert len(weights) == (1 if key.rows == VOCAB else 2) and ahead == weights, "each prefetches the next one's"
        assert {count for _, count in each} == ({1, 16} if key.tokens == 16 else {key.tokens})
    found = table(tmp_path).read()
    assert set(found) == set(timed)
    assert found == {key: min((choice for choice, _ in each), key=speed) for key, each in timed.items()}


def test_products_in_the_table_are_not_timed_again_in_idle_time(place, tmp_path):
    timed: list[ProductKey] = []

    def timer(run: TimedPass) -> float:
        timed.append(key_of(run))
        return 1.0

    walker = tuner(place, tmp_path, timer)
    done, left = walker.keys()[:-1], walker.keys()[-1]
    table(tmp_path).add(dict.fromkeys(done))
    while walker.advance():
        pass
    assert set(timed) == {left} and set(table(tmp_path).read()) == {*done, left}
    assert not tuner(place, tmp_path, timer).advance()


def test_an_interrupted_walk_keeps_its_results(place, tmp_path):
    walker = tuner(place, tmp_path, lambda run: 1.0)
    steps = walker.walk(walker.keys())
    for chosen in steps:
        if chosen is not None:
            break
    assert list(table(tmp_path).read()) == walker.keys()[:1]


def test_all_candidates_of_a_product_are_prepared_together_before_they_are_timed(place, tmp_path):
    events: list[str] = []

    def timer(run: TimedPass) -> float:
        events.append("timed")
        return 1.0

    def prepare(run: Callable[[], None]) -> None:
        events.append("prepared")
        raise RuntimeError("one of them does not compile")

    walker = tuner(place, tmp_path, timer)
    key = walker.keys()[-1]
    (*unfinished, chosen) = walker.walk([key], prepare)
    assert events == ["prepared", *["timed"] * (len(unfinished) + 1)] and not any(unfinished)
    assert chosen is not None and chosen.key == key and chosen.num_timed == len(unfinished) + 1


def test_products_of_float32_are_left_to_the_library(place, tmp_path):
    assert tuner(place, tmp_path, lambda run: 1.0, dtype="f32").keys() == []


def numbers(result: Tensor | Product | Rounded) -> np.ndarray:
    match result:
        case Product(raw, of_tokens, of_columns):
            whole = raw.float()
            whole = whole if of_tokens is None else whole * of_tokens[:, None]
            whole = whole if of_columns is None else whole * of_columns
        case Rounded(values, scale):
            whole = values.float() * scale[:, None]
        case _:
            whole = result.float()
    return whole.cpu().numpy()


def expected(key: ProductKey, program: CudaProgram) -> list[Candidate]:
    """Return the candidates that must be timed for a product of this program."""
    linears = [each.linear for each in program.instructions if isinstance(each, Multiplying)]
    plain = (each for each in linears if isinstance(each, Linear))
    return candidates(key, next(each for each in plain if ProductKey.of(each.weight, key.tokens, each.is_gate) == key))


@pytest.mark.slow
@pytest.mark.parametrize("quantize", [None, "fp8"])
def test_every_candidate_gives_the_numbers_of_the_library(quantize, place, tmp_path):
    """One layer, with biases. The timer makes the streamed candidates the fastest, and the next program uses them."""
    drawn = small("llama-tied-biased").draw()
    results: dict[tuple[ProductKey, int], list[tuple[Tile | None, np.ndarray]]] = defaultdict(list)

    def timer(run: TimedPass) -> float:
        results[key_of(run), len(run.x)].append((choice_of(run), numbers(run())))
        return 1.0 if choice_of(run) is None else 0.5

    plain = lowered(drawn, place, quantize=quantize, tuned=tmp_path)
    assert plain.table is not None
    walker = Tuner(plain.instructions, plain.table, timer)
    while walker.advance():
        pass
    assert len(results) == 5 * (len(BUCKETS) + 1)
    for (key, _), ((by_library, exact), *streamed) in results.items():
        assert by_library is None and exact.any()
        assert [None, *(choice for choice, _ in streamed)] == [each.choice for each in expected(key, plain)]
        for choice, here in streamed:
            assert relative_error(here, exact) <= ERRORS[quantize], (key, choice)
    assert None not in plain.table.read().values()
    fast = lowered(drawn, place, quantize=quantize, tuned=tmp_path)
    for count in (3, 20, 40):
        tokens = some_tokens(count)
        here, there = (Texts(each).step({0: tokens}, min(count, 32)) for each in (fast, plain))
        error = np.linalg.norm(here - there) / np.linalg.norm(there)
        assert error <= 0.2 if quantize else error <= 5e-2
    if not quantize:
        logits = Texts(fast).step({0: some_tokens(21)}, 21)
        assert relative_error(logits, small("llama-tied-biased").expected_logits(some_tokens(21))) <= 5e-2


def test_idle_time_is_used_for_captures_first_and_then_for_tuning_if_it_is_on(place, tmp_path):
    """All graphs count as captured, and one was used."""

    def idle(**wishes: Any) -> tuple[CudaProgram, int]:
        program, steps = lowered(model(), place, tuned=tmp_path, **wishes), 0
        assert not program.use_idle_time(), "no step has run yet"
        program._tuner = Tuner(program.instructions, table(tmp_path), lambda run: 1.0)
        done = list(program._idle_captures())
        program._captured.update(dict.fromkeys(done, CapturedStep(None, torch.empty(0), None)))
        program._uses[done[0]] += 1
        while program.use_idle_time():
            steps += 1
        return program, steps

    assert idle()[1] == 0 and table(tmp_path).read() == {}
    assert idle(tune=True, deterministic=True)[1] == 0
    program, steps = idle(tune=True)
    assert steps > 5 * len(BUCKETS) and len(table(tmp_path).read()) == 5 * len(BUCKETS)
    assert program._tuner is None and not program.use_idle_time()


def test_idle_time_captures_shared_prefixes_and_drafts_too_and_few_rows_before_many():
    buckets, drafted = Buckets(200), Buckets(96)
    captures = list(idle_captures(buckets, drafted, lambda size: SINGLY if size <= 16 else TOGETHER))
    assert len(captures) == len(set(captures))
    plain = [(size, kind) for size, kind in captures if not kind.drafts]
    kinds = {GraphKind(has_groups, mode) for has_groups in (False, True) for mode in ("greedy", "any")}
    assert {size for size, _ in plain} == set(buckets.sizes)
    for size in buckets.sizes:
        assert {kind for each, kind in plain if each == size} == {k for k in kinds if size > 1 or not k.has_groups}
    last_few = max(place for place, (size, _) in enumerate(plain) if size <= IDLE_ROWS)
    assert all(size > IDLE_ROWS for size, _ in plain[last_few + 1 :])
    of_drafts = {(size, kind.drafts) for size, kind in captures if kind.drafts}
    assert of_drafts == {(size, SINGLY if size <= 16 else TOGETHER) for size in drafted.sizes if size > 1}


@pytest.mark.gpu
@pytest.mark.parametrize("quantize", [None, "fp8"])
def test_a_program_that_uses_tuned_tiles_on_a_gpu_computes_the_same(quantize, place, tmp_path, monkeypatch):
    monkeypatch.setattr("quire.devices.cuda.candidates.STAGES", (3,))  # half as many to compile
    drawn = draw(random_llama(vocab=1536))  # no two products are alike
    plain = lowered(drawn, place, quantize=quantize, tuned=tmp_path)
    lines = list(plain.tune())
    assert plain.table is not None and len(lines) == len(plain.table.read()) == 5 * len(BUCKETS)
    assert not any("inf" in line for line in lines), lines
    fast = lowered(drawn, place, quantize=quantize, tuned=tmp_path)
    for count in (3, 20, 32):
        tokens = np.random.default_rng(count).integers(0, 1024, count).tolist()
        here, there = (Texts(each).step({0: tokens}, count) for each in (fast, plain))
        assert np.linalg.norm(here - there) / np.linalg.norm(there) <= (0.2 if quantize else 5e-2)


@pytest.mark.gpu
def test_an_idle_program_captures_and_tunes_and_still_computes_the_same(place, tmp_path, monkeypatch):
    monkeypatch.setattr("quire.devices.cuda.candidates.STAGES", (3,))
    program = lowered(draw(random_llama(num_layers=2, vocab=1536)), place, tuned=tmp_path, tune=True)
    texts = Texts(program)
    texts.step({0: some_tokens(5)})
    first = texts.step({0: [7]})
    while program.use_idle_time():
        pass
    assert program.table is not None and len(program.table.read()) == 5 * len(BUCKETS)
    again = Texts(program)
    again.step({0: some_tokens(5)})
    assert relative_error(again.step({0: [7]}), first) <= 2e-2


def test_the_command_prints_the_fastest_tile_of_each_product(place, tmp_path):
    """With random weights. The product of q, k and v and that of the head have the same key."""
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 64, "hidden_size": 32,
        "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
        "head_dim": 16, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "hidden_act": "silu",
        "torch_dtype": "bfloat16", "tie_word_embeddings": False, "initializer_range": 0.02,
    }  # fmt: skip
    tmp_path.joinpath("config.json").write_text(json.dumps(config))
    first, *lines, last = tune_model(tmp_path, CudaDevice(place), {"load_format": "dummy", "home": str(tmp_path)})
    assert "loaded" in first and str(tmp_path / "tuned") in last
    assert len(lines) == 4 * len(BUCKETS) and lines[0].startswith("64 x 32, 2 bytes, up to 16 tokens: ")
    (file,) = tmp_path.glob("tuned/*.json")
    assert len(json.loads(file.read_text())["products"]) == len(lines)
