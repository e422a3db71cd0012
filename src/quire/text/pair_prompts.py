"""Prompts of rerankers that are decoders, such as Qwen3-Reranker: the text around a query and a document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from quire.types.errors import InvalidRequest, QuireError, TextTooLong

if TYPE_CHECKING:
    from quire.text.embedding_rules import EmbeddingRules
    from quire.text.token_room import TokenRoom
    from quire.text.tokenizer import Tokenizer

RANK_TEMPLATE = "tokenizer.chat_template.rerank"  # of GGUF files: with {query} and {document}
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
QWEN3_RERANKER = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    f"<Instruct>: {INSTRUCTION}\n<Query>: {{query}}\n<Document>: {{document}}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
QUERY, DOCUMENT = "\ue000query\ue001", "\ue000document\ue001"  # stand for the texts when a template is rendered
ROLES = ("query", "document")


class PairParts(NamedTuple):
    """The text before the query, between the two, and after the document."""

    before: str
    between: str
    behind: str


class PairPrompt(Protocol):
    """The prompt of one model."""

    def parts(self, instruction: str | None) -> PairParts: ...


class WrittenPrompt:
    """A prompt with the fields {query} and {document}, and an instruction that can be replaced."""

    def __init__(self, text: str) -> None:
        self._text = text

    def parts(self, instruction: str | None) -> PairParts:
        """Return the parts, with another instruction if one is given."""
        text = self._text
        if instruction is not None and INSTRUCTION not in text:
            raise no_instruction()
        before, _, rest = text.partition("{query}")
        between, _, behind = rest.partition("{document}")
        if instruction is not None:
            before = before.replace(INSTRUCTION, instruction)
        return PairParts(before, between, behind)


class RenderedPrompt:
    """A chat template with the roles query and document, as in sentence-transformers. The instruction is the system
    message."""

    def __init__(self, template: Any, rules: EmbeddingRules) -> None:
        self._template, self._default = template, rules.prompt_for(None)
        self._opens_answer = rules.opens_answer

    def parts(self, instruction: str | None) -> PairParts:
        """Return the parts that the template renders."""
        chosen = self._default if instruction is None else instruction
        system = [{"role": "system", "content": chosen}] if chosen else []
        messages = [*system, {"role": ROLES[0], "content": QUERY}, {"role": ROLES[1], "content": DOCUMENT}]
        text = self._template.render(messages, add_generation_prompt=self._opens_answer)
        before, has_query, rest = text.partition(QUERY)
        between, has_document, behind = rest.partition(DOCUMENT)
        if not has_query or not has_document:
            raise InvalidRequest("The model's chat template does not render a query and a document.", field="model")
        return PairParts(before, between, behind)


def pair_prompt_of(template: Any, metadata: Mapping[str, Any], rules: EmbeddingRules) -> PairPrompt | None:
    """Return the prompt in the model's files, or that of Qwen3-Reranker. None: the model has none."""
    if written := metadata.get(RANK_TEMPLATE):
        return WrittenPrompt(str(written))
    classes = [str(each) for each in metadata.get("architectures") or ()]
    if not rules.judges and not any(each.endswith("ForSequenceClassification") for each in classes):
        return None
    if all(word in source for source in template.sources.values() for word in ROLES):
        rendered = RenderedPrompt(template, rules)
        try:
            rendered.parts(None)
        except QuireError:  # a chat template that happens to have these words
            return _published(metadata, rules)
        return rendered
    return _published(metadata, rules)


def _published(metadata: Mapping[str, Any], rules: EmbeddingRules) -> PairPrompt | None:
    is_qwen3 = metadata.get("model_type") == "qwen3" or metadata.get("general.architecture") == "qwen3"
    return WrittenPrompt(QWEN3_RERANKER) if rules.judges and is_qwen3 else None


def encode_judged(
    pair: Sequence[str], prompt: PairPrompt, instruction: str | None, tokenizer: Tokenizer, room: TokenRoom
) -> tuple[int, ...]:
    """Encode a query and a document in their prompt. If there is no room for all of it, the document is cut.

    Names of special tokens in the two texts are encoded as text, unless the client has formatted the prompt itself:
    then the query begins with the first words of the prompt.
    """
    before, between, behind = prompt.parts(instruction)
    head, opening = _split_last(tokenizer, before)
    closing, tail = _split_first(tokenizer, behind)
    if head and pair[0].startswith(head):
        written = tokenizer.encode("".join(pair), special=True, add_bos=False, add_eos=False)
        if room.excess(len(written), 0):
            raise TextTooLong(len(written), room.most, room.field)
        return tuple(written)
    around = [tokenizer.encode(each, special=True, add_bos=False, add_eos=False) for each in (head, tail)]
    text = f"{opening}{pair[0]}{between}{pair[1]}{closing}"
    inner = tokenizer.encode(text, add_bos=False, add_eos=False)
    num_own = len(around[0]) + len(around[1])
    excess = room.excess(len(inner) + num_own, num_own)
    return (*around[0], *inner[: len(inner) - excess], *around[1])


def no_instruction() -> InvalidRequest:
    """Return the error for an instruction that the model cannot use."""
    return InvalidRequest("This model does not use an instruction: leave `instruction` out.", field="instruction")


def _split_last(tokenizer: Tokenizer, text: str) -> tuple[str, str]:
    """Split a text after its last special token."""
    ends = [place + len(name) for name in tokenizer.special_names if (place := text.rfind(name)) >= 0]
    last = max(ends, default=0)
    return text[:last], text[last:]


def _split_first(tokenizer: Tokenizer, text: str) -> tuple[str, str]:
    """Split a text before its first special token."""
    places = [place for name in tokenizer.special_names if (place := text.find(name)) >= 0]
    first = min(places, default=len(text))
    return text[:first], text[first:]
