"""What a model's files say about texts that become vectors: prompts, the longest text, norms, names of classes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quire.text.checkpoint_files import CONFIG, read_object
from quire.text.errors import UnsupportedTokenizer
from quire.text.pair_prompts import RANK_TEMPLATE, PairPrompt

MODULES, PROMPTS = "modules.json", "config_sentence_transformers.json"
LIMITS = ("sentence_bert_config.json", "sentence_roberta_config.json", "sentence_xlm-roberta_config.json")
SYNONYMS = (("query", "search_query"), ("document", "passage", "search_document"))  # names of prompts
NO_LIMIT = 10**9  # files write a huge number where there is none
IDENTITY, SIGMOID = "Identity", "Sigmoid"
ANSWERS, LOGIT_SCORE = "classifier_from_token", "LogitScore"  # a key of config.json, a module
YES_NO = ("yes", "no")


@dataclass(frozen=True, slots=True)
class EmbeddingRules:
    """Of one model."""

    prompts: Mapping[str, str] = field(default_factory=dict)  # by name: what is put before a text
    default_prompt: str | None = None  # the name of the one that is used if a request names none
    normalizes: bool = True  # vectors to length 1
    max_tokens: int | None = None  # of a text; None: the model's context
    lowercases: bool = False
    labels: tuple[str, ...] = ()  # of classes
    activation: str | None = None  # from a score to the answer; None: Sigmoid for one class, else none
    has_independent_classes: bool = False  # a text may be of several
    judges: bool = False  # the scores are logits of answers: yes, and no if there are two
    pair: PairPrompt | None = None  # the prompt around two texts that are scored; None: the tokenizer joins them
    opens_answer: bool = False  # that prompt ends with the template's generation prompt

    def prompt_for(self, name: str | None) -> str | None:
        """Return the prompt of this name, or the default one. None: there is none of this name."""
        chosen = name or self.default_prompt
        if chosen is None:
            return ""
        names = next((each for each in SYNONYMS if chosen in each), (chosen,))
        return next((self.prompts[each] for each in (chosen, *names) if each in self.prompts), None)


def read_rules(folder: Path, metadata: Mapping[str, Any]) -> EmbeddingRules:
    """Read the files of a sentence-transformers folder, and what config.json says about classes."""
    settings = read_object(folder / PROMPTS)
    limits = next((found for name in LIMITS if (found := read_object(folder / name))), {})
    modules, is_sentence_model = _modules(folder), (folder / MODULES).is_file()
    prompts = settings.get("prompts")
    ranking = metadata.get("sentence_transformers")
    activation = ranking.get("activation_fn") if isinstance(ranking, Mapping) else None
    activation = activation or metadata.get("sbert_ce_default_activation_function")
    longest = limits.get("max_seq_length") or read_object(folder / CONFIG).get("model_max_length")
    judges = bool(metadata.get(ANSWERS)) or LOGIT_SCORE in modules
    return EmbeddingRules(
        prompts={str(key): str(text) for key, text in prompts.items()} if isinstance(prompts, dict) else {},
        default_prompt=settings.get("default_prompt_name"),
        normalizes="Normalize" in modules if is_sentence_model else True,
        max_tokens=longest if isinstance(longest, int) and 0 < longest < NO_LIMIT else None,
        lowercases=limits.get("do_lower_case") is True,
        labels=YES_NO if judges else _labels(metadata.get("id2label")),
        activation=str(activation).rpartition(".")[2] if activation else None,
        has_independent_classes=metadata.get("problem_type") == "multi_label_classification",
        judges=judges,
        opens_answer=_opens_answer(limits.get("processing_kwargs")),
    )


def gguf_rules(metadata: Mapping[str, Any]) -> EmbeddingRules:
    """Read the rules of a GGUF file: a reranker's classes, and whether its scores are logits of yes and no."""
    labels = metadata.get(f"{metadata.get('general.architecture')}.classifier.output_labels") or ()
    judges = bool(metadata.get(ANSWERS)) or (RANK_TEMPLATE in metadata and tuple(labels) == YES_NO)
    return EmbeddingRules(labels=YES_NO if judges else tuple(map(str, labels)), judges=judges)


def _opens_answer(given: Any) -> bool:
    """Return the folder's `add_generation_prompt` for its chat template. Other template variables are refused."""
    variables = given.get("chat_template") if isinstance(given, Mapping) else None
    variables = dict(variables) if isinstance(variables, Mapping) else {}
    opens = variables.pop("add_generation_prompt", False)
    variables.pop("restore_suffix", None)  # the end of a prompt is never cut here
    if variables:
        raise UnsupportedTokenizer(f"processing_kwargs.chat_template has {', '.join(variables)}: not supported.")
    return opens is True


def _modules(folder: Path) -> list[str]:
    """The kinds of the modules of the folder."""
    path = folder / MODULES
    if not path.is_file():
        return []
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UnsupportedTokenizer(f"{path.name} cannot be read: {error}") from error
    entries = found if isinstance(found, list) else []
    return [str(each.get("type", "")).rpartition(".")[2] for each in entries if isinstance(each, dict)]


def _labels(given: Any) -> tuple[str, ...]:
    if not isinstance(given, Mapping):
        return ()
    by_number = {int(key): str(label) for key, label in given.items() if str(key).isdigit()}
    return tuple(by_number[number] for number in sorted(by_number))
