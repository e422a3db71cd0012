"""Heads that predict one more token: the text is that without them, and drafts are those of transformers."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from quire.models.draw import draw_mtp
from quire.spec import hidden_rows
from quire.types.request import CacheKey, SamplingParams
from tests.engine.model_drafts import PROMPTS, DraftDriver, accepted_by_transformers, draft_always, plain_answers
from tests.models.toys import MemoryCheckpoint, Toy, as_tensors, make_toy

pytestmark = pytest.mark.device

GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
SEEDED = SamplingParams(seed=5, temperature=0.7, max_tokens=24, ignore_eos=True)
IN_LAYER = {"enorm": "enorm", "hnorm": "hnorm", "eh_proj": "eh_proj", "post_norm": "shared_head.norm"}
OF_MODEL = {"enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "eh_proj": "fc", "post_norm": "norm"}
HYBRID = ["qwen3_next", "qwen3_5", "qwen3_5_moe"]
CASES = ["glm4_moe", "deepseek_v3", "glm4_moe_lite", *HYBRID]
SLOW = ("glm4_moe_lite", "qwen3_5", "qwen3_5_moe")  # relatives of the others


def slow_relatives(cases: list[str]) -> list[Any]:
    """Parameters of a test, of which some are slow tests."""
    return [pytest.param(case, marks=pytest.mark.slow) if case in SLOW else case for case in cases]


@cache
def with_head(case: str) -> tuple[Toy, Any]:
    """A toy whose checkpoint has a head, and the head in transformers."""
    torch = pytest.importorskip("torch")
    layers = pytest.importorskip("transformers.modeling_layers")
    toy = make_toy(case)
    model = toy.torch_model
    config = model.config
    is_hybrid = case.startswith("qwen")
    count = config.num_hidden_layers
    if is_hybrid:
        config.mtp_layer_types = ["full_attention"]
    config.num_mtp_layers = 1
    if getattr(config, "mlp_layer_types", None):
        config.mtp_mlp_layer_types = config.mlp_layer_types[-1:]
    head = layers.MtpModel(model, 1).eval()
    generator, arrays = torch.Generator().manual_seed(7), {}
    shared = {id(each) for each in model.parameters()}
    with torch.no_grad():
        for name, tensor in [*head.layers.named_parameters(), *head.layers.named_buffers()]:
            if id(tensor) in shared or not tensor.is_floating_point():
                continue
            noise = torch.randn(tensor.shape, generator=generator)
            tensor.copy_(noise * 0.25 if tensor.dim() > 1 else 1.0 + 0.3 * noise)
            word, _, rest = name.removeprefix("0.").partition(".")
            place = f"mtp.{OF_MODEL[word]}" if is_hybrid and word in OF_MODEL else IN_LAYER.get(word, rest)
            full = (
                place
                if place.startswith("mtp.")
                else f"{'mtp.layers.0' if is_hybrid else f'model.layers.{count}'}.{place}"
            )
            arrays[full if word == "mtp_block" else f"{full}.{rest}"] = tensor.numpy().copy()
    metadata = {**toy.checkpoint.metadata, **({} if is_hybrid else {"num_nextn_predict_layers": 1})}
    tensors = {**toy.checkpoint.tensors, **as_tensors(arrays)}
    return replace(toy, checkpoint=MemoryCheckpoint("safetensors", metadata, tensors)), head


def published_name(word: str, rest: str, layer: int | None) -> str:
    """The name of a head's tensor in files. `layer`: that of the head, None where it has a prefix of its own."""
    prefix = "mtp.layers.0" if layer is None else f"model.layers.{layer}"
    if word == "mtp_block":
        return f"{prefix}.{rest}"
    return f"mtp.{OF_MODEL[word]}.{rest}" if layer is None else f"{prefix}.{IN_LAYER[word]}.{rest}"


def driver_of(case: str, **settings: Any) -> DraftDriver:
    return DraftDriver(None, case, checkpoint=with_head(case)[0].checkpoint, **settings)


@pytest.mark.parametrize("case", slow_relatives(CASES))
@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_the_text_is_that_without_a_head(case: str, sampling: SamplingParams, monkeypatch: pytest.MonkeyPatch) -> None:
    draft_always(monkeypatch, 3)
    driver = driver_of(case)
    assert driver.answers(sampling) == plain_answers(sampling, case)
    assert driver.core.counters().drafted_tokens["mtp"] > 20


def recorded_drafts(driver: DraftDriver) -> dict[int, int]:
    """The first token of each draft of one text, by the length of the text; filled while the driver runs."""
    found: dict[int, int] = {}
    drafter: Any = driver.core._scheduler._speculation._model._drafter
    propose = drafter.propose

    def proposed(texts: Any, limit: int) -> Any:
        (draft,) = propose(texts, limit)
        found[len(texts[0].tokens)] = draft.tokens[0]
        return [draft]

    drafter.propose = proposed
    return found


