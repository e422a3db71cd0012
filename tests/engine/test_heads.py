"""Heads that predict one more token: the text is that without them, and drafts are those of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire.config import load as load_config
from quire.engine.drafting import draft_bytes
from quire.models.draw import draw, draw_mtp
from quire.runner.runner import Runner
from quire.spec import hidden_rows
from quire.types.request import CacheKey, SamplingParams
from quire.types.step import StepPlan
from quire.weights.checkpoint import open_checkpoint
from tests.engine.constrained_drafts import FORMS, NUM_BLOCKS, ConstrainedLoad
from tests.engine.driver import Driver
from tests.engine.head_toys import NEMOTRON, gguf_with_head, save_with_head, with_fitted_head, with_head
from tests.engine.model_drafts import (
    PROMPTS,
    DraftDriver,
    Proposal,
    accepted_by_transformers,
    check_proposals,
    draft_always,
    plain_answers,
    recorded_proposals,
)
from tests.models.toys import as_tensors, make_toy
from tests.runner.stand_in import InterpreterProgram, devices_here

pytestmark = pytest.mark.device

GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
SEEDED = SamplingParams(seed=5, temperature=0.7, max_tokens=24, ignore_eos=True)
HYBRID = ["qwen3_next", "qwen3_5", "qwen3_5_moe", *NEMOTRON]
CASES = ["glm4_moe", "deepseek_v3", "glm4_moe_lite", "mellum", *HYBRID]
DEVICES = [
    *("chooser-drafts", pytest.param("cuda", marks=pytest.mark.gpu)),
    pytest.param("cpu", marks=pytest.mark.skipif("cpu" not in devices_here(), reason="needs the native kernels")),
]
SLOW = ("glm4_moe_lite", "qwen3_5", "qwen3_5_moe", "nemotron_h-latent")  # relatives of the others


def slow_relatives(cases: list[str]) -> list[Any]:
    """Parameters of a test, of which some are slow tests."""
    return [pytest.param(case, marks=pytest.mark.slow) if case in SLOW else case for case in cases]


def driver_of(case: str, **settings: Any) -> DraftDriver:
    return DraftDriver(None, case, checkpoint=with_head(case).toy.checkpoint, **settings)


@pytest.mark.parametrize("case", slow_relatives(CASES))
@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.usefixtures("stand_in_and_native")
def test_the_text_is_that_without_a_head(case: str, sampling: SamplingParams, monkeypatch: pytest.MonkeyPatch) -> None:
    draft_always(monkeypatch, 3)
    driver = driver_of(case)
    assert driver.answers(sampling) == plain_answers(sampling, case)
    assert driver.core.counters().drafted_tokens["mtp"] > 20
    assert driver.has_accepted_and_rejected or sampling is SEEDED, "heads are fitted to greedy answers"


@pytest.mark.parametrize("device", DEVICES)
def test_drafts_of_a_head_are_accepted_on_every_device(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Natively, the hidden rows of all tokens are an output beside the logits of few. With two steps in flight, the
    head waits for the newest token and its row: what it drafts is what it drafts with one."""
    draft_always(monkeypatch, 3)
    alone = driver_of("glm4_moe")
    drafts = recorded_proposals(alone)
    plain = alone.answers(GREEDY, PROMPTS[1:2])
    monkeypatch.setattr(Driver, "device_name", device)
    driver = driver_of("glm4_moe")
    found = recorded_proposals(driver)
    assert driver.answers(GREEDY, PROMPTS[1:2]) == plain == plain_answers(GREEDY, "glm4_moe", prompts=PROMPTS[1:2])
    assert sum(count for _, count in driver.accepted) > 3
    first, others = first_drafts(drafts), first_drafts(found)
    assert len(others) > 8 and others == {length: first[length] for length in others}


