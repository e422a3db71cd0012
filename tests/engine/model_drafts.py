"""Drafters that are models, in tests: drafting in every step, whatever it costs, and counting what was accepted."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import pytest

from quire.models.config import CheckpointSource
from quire.scheduler.model_drafts import DraftedText, ModelChoice, ModelDrafts
from quire.scheduler.plain_step import PlainStep
from quire.types.request import SamplingParams
from tests.engine.driver import Driver
from tests.models.toys import VOCAB, Toy, arrays_of, as_tensors

PROMPTS = [[5, 9, 11, 3, 7, 2], list(range(20, 61)), [40, 41, 42] * 7]


Choose = Callable[[ModelDrafts, Sequence[DraftedText], PlainStep, float, Callable[[int, float], float]], ModelChoice]


def always_choosing(num_drafts: int) -> Choose:
    """Return a choice of drafts: so many tokens for every text in every step."""

    def choose(
        self: ModelDrafts,
        texts: Sequence[DraftedText],
        step: PlainStep,
        plain: float,
        drafted: Callable[[int, float], float],
    ) -> ModelChoice:
        backlogs = self._drafter.backlogs([text.state for text in texts])
        states = [text.state for text, backlog in zip(texts, backlogs, strict=True) if backlog is not None]
        return ModelChoice(states, num_drafts if states else 0, is_trial=True)

    return choose


def draft_always(monkeypatch: pytest.MonkeyPatch, num_drafts: int) -> None:
    """Let the model draft so many tokens for every text in every step."""
    monkeypatch.setattr(ModelDrafts, "choose", always_choosing(num_drafts))


def perturbed(toy: Toy, share: float, seed: int = 0) -> Toy:
    """A model that often agrees with this one: its matrices with some noise."""
    torch = pytest.importorskip("torch")
    model, generator = copy.deepcopy(toy.torch_model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in model.parameters():
            if tensor.dim() > 1:
                tensor.add_(torch.randn(tensor.shape, generator=generator) * share * tensor.std())
    return Toy(model, replace(toy.checkpoint, tensors=as_tensors(arrays_of(model))))


class DraftDriver(Driver):
    """A core whose drafts are those of a model alone; records how many of each draft were accepted."""

    def __init__(self, draft: CheckpointSource | None, case: str = "llama", **settings: Any) -> None:
        super().__init__(case, drafters=(), draft=draft, **settings)
        self.accepted: list[tuple[int, int]] = []  # drafted, accepted
        self.accepted_of: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)  # the same by sample
        speculation: Any = self.core._scheduler._speculation
        record = speculation.record

        def recorded(sample_id: str, num_drafts: int, tokens: Sequence[int], num_output: int) -> Any:
            if num_drafts > 0:
                self.accepted.append((num_drafts, len(tokens) - 1))
                self.accepted_of[sample_id].append(self.accepted[-1])
            return record(sample_id, num_drafts, tokens, num_output)

        speculation.record = recorded

    def warm_up(self) -> DraftDriver:
        """Answer a request and forget what was accepted: the engine drafts once a step was measured."""
        self.answers(SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True), [[1, 2, 3]])
        self.accepted.clear()
        self.accepted_of.clear()
        return self

    @property
    def has_accepted_and_rejected(self) -> bool:
        """Return whether some drafted tokens were accepted and others were not."""
        return 0 < sum(accepted for _, accepted in self.accepted) < sum(drafted for drafted, _ in self.accepted)

    def answers(self, sampling: SamplingParams, prompts: Sequence[list[int]] = PROMPTS, **request: Any) -> list[Any]:
        """The tokens of every prompt, all at once."""
        for index, prompt in enumerate(prompts):
            self.submit(f"r{index}", prompt, sampling, **request)
        self.run()
        return [self.tokens(f"r{index}", sample) for index in range(len(prompts)) for sample in range(sampling.n)]


class Proposal(NamedTuple):
    """A draft as the drafter returned it, and the text that it follows."""

    sample_id: str
    text: list[int]
    draft: list[int]


def recorded_proposals(driver: Driver) -> list[Proposal]:
    """Return the list of proposals, which grows while the driver runs."""
    found: list[Proposal] = []
    drafter: Any = cast(Any, driver.core)._scheduler._speculation._model._drafter
    propose = drafter.propose

    def proposed(texts: Any, limit: int) -> Any:
        drafts = propose(texts, limit)
        for text, draft in zip(texts, drafts, strict=True):
            found.append(Proposal(text.sample_id, list(text.tokens), list(draft.tokens)))
        return drafts

    drafter.propose = proposed
    return found


def check_proposals(
    driver: DraftDriver,
    proposals: Sequence[Proposal],
    texts: Sequence[list[int]],
    reference: Callable[[list[int], int], list[int]],
) -> None:
    """Compare every draft with the reference's, and each number of accepted tokens with the final texts.

    At the end of a text there is room for fewer tokens than were drafted, and before the last token for none.
    """
    expected: defaultdict[str, list[int]] = defaultdict(list)
    for sample_id, text, draft in proposals:
        assert draft == reference(text, len(draft))
        (rest,) = (each[len(text) :] for each in texts if each[: len(text)] == text)
        agrees = [drafted == token for drafted, token in zip(draft, rest, strict=False)]
        if len(rest) > 1:
            expected[sample_id].append([*agrees, False].index(False))
    assert expected.keys() == driver.accepted_of.keys()
    for sample_id, accepted in driver.accepted_of.items():
        limited = [min(num, count) for (num, _), count in zip(accepted, expected[sample_id], strict=True)]
        assert [count for _, count in accepted] == limited


def plain_answers(sampling: SamplingParams, case: str = "llama", **words: Any) -> list[Any]:
    """The same without drafts."""
    prompts, request = words.pop("prompts", PROMPTS), words.pop("request", {})
    driver = DraftDriver(None, case, speculate="off", **words)
    return driver.answers(sampling, prompts, **request)


def accepted_by_transformers(
    toy: Toy, prompt: Sequence[int], num_tokens: int, monkeypatch: pytest.MonkeyPatch, **generate: Any
) -> list[int]:
    """How many drafts transformers accepts in each step of its assisted generation."""
    torch = pytest.importorskip("torch")
    generation = pytest.importorskip("transformers.generation.candidate_generator")
    found: list[int] = []
    for name in ("AssistedCandidateGenerator", "MTPCandidateGenerator"):
        kind = getattr(generation, name)
        before = kind.update_candidate_strategy

        def counted(self: Any, input_ids: Any, scores: Any, num_matches: int, before: Any = before) -> Any:
            found.append(int(num_matches))
            return before(self, input_ids, scores, num_matches)

        monkeypatch.setattr(kind, "update_candidate_strategy", counted)
    ids = torch.tensor([list(prompt)])
    # The padding is a token that no text has: an assistant does not read it.
    words = {"max_new_tokens": num_tokens, "do_sample": False, "eos_token_id": None, "pad_token_id": VOCAB, **generate}
    with torch.no_grad():
        toy.torch_model.generate(ids, attention_mask=torch.ones_like(ids), **words)
    return found