@pytest.mark.parametrize("case", slow_relatives([case for case in CASES if case not in HYBRID]))
def test_drafts_and_what_is_accepted_of_them_are_those_of_transformers(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the length of the text: transformers drafts a token earlier than we do, before any step is measured."""
    draft_always(monkeypatch, 1)
    toy, head = with_head(case)
    layers = pytest.importorskip("transformers.modeling_layers")
    monkeypatch.setattr(layers.MtpModel, "from_pretrained", lambda *_, **__: head)
    theirs: dict[int, int] = {}
    forward = head.forward

    def recorded(*given: Any, full_input_ids: Any, **named: Any) -> Any:
        ids, *rest = forward(*given, full_input_ids=full_input_ids, **named)
        theirs[full_input_ids.shape[1]] = int(ids[0, 0])
        return ids, *rest

    monkeypatch.setattr(head, "forward", recorded)
    prompt, driver = PROMPTS[1], driver_of(case)
    ours = recorded_drafts(driver)
    (answer,) = driver.answers(GREEDY, [prompt])
    text = [*prompt, *answer]
    num_accepted = accepted_by_transformers(toy, prompt, 24, monkeypatch, use_mtp=True)
    common = sorted(ours.keys() & theirs.keys())
    assert len(common) > 8
    assert [ours[at] for at in common] == [theirs[at] for at in common]
    right = {at: int(text[at] == token) for at, token in theirs.items() if at < len(text)}
    assert num_accepted[1:][: len(right)] == list(right.values())
    assert [each for _, each in driver.accepted] == [int(text[at] == ours[at]) for at in ours if at < len(text) - 1]


@pytest.mark.parametrize("case", slow_relatives(HYBRID))
def test_drafts_of_a_hybrid_model_are_those_of_transformers_layers(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers does not generate with heads of such models: its layers are run over each whole text."""
    torch, caches = pytest.importorskip("torch"), pytest.importorskip("transformers.cache_utils")
    draft_always(monkeypatch, 1)
    toy, head = with_head(case)
    prompt, driver = PROMPTS[1], driver_of(case)
    ours = recorded_drafts(driver)
    (answer,) = driver.answers(GREEDY, [prompt])
    text = torch.tensor([[*prompt, *answer]])
    assert len(ours) > 8
    for length, token in ours.items():
        with torch.no_grad():
            states = toy.torch_model(text[:, : length - 1], output_hidden_states=True).hidden_states[-1]
            positions = torch.arange(1, length)[None]
            cache = caches.MtpCache(config=toy.torch_model.config.get_mtp_config())
            guess, *_ = head(text[:, 1:length], states, None, positions, cache)
        assert int(guess[0, 0]) == token, length


def test_a_head_that_begins_late_changes_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a hit the hidden rows of the prompt are missing, and the head's KV too if it was read elsewhere."""
    draft_always(monkeypatch, 3)
    prompt = [*PROMPTS[1], *PROMPTS[2]]
    driver = driver_of("glm4_moe")
    texts = [driver.answers(GREEDY, [prompt], cache=CacheKey(salt=salt))[0] for salt in ("", "a", "a", "")]
    assert texts == plain_answers(GREEDY, "glm4_moe", prompts=[prompt]) * 4
    assert driver.records["r0", 0].num_hit > 30
    drafter: Any = driver.core._scheduler._speculation._model._drafter
    drafter._cache.check()
    assert not drafter._followed and not drafter._hidden._texts


def test_rows_that_are_no_longer_kept_are_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    draft_always(monkeypatch, 2)
    monkeypatch.setattr(hidden_rows, "LEAST_ROWS", 16)
    monkeypatch.setattr(hidden_rows, "MOST_ROWS", 16)
    driver = driver_of("glm4_moe", max_step_tokens=32)
    assert driver.answers(GREEDY) == plain_answers(GREEDY, "glm4_moe")
    assert driver.accepted


def test_a_preempted_text_is_drafted_again_by_its_head(monkeypatch: pytest.MonkeyPatch) -> None:
    draft_always(monkeypatch, 3)
    sampling, settings = GREEDY.updated(max_tokens=60), {"num_blocks": 10, "max_context": 128, "max_rows": 4}
    driver = driver_of("glm4_moe", **settings)
    assert driver.answers(sampling) == plain_answers(sampling, "glm4_moe", **settings)
    assert driver.core.counters().num_preemptions > 0


def test_without_drafts_there_is_no_head() -> None:
    driver = driver_of("glm4_moe", speculate="off")
    assert len(driver.device.programs) == 1


def test_a_checkpoint_without_the_tensors_has_no_head() -> None:
    assert draw_mtp(make_toy("glm4_moe").checkpoint, 64) is None
    assert draw_mtp(make_toy("llama").checkpoint, 64) is None
