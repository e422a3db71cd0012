"""Toys whose checkpoints have a head that predicts one more token, in safetensors and in GGUF files."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.engine.model_drafts import PROMPTS
from tests.engine.spelled import save_spelled
from tests.models.case import Arrays
from tests.models.toys import CONVERSIONS, MemoryCheckpoint, Toy, as_tensors, make_toy

IN_LAYER = {"enorm": "enorm", "hnorm": "hnorm", "eh_proj": "eh_proj", "post_norm": "shared_head.norm"}
OF_MODEL = {"enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "eh_proj": "fc", "post_norm": "norm"}
IN_GGUF = {"enorm": "enorm", "hnorm": "hnorm", "eh_proj": "eh_proj", "shared_head.norm": "shared_head_norm"}
OTHERS_IN_GGUF = {"post_attention_layernorm.weight": "post_attention_norm.weight"}  # of newer converters
FITTED_PROMPT, STRENGTH = PROMPTS[1], 20.0  # an answer in which some guesses are right
NEMOTRON = ("nemotron_h-experts", "nemotron_h-latent")
BY_LAYER = ("attention.head_count_kv", "feed_forward_length", "attention.recurrent_layers")  # lists in GGUF files


class HeadToy(NamedTuple):
    """A toy, its head in torch, and the head's drafts after whole texts: `guesses(text, count)`."""

    toy: Toy
    head: Any
    guesses: Callable[[list[int], int], list[int]]


@cache
def with_head(case: str) -> HeadToy:
    """A toy whose checkpoint has a head. Where the model has several kinds of layers, the head has a prefix."""
    toy = make_toy(case)
    if case in NEMOTRON:
        arrays, guesses = _nemotron_head(toy)
        return HeadToy(_with_tensors(toy, arrays, {"num_nextn_predict_layers": 1}), None, guesses)
    layers, config = pytest.importorskip("transformers.modeling_layers"), toy.torch_model.config
    has_prefix = case.startswith(("qwen", "mellum"))
    if has_prefix:
        config.mtp_layer_types = ["full_attention" if case.startswith("qwen") else "sliding_attention"]
    config.num_mtp_layers = 1
    if getattr(config, "mlp_layer_types", None):
        config.mtp_mlp_layer_types = config.mlp_layer_types[-1:]
    head = layers.MtpModel(toy.torch_model, 1).eval()
    arrays, own = {}, head.layers[0]
    for name, array in _randomised(head.layers, (own.enorm, own.hnorm, own.eh_proj), toy).items():
        word, _, rest = name.removeprefix("0.").partition(".")
        arrays[_published(word, rest, None if has_prefix else config.num_hidden_layers)] = array

    keys = {} if has_prefix else {"num_nextn_predict_layers": 1}
    return HeadToy(_with_tensors(toy, arrays, keys), head, _guesses_of(toy.torch_model, _run_of(head, config)))


def _run_of(head: Any, config: Any) -> Callable[[Any, Any], tuple[int, Any]]:
    """Return how to run a head of transformers over all tokens: the last guess, and the head's hidden row of it."""
    torch, caches = pytest.importorskip("torch"), pytest.importorskip("transformers.cache_utils")

    def run(ids: Any, states: Any) -> tuple[int, Any]:
        rows: list[Any] = []
        hook = head.layers[0].register_forward_hook(lambda layer, inputs, row: rows.append(row))
        cache = caches.MtpCache(config=config.get_mtp_config())
        found = head(ids, states, None, torch.arange(1, ids.shape[1] + 1)[None], cache)[0]
        hook.remove()
        return int(found[0, 0]), rows[-1][:, -1:]

    return run


def _guesses_of(model: Any, run: Callable[[Any, Any], tuple[int, Any]]) -> Callable[[list[int], int], list[int]]:
    """Return the drafts after a text. For those after the first, the head reads its own hidden rows."""
    torch = pytest.importorskip("torch")

    def guesses(text: list[int], count: int) -> list[int]:
        ids, found = torch.tensor([text]), list[int]()
        with torch.no_grad():
            states = model.get_decoder()(ids[:, :-1]).last_hidden_state
            for _ in range(count):
                guess, row = run(ids[:, 1:], states)
                found.append(guess)
                ids, states = torch.cat([ids, torch.tensor([[guess]])], -1), torch.cat([states, row], 1)
        return found

    return guesses


