"""Encoder-decoders on the device: encoders, the blocks of sources, and attention to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from quire.config import CacheConfig, Config, DeviceConfig, SchedulerConfig
from quire.devices._triton.bidirectional import RowBounds, shift_rows
from quire.devices.base import Limits, LoweringOptions
from quire.devices.cuda.device import CudaDevice
from quire.devices.cuda.encoder import CudaEncoder
from quire.engine.load import build_engine
from quire.engine.messages import Submit
from quire.graph.graph import Graph
from quire.graph.interpret import Interpreter
from quire.graph.weight import Weight
from quire.ops.batch import Batch, RowPart
from quire.ops.cache import Cross
from quire.ops.registry import relative_error
from quire.ops.source import attention_source, shift_tokens
from quire.types.kinds import RequestKind
from quire.types.output import Finished, Tokens
from quire.types.request import GenerateRequest, SamplingParams
from tests.engine.test_sources import as_source, expected
from tests.models.sources import KINDS, SourceSession, make_source_toy, random_source
from tests.models.toys import MemoryCheckpoint
from tests.ops.encoded_tensor import EncodedTensor

pytestmark = pytest.mark.device
QUICK = ("t5", "whisper")
GREEDY = SamplingParams(temperature=0.0, max_tokens=1)
CASES = [
    *(pytest.param(name, True, marks=() if name in QUICK else pytest.mark.slow) for name in KINDS),
    *(pytest.param(name, False, marks=[pytest.mark.slow, pytest.mark.interpreted]) for name in KINDS),
]


def some_source(name: str, seed: int = 0) -> np.ndarray:
    """A source: Whisper's have one length."""
    return random_source(name, 100 if name == "whisper" else 7 + 12 * seed, seed)


def test_neighbours_are_those_of_the_reference(place):
    for args in shift_tokens.example_args("f32"):
        rows = RowBounds.of(torch.from_numpy(args["batch"].positions).to(place))
        found = shift_rows(torch.from_numpy(args["x"]).to(place), rows, args["by"])
        assert np.array_equal(found.cpu().numpy(), shift_tokens.reference(**args))


@pytest.mark.parametrize("name, fuse", CASES)
def test_logits_are_those_of_transformers(name, fuse, place):
    toy, sources = make_source_toy(name), [some_source(name, seed) for seed in range(2)]
    session = SourceSession(toy.draw(), CudaDevice(place), fuse)
    for number, source in enumerate(sources):
        session.encode(number, source)
    texts = [(1, [3, 5, 9]), (0, [4])]
    for (number, tokens), found in zip(texts, session.logits(*texts), strict=True):
        wanted = toy.expected_logits(sources[number], tokens)
        assert np.abs(found - wanted).max() <= 2e-4 * max(1.0, np.abs(wanted).max())


