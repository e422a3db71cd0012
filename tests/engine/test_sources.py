"""Requests with a source: greedy tokens are those of transformers, and sources are encoded once and shared."""

from __future__ import annotations

import numpy as np
import pytest

from quire.config import CacheConfig, Config, DeviceConfig, SchedulerConfig
from quire.engine.load import build_engine
from quire.engine.messages import Failed, Submit
from quire.types.output import Finished, Tokens
from quire.types.request import GenerateRequest, SamplingParams
from quire.types.source import EncoderInput
from tests.models.sources import KINDS, make_source_toy, random_source

pytestmark = pytest.mark.e2e
QUICK = ("whisper", "t5-v1.1", "bart")
GREEDY = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)


def as_source(rows: np.ndarray) -> EncoderInput:
    """A source of tokens, or of two frames of features for each token."""
    if rows.dtype != np.float32:
        return EncoderInput.of_tokens(tuple(rows.tolist()))
    return EncoderInput.of_features(rows.tobytes(), len(rows) // 2)


class Engine:
    """An engine of a toy, in this thread."""

    def __init__(self, name: str, **scheduler: int) -> None:
        limits = {"max_rows": 4, "max_step_tokens": 64, "max_scored_tokens": 16, **scheduler}
        config = Config(
            scheduler=SchedulerConfig(**limits),
            cache=CacheConfig(num_blocks=40, kv_dtype="f32"),
            device=DeviceConfig(dtype="f32"),
        )
        self.core = build_engine(make_source_toy(name).checkpoint, "cpu", config).core
        self.tokens: dict[str, list[int]] = {}
        self.errors: dict[str, object] = {}
        self.launched: list[int] = []

    def submit(self, id: str, rows: np.ndarray, prompt: list[int], sampling: SamplingParams = GREEDY) -> None:
        self.core.handle(Submit(GenerateRequest(id, tuple(prompt), sampling, source=as_source(rows))))

    def run(self) -> None:
        while True:
            did = self.core.step()
            for message in self.core.take():
                if isinstance(message, Tokens | Finished):
                    self.tokens.setdefault(f"{message.request_id}/{message.sample}", []).extend(message.tokens)
                if isinstance(message, Failed):
                    self.errors[message.request_id] = message.error
            if not did:
                self.core.check()
                return


def expected(name: str, rows: np.ndarray, prompt: list[int], num_steps: int) -> list[int]:
    """Greedy tokens by transformers."""
    import torch

    model = make_source_toy(name).torch_model
    is_sound = rows.dtype == np.float32
    given = {"input_features": torch.tensor(rows.T[None])} if is_sound else {"input_ids": torch.tensor(rows[None])}
    tokens = list(prompt)
    with torch.no_grad():
        hidden = model.get_encoder()(**given)
        for _ in range(num_steps):
            logits = model(encoder_outputs=hidden, decoder_input_ids=torch.tensor([tokens])).logits
            tokens.append(int(logits[0, -1].argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize(
    "name", [each if each in QUICK else pytest.param(each, marks=pytest.mark.slow) for each in KINDS]
)
def test_64_greedy_tokens_are_those_of_transformers_alone_and_together(name: str):
    engine = Engine(name)
    sources = [random_source(name, 100 if name == "whisper" else 5 + 20 * seed, seed) for seed in range(3)]
    for number, rows in enumerate(sources):
        engine.submit(f"r{number}", rows, [3, 7])
    engine.submit("again", sources[0], [3, 7])
    engine.submit("two", sources[1], [3], SamplingParams(temperature=1.0, n=2, seed=1, max_tokens=8, ignore_eos=True))
    engine.run()
    assert not engine.errors
    for number, rows in enumerate(sources):
        assert engine.tokens[f"r{number}/0"] == expected(name, rows, [3, 7], 64)
    assert engine.tokens["again/0"] == engine.tokens["r0/0"]
    assert len(engine.tokens["two/0"]) == len(engine.tokens["two/1"]) == 8


@pytest.mark.parametrize(
    "name, rows, words",
    [
        ("t5-v1.1", np.array([5, 160]), "prompt has the token 160, and the model has tokens 0 to 159"),
        ("t5-v1.1", random_source("whisper", 100), "reads text, and no sound"),
        ("whisper", np.array([5, 6]), "reads sound, and no text"),
    ],
)
def test_a_source_that_the_encoder_cannot_read_is_refused_alone(name: str, rows: np.ndarray, words: str):
    engine, good = Engine(name), random_source(name, 100 if name == "whisper" else 5)
    engine.submit("bad", rows, [3])
    engine.submit("good", good, [3], SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True))
    engine.run()
    assert words in str(engine.errors.pop("bad")) and not engine.errors
    assert engine.tokens["good/0"] == expected(name, good, [3], 4)