@pytest.mark.usefixtures("each_depth_and_native")
def test_several_samples_of_a_request_are_those_without_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """Further samples share the blocks of the prompt, but not its hidden rows."""
    draft_always(monkeypatch, 3)
    sampling, driver = SEEDED.updated(n=3), driver_of("glm4_moe")
    assert driver.answers(sampling) == plain_answers(sampling, "glm4_moe")
    assert len(driver.accepted) > 20


def first_drafts(proposals: Sequence[Proposal]) -> dict[int, int]:
    """Return the first token of each draft of one text, by the length of the text."""
    return {len(each.text): each.draft[0] for each in proposals}


@pytest.mark.parametrize("case", slow_relatives([case for case in CASES if case not in HYBRID]))
def test_drafts_and_what_is_accepted_of_them_are_those_of_transformers(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every step: the token that is drafted, and whether it is accepted."""
    draft_always(monkeypatch, 1)
    toy, head, _ = with_head(case)
    layers = pytest.importorskip("transformers.modeling_layers")
    monkeypatch.setattr(layers.MtpModel, "from_pretrained", lambda *_, **__: head)
    theirs: dict[int, int] = {}
    forward = head.forward

    def recorded(*given: Any, full_input_ids: Any, **named: Any) -> Any:
        ids, *rest = forward(*given, full_input_ids=full_input_ids, **named)
        theirs[full_input_ids.shape[1]] = int(ids[0, 0])
        return ids, *rest

    monkeypatch.setattr(head, "forward", recorded)
    prompt, driver = PROMPTS[1], driver_of(case).warm_up()
    proposals = recorded_proposals(driver)
    driver.answers(GREEDY, [prompt])
    num_accepted = accepted_by_transformers(toy, prompt, 32, monkeypatch, use_mtp=True)  # its first step has no drafts
    ours = first_drafts(proposals)
    assert ours == {length: theirs[length] for length in ours} and len(ours) > 8
    accepted = [count for _, count in driver.accepted]
    assert accepted == num_accepted[1 : 1 + len(accepted)] and sum(accepted) > 0


@pytest.mark.parametrize("num_drafts", [1, 3])
@pytest.mark.parametrize("case", slow_relatives(CASES))
def test_drafts_are_those_of_transformers_layers(case: str, num_drafts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run over each whole text. For its second and third draft, the head reads its own hidden rows."""
    draft_always(monkeypatch, num_drafts)
    assert_drafts_are_those_of_transformers(case, driver_of(case), num_drafts)


@pytest.mark.parametrize("case", slow_relatives([case for case in CASES if case != "mellum"]))
def test_a_head_in_a_gguf_file_is_that_in_safetensors(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    draft_always(monkeypatch, 1)
    assert_drafts_are_those_of_transformers(case, DraftDriver(None, case, checkpoint=gguf_with_head(case)), 1)


def assert_drafts_are_those_of_transformers(case: str, driver: DraftDriver, num_drafts: int) -> None:
    proposals = recorded_proposals(driver)
    answers = driver.answers(GREEDY)
    texts = [[*prompt, *answer] for prompt, answer in zip(PROMPTS, answers, strict=True)]
    check_proposals(driver, proposals, texts, with_head(case).guesses)
    assert len(proposals) > 20 and driver.has_accepted_and_rejected
    assert max(num for num, _ in driver.accepted) == num_drafts


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.usefixtures("each_depth_and_native")
def test_32_constrained_texts_at_once_are_those_without_a_head(
    form: str, sampling: SamplingParams, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step verifies drafts of many texts, each under its own mask. The head is fitted to four of the answers."""
    draft_always(monkeypatch, 3)
    load = ConstrainedLoad(FORMS[form], sampling.updated(max_tokens=90, ignore_eos=False))
    plain = load.plain_answers(open_checkpoint(save_with_head(with_head("glm4_moe").toy, tmp_path)))
    fitted = with_fitted_head("glm4_moe", list(zip(load.prompts, plain, strict=True))[:4])
    checkpoint = open_checkpoint(save_with_head(fitted, tmp_path / "fitted"))
    load.check(DraftDriver(None, "glm4_moe", checkpoint=checkpoint, num_blocks=NUM_BLOCKS), plain)


@pytest.mark.usefixtures("each_depth_and_native")
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


@pytest.mark.usefixtures("each_depth_and_native")
def test_rows_that_are_no_longer_kept_are_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    draft_always(monkeypatch, 2)
    monkeypatch.setattr(hidden_rows, "LEAST_ROWS", 16)
    monkeypatch.setattr(hidden_rows, "MOST_ROWS", 16)
    driver = driver_of("glm4_moe", max_step_tokens=32)
    assert driver.answers(GREEDY) == plain_answers(GREEDY, "glm4_moe")
    assert driver.accepted


@pytest.mark.usefixtures("each_depth_and_native")
def test_a_preempted_text_is_drafted_again_by_its_head(monkeypatch: pytest.MonkeyPatch) -> None:
    draft_always(monkeypatch, 3)
    sampling, settings = GREEDY.updated(max_tokens=60), {"num_blocks": 10, "max_context": 128, "max_rows": 4}
    driver = driver_of("glm4_moe", **settings)
    assert driver.answers(sampling) == plain_answers(sampling, "glm4_moe", **settings)
    assert driver.core.counters().num_preemptions > 0


def test_without_drafts_there_is_no_head_and_nothing_is_computed_for_one() -> None:
    """The model is lowered as if it had none: after the last layer that mixes tokens, few are computed."""
    driver = driver_of("glm4_moe", speculate="off")
    program, runner = driver.program.inner, driver.core._runner
    assert isinstance(program, InterpreterProgram) and isinstance(runner, Runner)
    assert len(driver.device.programs) == 1 and list(program.interpreter.graph.outputs) == ["logits"]
    assert runner._hidden is None and not driver.core.seeds_requests
    files, config = with_head("glm4_moe").toy.checkpoint, load_config({"speculate": "off"}, environ={})
    assert draft_bytes(files, draw(files), config, driver.device.facts()) == 0


@pytest.mark.parametrize("device", DEVICES)
def test_hidden_rows_of_requests_without_drafts_are_not_kept(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No step returns them, until a request in it may be drafted for."""
    draft_always(monkeypatch, 3)
    monkeypatch.setattr(Driver, "device_name", device)
    driver, kept = driver_of("glm4_moe"), list[int]()
    keep = hidden_rows.HiddenRows.keep

    def counted(self: hidden_rows.HiddenRows, plan: StepPlan, hidden: Any) -> None:
        kept.append(len(hidden))
        keep(self, plan, hidden)

    monkeypatch.setattr(hidden_rows.HiddenRows, "keep", counted)
    text = driver.answers(GREEDY.updated(speculate="off"))
    assert not kept and not driver.accepted
    assert driver.answers(GREEDY) == text and kept and driver.accepted


def test_a_checkpoint_without_the_tensors_has_no_head() -> None:
    assert draw_mtp(make_toy("glm4_moe").checkpoint, 64) is None
    assert draw_mtp(make_toy("llama").checkpoint, 64) is None


def test_a_head_that_is_not_used_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with_mixer, other = (with_head("nemotron_h-experts").toy.checkpoint, make_toy("llama").checkpoint)
    keys = {**with_mixer.metadata, "mtp_layers_block_type": None, "mtp_hybrid_override_pattern": "M*"}
    assert draw_mtp(replace(with_mixer, metadata=keys), 64) is None
    assert "mtp.layers.0" in caplog.text and "mixer, whose state cannot go back" in caplog.text
    caplog.clear()
    tensors = {**other.tensors, **as_tensors({"mtp.fc.weight": np.ones((48, 96), np.float32)})}
    assert draw_mtp(replace(other, tensors=tensors), 64) is None
    assert "mtp.fc.weight" in caplog.text and "LlamaForCausalLM" in caplog.text
