"""Small random models made by `transformers`, as open checkpoints, with the names of either container.

GGUF names come from the `gguf` package, and keys from the files of `cases`: not from our tables, which they test.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from packaging.version import Version

from quire.graph.interpret import Interpreter
from quire.graph.weight import ComputedTensor
from quire.models.config import read_config
from quire.models.draw import DrawnModel, draw
from quire.models.names import stored_shapes
from quire.models.registry import Architecture, all_architectures
from quire.ops.batch import Batch, RowPart
from tests.models.case import SIZES, VOCAB, Case, Conversion, base_keys

BLOCK = 16


@dataclass(frozen=True)
class MemoryCheckpoint:
    """A checkpoint in memory, as `weights` would return it for one on disk."""

    container: str
    metadata: Mapping[str, Any]
    tensors: Mapping[str, ComputedTensor]


def as_tensors(arrays: Mapping[str, np.ndarray]) -> dict[str, ComputedTensor]:
    return {name: ComputedTensor(name, np.require(array, requirements="C")) for name, array in arrays.items()}


@dataclass(frozen=True)
class Toy:
    """A transformers model and its checkpoint, from which our graph is drawn."""

    torch_model: Any
    checkpoint: MemoryCheckpoint

    def draw(self, container: str = "safetensors") -> DrawnModel:
        return draw(self.checkpoint if container == "safetensors" else self.as_gguf())

    def as_gguf(self) -> MemoryCheckpoint:
        """Return the same model as a GGUF checkpoint."""
        return to_gguf(self)

    def expected_logits(self, tokens: Sequence[int]) -> np.ndarray:
        """Return transformers' logits, float32 [len(tokens), vocab]."""
        import torch

        ids = torch.tensor([list(tokens)], device=self.torch_model.device)
        with torch.no_grad():
            return self.torch_model(ids).logits[0].float().cpu().numpy()

    def expected_greedy(self, tokens: Sequence[int], num_steps: int) -> list[int]:
        """Return `num_steps` tokens of transformers' generate."""
        import torch

        ids = torch.tensor([list(tokens)], device=self.torch_model.device)
        kwargs = {"max_new_tokens": num_steps, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        with torch.no_grad():
            text = self.torch_model.generate(ids, attention_mask=torch.ones_like(ids), **kwargs)[0]
        return text[len(tokens) :].tolist()


def _modules() -> dict[str, Any]:
    """The files of `tests/models/cases`, by name."""
    names = sorted(path.stem for path in (Path(__file__).parent / "cases").glob("*.py"))
    return {name: import_module(f"tests.models.cases.{name}") for name in names}


def _is_old(case: Case) -> bool:
    """Is the installed transformers too old for this case?"""
    try:
        return Version(version("transformers")) < Version(case.oldest)
    except PackageNotFoundError:
        return False  # the tests that need it are skipped


CASES: dict[str, Case] = {
    name: case for module in _modules().values() for name, case in module.CASES.items() if not _is_old(case)
}
CONVERSIONS: dict[str, Conversion] = {module.KIND: module.GGUF for module in _modules().values() if module.GGUF}
# Architectures with a class in transformers: not other names of one.
WITHOUT_ALIASES = [arch for arch in all_architectures() if arch.alias_of is None and arch.source is None]
SOURCES = [arch for arch in all_architectures() if arch.alias_of is None and arch.source is not None]  # in sources.py
ORIGINALS = [arch for arch in WITHOUT_ALIASES if "head" in arch.names.entries]  # those that generate text
ENCODERS = [arch for arch in WITHOUT_ALIASES if "head" not in arch.names.entries]  # toys: tests/models/encoders.py
FIRST_CASES = list({case.kind: name for name, case in reversed(CASES.items())}.values())[::-1]  # one of each kind


@cache
def make_toy(name: str) -> Toy:
    """Return the toy of a case."""
    return toy_with_sizes(name, {})


def toy_with_sizes(name: str, sizes: Mapping[str, Any]) -> Toy:
    """Return the toy of a case, with these keys of its configuration instead of its own."""
    case = CASES[name]
    toy = toy_of(case.kind, {**case.changes, **sizes}, seed=sum(name.encode()), as_saved=case.as_saved)
    if case.published is None:
        return toy
    arrays = case.published(arrays_of(toy.torch_model), toy.torch_model.config)
    return replace(toy, checkpoint=replace(toy.checkpoint, tensors=as_tensors(arrays)))


def toy_of(kind: str, different: Mapping[str, Any], seed: int, *, as_saved: bool = False) -> Toy:
    """Make a model of this class, with weights far enough from zero that every part of it matters.

    `as_saved`: with the tensors of its file.
    """
    transformers = pytest.importorskip("transformers")
    config_class = getattr(transformers, kind).config_class
    sizes = {key: SIZES[key] for key in SIZES if hasattr(config_class(), key) and key not in config_class.attribute_map}
    config = config_class(**{"attn_implementation": "eager", **sizes, **different}, architectures=[kind])
    model = random_model(kind, config, seed)
    arrays = saved_arrays(model) if as_saved else arrays_of(model)
    return Toy(model, MemoryCheckpoint("safetensors", config.to_dict(), as_tensors(arrays)))


def arrays_of(model: Any) -> dict[str, np.ndarray]:
    """The tensors of a model, less the head if it is the embedding table."""
    arrays = {key: tensor.float().numpy() for key, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del arrays["lm_head.weight"]  # as save_pretrained does
    return arrays


def saved_arrays(model: Any) -> dict[str, np.ndarray]:
    """The tensors that transformers writes."""
    with TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return pytest.importorskip("safetensors.numpy").load_file(f"{folder}/model.safetensors")


def toy_with_config_file(kind: str, different: Mapping[str, Any], seed: int = 1) -> Toy:
    """Make a model whose config.json has only these keys beside its sizes, as a user may have edited it."""
    transformers = pytest.importorskip("transformers")
    config_class = getattr(transformers, kind).config_class
    config_file = {"architectures": [kind], "model_type": config_class.model_type, **SIZES, **different}
    config = config_class.from_dict(copy.deepcopy(config_file))
    config._attn_implementation = "eager"
    model = random_model(kind, config, seed)
    arrays = {key: tensor.float().numpy() for key, tensor in model.state_dict().items()}
    return Toy(model, MemoryCheckpoint("safetensors", config_file, as_tensors(arrays)))


def random_model(kind: str, config: Any, seed: int) -> Any:
    """A model of transformers. Norms, biases and buffers that checkpoints have are random too."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    model = getattr(transformers, kind)(config).eval()
    generator = torch.Generator().manual_seed(seed)
    stored = model.state_dict()
    buffers = [buffer for name, buffer in model.named_buffers() if name in stored]
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            noise = torch.randn(tensor.shape, generator=generator)
            if name.endswith("A_log"):
                tensor.copy_(noise - 3.0)  # states that last for dozens of tokens
            else:
                tensor.copy_(noise * 0.25 if tensor.dim() > 1 else 1.0 + 0.3 * noise)
        for buffer in buffers:
            if buffer.is_floating_point():
                noise = 0.3 * torch.randn(buffer.shape, generator=generator).to(buffer.dtype)
                buffer.copy_(torch.where(buffer == 0, noise, buffer * (1.0 + noise)))  # corrections of routers are 0
    return model


def to_gguf(toy: Toy) -> MemoryCheckpoint:
    """Convert a toy like llama.cpp's converter: other names and keys, and some tensors in another form."""
    c = copy.deepcopy(toy.torch_model.config)
    c.allow_global_per_layer_attribute_access = True  # Gemma 4's sizes of layers with a window
    conversion = CONVERSIONS[c.architectures[0]]
    arch = conversion.name_of(c) or conversion.arch
    keys = {"general.architecture": arch}
    for key, value in {**base_keys(c), **conversion.keys(c)}.items():
        if value is not None:
            keys[f"{arch}.{key}"] = value
    for key, tensor in conversion.numbers.items():
        layers = (f"model.layers.{i}.{tensor}" for i in range(c.num_hidden_layers))
        keys[key] = [float(toy.checkpoint.tensors[name].array.reshape(())) for name in layers]
    return MemoryCheckpoint("gguf", keys, as_tensors({**_gguf_arrays(toy, c, conversion), **conversion.extra(c)}))


def _gguf_arrays(toy: Toy, config: Any, conversion: Conversion) -> dict[str, np.ndarray]:
    gguf = pytest.importorskip("gguf")
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    arch = conversion.name_of(config) or conversion.arch
    names = gguf.get_tensor_name_map(kinds[arch], config.num_hidden_layers)
    stored: dict[str, np.ndarray] = {}
    for name, tensor in arrays_of(toy.torch_model).items():
        made = conversion.tensor(name, tensor, config)
        arrays = {name: made} if isinstance(made, np.ndarray) else made or {}
        for each, array in arrays.items():
            found = names.get_name(each, try_suffixes=(".weight", ".bias", ".scale"))
            assert found is not None, f"the gguf package has no name for {each}"
            stored[found] = array
    return stored


def write_gguf(checkpoint: MemoryCheckpoint, path: Path) -> Path:
    """Write a GGUF checkpoint as a file, with the `gguf` package."""
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, str(checkpoint.metadata["general.architecture"]))
    for key, value in checkpoint.metadata.items():
        if key == "general.architecture":
            continue
        if isinstance(value, list | tuple):
            writer.add_array(key, list(value))
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_string(key, value)
    for name, tensor in checkpoint.tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(tensor.array, np.float32))
    for finish in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        finish()
    writer.close()
    return path


