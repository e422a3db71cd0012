"""Toys of decoders that judge a document by the logits of yes and no, and what transformers computes with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Native

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 512}  # fmt: skip
CORPUS = ["yes no yes no", "Judge whether the Document meets the requirements based on the Query and the Instruct"] * 4
PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
TASK = "Given a web search query, retrieve relevant passages that answer the query"
TEMPLATE = (  # with the roles of sentence-transformers
    PREFIX + "<Instruct>: {{ messages | selectattr('role', 'eq', 'system') | map(attribute='content') | first | "
    f"default('{TASK}') }}}}\n"
    "<Query>: {{ messages | selectattr('role', 'eq', 'query') | map(attribute='content') | first }}\n"
    "<Document>: {{ messages | selectattr('role', 'eq', 'document') | map(attribute='content') | first }}"
    "<|im_end|>\n{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n\n</think>\n\n{% endif %}"
)


def write_tokenizer(folder: Path) -> Any:
    """BPE over bytes with the tokens yes and no, as Qwen has them."""
    import transformers

    native = Native(models.BPE())
    native.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    native.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    native.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet))
    native.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=native, eos_token=SPECIAL[2], pad_token=SPECIAL[0], padding_side="left"
    )
    assert {"yes", "no"} <= set(native.get_vocab())
    made.save_pretrained(folder)
    return made


def write_decoder(folder: Path, *, tied: bool = False) -> tuple[Any, Any]:
    """A Qwen3 with random weights, and its tokenizer."""
    import torch
    import transformers

    tokenizer = write_tokenizer(folder)
    config = transformers.Qwen3Config(**SIZES, vocab_size=len(tokenizer), tie_word_embeddings=tied)
    torch.manual_seed(5)
    model = transformers.Qwen3ForCausalLM(config).eval()
    for each in model.parameters():
        each.data = torch.randn_like(each) * (0.3 if each.ndim == 1 else 0.2) + (1.0 if each.ndim == 1 else 0.0)
    model.tie_weights()
    model.save_pretrained(folder)
    return model, tokenizer


def write_original(folder: Path, *, tied: bool = False) -> tuple[Any, Any]:
    """As Qwen3-Reranker is published: only the README says what it is."""
    found = write_decoder(folder, tied=tied)
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Qwen3-Reranker-0.6B\n", encoding="utf-8")
    return found


def write_vllm(folder: Path) -> tuple[Any, Any]:
    """With vLLM's keys in config.json."""
    found, path = write_decoder(folder), folder / "config.json"
    config = json.loads(path.read_text())
    changes = {"architectures": ["Qwen3ForSequenceClassification"], "classifier_from_token": ["no", "yes"]}
    path.write_text(json.dumps({**config, **changes, "is_original_qwen3_reranker": True}))
    return found


def published_tokens(tokenizer: Any, query: str, document: str, task: str = TASK, most: int | None = None) -> list[int]:
    """The tokens by the recipe of the model card: the prompt's ends are encoded apart, and what is between is cut."""
    ends = [tokenizer.encode(each, add_special_tokens=False) for each in (PREFIX, SUFFIX)]
    text = f"<Instruct>: {task}\n<Query>: {query}\n<Document>: {document}"
    inner = tokenizer.encode(text, add_special_tokens=False)
    room = len(inner) if most is None else most - len(ends[0]) - len(ends[1])
    return [*ends[0], *inner[:room], *ends[1]]


def published_score(model: Any, tokenizer: Any, tokens: list[int]) -> float:
    """The probability of yes among yes and no."""
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0, -1]
    both = logits[[tokenizer.convert_tokens_to_ids("no"), tokenizer.convert_tokens_to_ids("yes")]]
    return float(torch.nn.functional.log_softmax(both.float(), dim=0)[1].exp())