def _with_tensors(toy: Toy, arrays: Arrays, keys: dict[str, Any]) -> Toy:
    tensors, metadata = {**toy.checkpoint.tensors, **as_tensors(arrays)}, {**toy.checkpoint.metadata, **keys}
    return replace(toy, checkpoint=MemoryCheckpoint("safetensors", metadata, tensors))


def _randomised(module: Any, inputs: tuple[Any, Any, Any], toy: Toy) -> Arrays:
    """Make all numbers of the head random that are not the model's, and fit its matrix; return them by name.

    `inputs`: the norms of embeddings and of hidden rows, and the matrix.
    """
    torch = pytest.importorskip("torch")
    generator, shared = torch.Generator().manual_seed(7), {id(each) for each in toy.torch_model.parameters()}
    tensors = [*module.named_parameters(), *module.named_buffers()]
    own = {name: each for name, each in tensors if id(each) not in shared and each.is_floating_point()}
    with torch.no_grad():
        for tensor in own.values():
            noise = torch.randn(tensor.shape, generator=generator)
            tensor.copy_(noise * 0.25 if tensor.dim() > 1 else 1.0 + 0.3 * noise)
        answer = toy.expected_greedy(FITTED_PROMPT, 24)
        inputs[2].weight.copy_(_fitted_matrix(*inputs[:2], toy.torch_model, [(FITTED_PROMPT, answer)]))
    return {name: tensor.detach().numpy().copy() for name, tensor in own.items()}


def save_with_head(toy: Toy, folder: Path) -> Path:
    """Save a spelled toy whose head is numbered after the model's layers."""
    save_spelled(toy.torch_model, folder)
    arrays = {name: tensor.array for name, tensor in toy.checkpoint.tensors.items()}
    pytest.importorskip("safetensors.numpy").save_file(arrays, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 1}))
    return folder


def with_fitted_head(case: str, texts: Sequence[tuple[list[int], list[int]]]) -> Toy:
    """The same toy, its head with a matrix fitted to other texts. `texts`: prompts, and what follows each."""
    toy, head, _ = with_head(case)
    own, torch = head.layers[0], pytest.importorskip("torch")
    with torch.no_grad():
        matrix = _fitted_matrix(own.enorm, own.hnorm, toy.torch_model, texts).contiguous()
    name = _published("eh_proj", "weight", toy.torch_model.config.num_hidden_layers)
    assert name in toy.checkpoint.tensors
    return _with_tensors(toy, {name: matrix.numpy()}, {})


def _fitted_matrix(embed_norm: Any, hidden_norm: Any, model: Any, texts: Sequence[tuple[list[int], list[int]]]) -> Any:
    """A matrix with which some guesses in these answers are right: after it come layers with random numbers."""
    torch = pytest.importorskip("torch")
    inputs, outputs = [], []
    for prompt, answer in texts:
        ids = torch.tensor([[*prompt, *answer]])
        states = model.get_decoder()(ids[:, :-1]).last_hidden_state
        both = torch.cat([embed_norm(model.get_input_embeddings()(ids[:, 1:])), hidden_norm(states)], -1)[0, :-1]
        inputs.append(both[len(prompt) - 1 :])
        outputs.append(STRENGTH * model.lm_head.weight[ids[0, len(prompt) + 1 :]])
    return torch.linalg.lstsq(torch.cat(inputs), torch.cat(outputs)).solution.T


def _published(word: str, rest: str, layer: int | None) -> str:
    """The name of a head's tensor in files. `layer`: that of the head, None where it has a prefix of its own."""
    prefix = "mtp.layers.0" if layer is None else f"model.layers.{layer}"
    if word == "mtp_block":
        return f"{prefix}.{rest}"
    return f"mtp.{OF_MODEL[word]}.{rest}" if layer is None else f"{prefix}.{IN_LAYER[word]}.{rest}"


