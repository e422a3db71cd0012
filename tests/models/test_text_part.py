"""The language model inside models of text and images, against transformers' whole classes on text."""

from __future__ import annotations

from typing import Any

import pytest

from quire.models.draw import draw
from quire.models.text_part import WITH_TEXT
from quire.ops.registry import relative_error
from tests.models.case import SIZES, TOKENS
from tests.models.toys import CASES, MemoryCheckpoint, Session, Toy, as_tensors, random_model, some_tokens

pytestmark = pytest.mark.device

VISION = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip
# whole class: (class of its language model, the toy whose configuration that has)
TEXTS = {
    "Gemma3ForConditionalGeneration": ("Gemma3ForCausalLM", "gemma3"),
    "Gemma4ForConditionalGeneration": ("Gemma4ForCausalLM", "gemma4"),
    "Llama4ForConditionalGeneration": ("Llama4ForCausalLM", "llama4"),
    "Mistral3ForConditionalGeneration": ("Ministral3ForCausalLM", "ministral3"),
    "Qwen3_5ForConditionalGeneration": ("Qwen3_5ForCausalLM", "qwen3_5"),
    "Qwen3_5MoeForConditionalGeneration": ("Qwen3_5MoeForCausalLM", "qwen3_5_moe"),
}


def whole_toy(kind: str) -> Toy:
    """Make a toy of a model of text and images."""
    transformers = pytest.importorskip("transformers")
    text_kind, case = TEXTS[kind]
    text_class = getattr(transformers, text_kind).config_class
    known = {key: SIZES[key] for key in SIZES if hasattr(text_class(), key)}
    text = text_class(**{**known, **TOKENS, **CASES[case].changes})
    config_class = getattr(transformers, kind).config_class
    parts: dict[str, Any] = {"text_config": text, "tie_word_embeddings": text.tie_word_embeddings}
    if kind != "Gemma4ForConditionalGeneration":  # None: no tower
        tower = config_class().vision_config.__class__
        parts["vision_config"] = tower(**{key: VISION[key] for key in VISION if hasattr(tower(), key)})
    config = config_class(**parts, attn_implementation="eager", architectures=[kind])
    model = random_model(kind, config, seed=5)
    arrays = {name: tensor.float().numpy() for name, tensor in model.state_dict().items()}
    if text.tie_word_embeddings:
        del arrays["lm_head.weight"]
    return Toy(model, MemoryCheckpoint("safetensors", config.to_dict(), as_tensors(arrays)))


@pytest.mark.parametrize("kind", sorted(WITH_TEXT))
@pytest.mark.parametrize("is_old", [False, True], ids=["model.language_model", "language_model.model"])
def test_logits_of_text_are_those_of_the_whole_model(kind, is_old, caplog):
    caplog.set_level("INFO", "quire.models")
    toy = whole_toy(kind)
    checkpoint = toy.checkpoint
    if is_old:  # the names before transformers 5
        tensors = {_old_name(name): tensor for name, tensor in checkpoint.tensors.items()}
        checkpoint = MemoryCheckpoint(checkpoint.container, checkpoint.metadata, tensors)
    model, tokens = draw(checkpoint), some_tokens(40)
    assert model.architecture == TEXTS[kind][0] and "without its parts for images" in caplog.text
    assert relative_error(Session(model).step({"a": tokens})["a"], toy.expected_logits(tokens)) < 1e-4


def _old_name(name: str) -> str:
    if name.startswith("lm_head."):
        return f"language_model.{name}"
    return name.replace("model.language_model.", "language_model.model.").removeprefix("model.")