def random_checkpoint(arch: Architecture, container: str, tied: bool = False) -> MemoryCheckpoint:
    """Make a two-layer model of any architecture from its declared names. Needs no torch; does not test the names."""
    metadata = {"architectures": [arch.name], **SIZES, "head_dim": 8, "tie_word_embeddings": tied, "sliding_window": 3}
    config = read_config(MemoryCheckpoint("safetensors", metadata, {}), arch.keys, arch.config)
    rng = np.random.default_rng(0)
    shapes = stored_shapes(container, config, arch.names)
    arrays = {name: rng.standard_normal(shape).astype(np.float32) * 0.3 for name, shape in shapes.items()}
    if container == "gguf":
        keys = base_keys(SimpleNamespace(**metadata, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}))
        metadata = {"general.architecture": arch.gguf, **{f"{arch.gguf}.{key}": value for key, value in keys.items()}}
    return MemoryCheckpoint(container, metadata, as_tensors(arrays))


class Session:
    """Texts that grow in one interpreter's cache, in scattered blocks."""

    def __init__(self, model: DrawnModel, num_blocks: int = 80, seed: int = 0) -> None:
        self.interpreter = Interpreter(model.graph, model.weights, num_blocks, BLOCK)
        self.num_blocks = num_blocks
        self._free = [int(block) for block in np.random.default_rng(seed).permutation(num_blocks)]
        self._tables: dict[str, list[int]] = {}
        self._computed: dict[str, int] = {}

    def step(self, chunks: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray]:
        """Append a chunk to each text; return logits [len(chunk), vocab] by text."""
        parts = []
        for text, chunk in chunks.items():
            table, start = self._tables.setdefault(text, []), self._computed.get(text, 0)
            while len(table) * BLOCK < start + len(chunk):
                table.append(self._free.pop())
            self._computed[text] = start + len(chunk)
            state = list(self._tables).index(text)
            parts.append(RowPart(chunk, start, list(table), num_logits=len(chunk), state=state))
        batch = Batch.of(parts, BLOCK)
        batch.check(self.num_blocks, BLOCK)
        logits = self.interpreter.run(batch)
        return {text: logits[batch.starts[r] : batch.starts[r + 1]] for r, text in enumerate(chunks)}


def some_tokens(count: int) -> list[int]:
    """Return `count` random tokens, always the same ones for a count."""
    return np.random.default_rng(count).integers(0, VOCAB, count).tolist()