def _nemotron_head(toy: Toy) -> tuple[Arrays, Callable[[list[int], int], list[int]]]:
    """A head of blocks of transformers, which has no class for it: attention, then experts."""
    torch = pytest.importorskip("torch")
    modules = pytest.importorskip("transformers.models.nemotron_h.modeling_nemotron_h")
    model, config = toy.torch_model, copy.deepcopy(toy.torch_model.config)
    config.layers_block_type = config.layer_types = ["full_attention", "moe"]
    hidden, eps = config.hidden_size, config.layer_norm_epsilon
    first, last = (modules.NemotronHBlock(config, layer).eval() for layer in (0, 1))
    first.enorm, first.hnorm, last.final_layernorm = (modules.NemotronHRMSNorm(hidden, eps=eps) for _ in range(3))
    first.eh_proj = torch.nn.Linear(2 * hidden, hidden, bias=False)
    arrays = _randomised(torch.nn.ModuleList([first, last]), (first.enorm, first.hnorm, first.eh_proj), toy)

    def run(ids: Any, states: Any) -> tuple[int, Any]:
        both = torch.cat([first.enorm(model.model.embeddings(ids)), first.hnorm(states)], -1)
        mask = torch.full((ids.shape[1], ids.shape[1]), -torch.inf).triu(1)[None, None]
        row = last.final_layernorm(last(first(first.eh_proj(both), attention_mask=mask)))[:, -1:]
        return int(model.lm_head(row)[0, 0].argmax()), row

    return {f"mtp.layers.{name}": array for name, array in arrays.items()}, _guesses_of(model, run)


def gguf_with_head(case: str) -> MemoryCheckpoint:
    """The toy and its head as llama.cpp's converter writes them: the head is a block behind the last one."""
    gguf, toy = pytest.importorskip("gguf"), with_head(case).toy
    config = toy.torch_model.config
    plain, conversion, count = toy.as_gguf(), CONVERSIONS[config.architectures[0]], config.num_hidden_layers
    arch = str(plain.metadata["general.architecture"])
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    names, arrays = gguf.get_tensor_name_map(kinds[arch], count + 1), {}
    for name, tensor in toy.checkpoint.tensors.items():
        if name in make_toy(case).checkpoint.tensors:
            continue
        renamed = _as_block(name, count)
        made = conversion.tensor(renamed, tensor.array, config)
        for each, array in ({renamed: made} if isinstance(made, np.ndarray) else made or {}).items():
            word = each.removeprefix(f"model.layers.{count}.").removeprefix(f"backbone.layers.{count}.")
            if own := IN_GGUF.get(word.removesuffix(".weight")):
                arrays[f"blk.{count}.nextn.{own}.weight"] = array
            else:
                found = names.get_name(each, try_suffixes=(".weight", ".bias"))
                arrays[found or f"blk.{count}.{OTHERS_IN_GGUF[word]}"] = array
    keys = {**plain.metadata, f"{arch}.block_count": count + 1, f"{arch}.nextn_predict_layers": 1}
    for key in (f"{arch}.{each}" for each in BY_LAYER):
        if isinstance(keys.get(key), list):
            keys[key] = [*keys[key], max(keys[key]) if "recurrent" not in key else 0]
    return MemoryCheckpoint("gguf", keys, {**plain.tensors, **as_tensors(arrays)})


def _as_block(name: str, count: int) -> str:
    """The name that the converter gives a head's tensor before it looks up that in GGUF files."""
    special = {
        **{f"mtp.{published}": IN_LAYER[word] for word, published in OF_MODEL.items()},
        **{"mtp.layers.1.norm": "post_attention_layernorm", "mtp.layers.1.final_layernorm": "shared_head.norm"},
    }
    stem, _, kind = name.rpartition(".")
    if stem in special:
        return f"model.layers.{count}.{special[stem]}.{kind}"
    return f"model.layers.{count}.{name.split('.', 3)[3]}" if name.startswith("mtp.layers.") else name
