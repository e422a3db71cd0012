"""Rerankers that are decoders: finds the two answer tokens, such as yes and no, whose logits are the score.

They are in the LogitScore module of a sentence-transformers folder, or in config.json under vLLM's key
`classifier_from_token`. Qwen3-Reranker is recognized only by its name; its answers are yes and no.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import CorruptCheckpoint
from .mapped_file import read_text
from .safetensors import parse_object
from .sentence_modules import SentenceModule

if TYPE_CHECKING:
    from .checkpoint import Checkpoint

LOGIT_SCORE = "LogitScore"
ANSWERS = "classifier_from_token"  # of config.json: the tokens for no and yes
RERANKER = "qwen3-reranker"
README, TOKENIZER, VOCAB = "README.md", "tokenizer.json", "vocab.json"
HEADING_BYTES = 20_000  # of a README that are searched for its heading


def with_answers(model: Checkpoint) -> Checkpoint:
    """Return the checkpoint, with a LogitScore module and the answers in its metadata if it is such a reranker."""
    if any(each.kind == LOGIT_SCORE for each in model.modules) or _has_score(model.tensors):
        return model
    named = model.metadata.get(ANSWERS)
    if named is None:
        if not _is_reranker(model):
            return model
        named = ["no", "yes"]
    if not isinstance(named, Sequence) or len(named) != 2 or not all(isinstance(each, str) for each in named):
        raise CorruptCheckpoint(model.path, f"{ANSWERS} in its config.json must be two tokens, such as no and yes")
    false, true = (_token_id(model, each) for each in named)
    module = SentenceModule(LOGIT_SCORE, "", {"true_token_id": true, "false_token_id": false}, {})
    classes = model.metadata.get("architectures")  # in vLLM's form: the class with a classification head
    decoders = [str(each).replace("ForSequenceClassification", "ForCausalLM") for each in classes or ()]
    changed = {ANSWERS: list(named), **({"architectures": decoders} if decoders else {})}
    return replace(model, modules=(*model.modules, module), metadata={**model.metadata, **changed})


def _has_score(tensors: Mapping[str, Any]) -> bool:
    """Return whether there is a classification head."""
    return "score.weight" in tensors or "cls.output.weight" in tensors


def _is_reranker(model: Checkpoint) -> bool:
    """Return whether it is a Qwen3-Reranker, by the name in its files or of its folder."""
    metadata = model.metadata
    if model.container == "gguf":
        name = str(metadata.get("general.name", "")).lower().replace(" ", "-")
        return metadata.get("general.architecture") == "qwen3" and RERANKER in name
    if metadata.get("architectures") != ["Qwen3ForCausalLM"]:
        return False
    if metadata.get("is_original_qwen3_reranker") is True:
        return True
    folder = model.path if model.path.is_dir() else model.path.parent
    names = [*folder.absolute().parts[-3:], str(metadata.get("_name_or_path", ""))]  # the hub's cache: name, …, commit
    if any(RERANKER in name.lower() for name in names):
        return True
    readme = folder / README
    opening = readme.read_bytes()[:HEADING_BYTES] if readme.is_file() else b""
    return f"# {RERANKER}" in opening.decode("utf-8", "replace").lower()


def _token_id(model: Checkpoint, token: str) -> int:
    """Return the id of the token with this text."""
    if model.container == "gguf":
        tokens = model.metadata.get("tokenizer.ggml.tokens") or ()
        if token in tokens:
            return int(tokens.index(token))
        raise CorruptCheckpoint(model.path, f"its vocabulary lacks the token {token!r}")
    folder = model.path if model.path.is_dir() else model.path.parent
    for name in (VOCAB, TOKENIZER):
        file = folder / name
        found = _vocabulary(file).get(token) if file.is_file() else None
        if isinstance(found, int):
            return found
    raise CorruptCheckpoint(folder / TOKENIZER, f"the token {token!r}, by which the model answers, is not in it")


def _vocabulary(file: Path) -> Mapping[str, Any]:
    """Return the ids of the tokens in one of the files."""
    found = parse_object(file, read_text(file), "the file")
    if file.name == VOCAB:
        return found
    model = found.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    return vocabulary if isinstance(vocabulary, dict) else {}
