"""The real model through the whole engine on the native device, against `transformers` on the same dequantized weights.

transformers reads the file by itself, with the `gguf` package. Greedy text is compared position by position: what we
generated goes through transformers in one pass, and each of our tokens must be the one it finds likeliest there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire.devices import base
from quire.devices.base import DEFAULT_OPTIONS, Limits, LoweringOptions, Program
from quire.devices.facts import DeviceFacts
from quire.engine.llm import LLM
from quire.graph.graph import Graph
from quire.graph.weight import Weights
from quire.models.draw import draw
from quire.ops.batch import Batch, RowPart
from quire.types.request import SamplingParams
from quire.weights.checkpoint import open_checkpoint
from tests.devices.cpu.programs import HAS_NATIVE

pytestmark = [
    pytest.mark.device,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not HAS_NATIVE, reason="the extension was not built"),
]

QUESTIONS = (
    "Why is the sky blue?",
    "Write a haiku about the sea.",
    "Explain what a hash table is to a child.",
    "What is 17 + 25?",
    "Translate to French: The cat sleeps.",
    "List three uses of copper.",
    "Who wrote Romeo and Juliet?",
    "def fibonacci(n):",
    "Summarize: water boils at 100 degrees Celsius at sea level, and at lower temperatures on mountains.",
    "Give me advice for a job interview.",
)


class FloatCpu(base.Device):
    """The CPU device in float32 throughout, as transformers computes."""

    name = "cpu"

    def facts(self) -> DeviceFacts:
        return base.open("cpu").facts()

    def lower(
        self, graph: Graph, weights: Weights, limits: Limits, options: LoweringOptions = DEFAULT_OPTIONS
    ) -> Program:
        return base.open("cpu").lower(graph, weights, limits, LoweringOptions(precision="float"))


@pytest.fixture(scope="module")
def oracle(model_file: Path) -> Iterator[Any]:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        model_file.parent, gguf_file=model_file.name, dtype=torch.float32
    )
    with torch.inference_mode():
        yield lambda tokens: model(torch.tensor([tokens])).logits[0].numpy()


def test_64_greedy_tokens_of_ten_prompts_are_those_of_transformers(model_file: Path, oracle: Any):
    sampling = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)
    with LLM(model_file, device=FloatCpu(), num_blocks=256, max_context=512, kv_dtype="f32") as llm:
        chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
        completions = llm.chat(chats, sampling)
    for completion in completions:
        prompt, output = list(completion.prompt_tokens), list(completion.tokens)
        assert len(output) == 64
        likeliest = oracle(prompt + output[:-1])[len(prompt) - 1 :].argmax(-1)
        assert output == likeliest.tolist()


def real_text(model_file: Path, num_tokens: int) -> list[int]:
    """English prose and legal prose that comes with the project."""
    from quire.text.tokenizer import Tokenizer

    root = Path(__file__).parents[2]
    text = (root / "docs" / "REQUEST.md").read_text() + (root / "LICENSE").read_text()
    tokens = Tokenizer.from_gguf(open_checkpoint(model_file).metadata).encode(text)
    assert len(tokens) > num_tokens
    return tokens[: num_tokens + 1]


def log_probabilities(program: Program, tokens: list[int], chunk: int) -> Iterator[np.ndarray]:
    """Of every next token, in windows of `chunk`, each with the text before it in the cache."""
    for at in range(0, len(tokens), chunk):
        part = RowPart(
            tokens[at : at + chunk], at, range(len(tokens) // 16 + 1), num_logits=len(tokens[at : at + chunk])
        )
        logits = program.launch(Batch.of([part], 16)).result().logits
        assert logits is not None
        shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
        yield shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


@pytest.mark.slow
def test_the_quantized_path_stays_near_float_over_2000_positions_of_text(model_file: Path):
    model = draw(open_checkpoint(model_file))
    tokens = real_text(model_file, 2000)[:2000]
    limits = Limits(max_tokens=250, max_rows=1, max_logits=250, max_blocks=126, num_blocks=126)
    cpu, ways = base.open("cpu"), (LoweringOptions(precision="float"), LoweringOptions(precision="native"))
    programs = [cpu.lower(model.graph, model.weights, limits, how) for how in ways]
    divergence, agreed = 0.0, 0
    for exact, quantized in zip(*(log_probabilities(program, tokens, 250) for program in programs), strict=True):
        divergence += float((np.exp(exact) * (exact - quantized)).sum())
        agreed += int((exact.argmax(-1) == quantized.argmax(-1)).sum())
    print(f"mean KL {divergence / 2000:.5f}, same likeliest token {agreed / 20:.1f} %")
    assert divergence / 2000 < 0.01
    assert agreed > 1900