def test_a_source_that_stays_on_the_device_is_the_one_that_the_host_stores(place):
    source = some_source("bart", 1)
    session = SourceSession(make_source_toy("bart").draw(), CudaDevice(place))
    session.encode(0, source)
    batch = Batch.of([RowPart(source.tolist(), 0, list(range(-(-len(source) // 16))), len(source))], 16)
    first = 16 * session.blocks_of_source
    slots = np.arange(first, first + len(source), dtype=np.int32)
    assert isinstance(session.encoder, CudaEncoder)
    session.decoder.compute_source(batch, slots, session.encoder, session.pairs)
    session.lengths[1] = len(source)
    by_host, on_device = session.logits((0, [3, 5]), (1, [3, 5]))
    assert np.abs(by_host - on_device).max() <= 1e-5 * np.abs(by_host).max()


@pytest.mark.parametrize("deterministic", [False, True])
def test_attention_to_sources_of_many_lengths_is_that_of_the_reference(deterministic, place):
    rng, spec = np.random.default_rng(0), Cross(2, 16, 32)
    weights = {name: random_weight(rng, name, shape) for name, shape in (("embed", (50, 64)), ("head", (48, 128)))}
    graph = Graph.over(weights)
    cache = graph.cache(spec)
    node = graph.node(attention_source, {"q": graph.embed("embed")}, {}, {"scale": 0.25}, cache=cache.index)
    graph.nodes.append(node)
    graph.logits(node.output, "head")
    lengths, parts, first = (300, 3, 40), [], 0
    for row, (length, count) in enumerate(zip(lengths, (1, 20, 5), strict=True)):
        blocks = range(first, first := first + -(-length // 16))
        tokens = rng.integers(0, 50, count).tolist()
        parts.append(RowPart(tokens, 0, [2 * row, 2 * row + 1], count, source=(length, list(blocks))))
    limits = Limits(40, 4, 40, max_blocks=2, num_blocks=6, kv_dtype="f32", num_source_blocks=first)
    options = LoweringOptions(dtype="f32", deterministic=deterministic)
    program, reference = CudaDevice(place).lower(graph, weights, limits, options), Interpreter(graph, weights, 6)
    reference.reserve_sources(first)
    slots = np.arange(16 * first, dtype=np.int32)
    pairs = rng.standard_normal((len(slots), spec.values_per_token), np.float32)
    for each in (program, reference):
        each.store_source(slots, pairs)
    batch = Batch.of(parts, 16)
    for step in (batch, Batch.of([part._replace(token_ids=part.token_ids[:1], num_logits=1) for part in parts], 16)):
        assert relative_error(program.launch(step).result().logits, reference.run(step)) <= 1e-5


def random_weight(rng: np.random.Generator, name: str, shape: tuple[int, int]) -> Weight:
    tensor = EncodedTensor.of(name, rng.standard_normal(shape, np.float32) * 0.3, "f32")
    return Weight(name, tensor.shape, tensor.format, tensor)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["whisper", "t5-v1.1", "marian"])
def test_greedy_tokens_of_an_engine_are_those_of_transformers(name, place):
    found = run_engine(make_source_toy(name).checkpoint, CudaDevice(place), greedy(name, 6))
    for number, rows in enumerate(some_source(name, seed) for seed in range(2)):
        tokens = [token for message in found[str(number)] for token in message.tokens]
        assert tokens == expected(name, rows, [3, 4 + number], 6)


def test_queries_and_keys_by_which_words_are_found_are_those_of_the_cpu(place):
    """Two texts beside one that is generated. The longer one is computed in several steps."""
    checkpoint = make_source_toy("whisper").checkpoint
    heads = [[0, 1], [2, 0], [2, 1]]  # of 32 numbers each
    checkpoint = replace(checkpoint, metadata={**checkpoint.metadata, "alignment_heads": heads})
    texts = [(0, tuple(range(5, 45))), (1, (3, 9, 4))]
    asked = [
        GenerateRequest(f"align{number}", text, GREEDY, source=as_source(some_source("whisper", number)),
                        kind=RequestKind.ALIGN)
        for number, text in texts
    ]  # fmt: skip
    requests = [asked[0], greedy("whisper", 4)[1], asked[1]]
    by_cuda, by_cpu = (run_engine(checkpoint, device, requests) for device in (CudaDevice(place), "cpu"))
    for number, text in texts:
        found, wanted = (np.frombuffer(each[f"align{number}"][-1].vector, np.float32) for each in (by_cuda, by_cpu))
        assert found.size == wanted.size == (len(text) + 50) * 3 * 32  # the source has 50 tokens
        assert relative_error(found, wanted) <= 1e-5
    tokens = [[token for message in each["1"] for token in message.tokens] for each in (by_cuda, by_cpu)]
    assert tokens[0] == tokens[1] and len(tokens[0]) == 4


def greedy(name: str, num_tokens: int) -> list[GenerateRequest]:
    """Requests for texts of two sources."""
    sampling = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    sources = [as_source(some_source(name, seed)) for seed in range(2)]
    return [GenerateRequest(str(number), (3, 4 + number), sampling, source=each) for number, each in enumerate(sources)]


def run_engine(
    checkpoint: MemoryCheckpoint, device: str | CudaDevice, requests: Sequence[GenerateRequest]
) -> dict[str, list[Tokens | Finished]]:
    """The messages of each request, all computed together."""
    config = Config(
        scheduler=SchedulerConfig(max_rows=4, max_step_tokens=32, max_scored_tokens=16),
        cache=CacheConfig(num_blocks=40, kv_dtype="f32"),
        device=DeviceConfig(dtype="f32"),
    )
    core = build_engine(checkpoint, device, config).core
    found: dict[str, list[Tokens | Finished]] = {}
    for request in requests:
        core.handle(Submit(request))
    is_busy = True
    while is_busy:
        is_busy = core.step()  # the last results may be collected in a step that launches nothing
        for message in core.take():
            if isinstance(message, Tokens | Finished):
                found.setdefault(message.request_id, []).append(message)
    return found
