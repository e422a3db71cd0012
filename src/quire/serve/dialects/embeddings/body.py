"""The bodies of requests for vectors, scores and classes. `null` is the same as no field."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from quire.serve.dialects.body import Refusal

TokenId = Annotated[int, Meta(ge=0, lt=1 << 32)]
Count = Annotated[int, Meta(ge=1, lt=1 << 31)]
Limit = Annotated[int, Meta(ge=-1, lt=1 << 31)]  # -1: what the model reads
Inputs = str | list[str | TokenId | list[TokenId]]


class VectorBody(Struct, kw_only=True):
    """Fields of all of vLLM's endpoints."""

    model: str | None = None  # None: the only one that is served
    user: str | None = None  # accepted, and not used
    priority: int | None = None
    request_id: str | None = None
    truncate_prompt_tokens: Limit | None = None


class EmbeddingsBody(VectorBody, kw_only=True):
    """POST /v1/embeddings and /pooling"""

    input: Inputs
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Count | None = None
    normalize: bool | None = None
    prompt_name: str | None = None
    input_type: str | None = None  # another name of prompt_name: query, document


class ClassifyBody(VectorBody, kw_only=True):
    """POST /classify"""

    input: Inputs


class ScoreBody(VectorBody, kw_only=True):
    """POST /score: one text with each of the others, or pair by pair."""

    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None
    queries: str | list[str] | None = None  # other names of the two
    documents: str | list[str] | None = None
    instruction: str | None = None  # of models that judge by one


class DocumentBody(Struct, forbid_unknown_fields=True):
    """A document as an object."""

    text: str


class RerankBody(VectorBody, kw_only=True):
    """POST /v1/rerank and /v2/rerank; at /rerank also TEI's form, which has `texts`."""

    query: str
    documents: list[str | DocumentBody] | None = None
    top_n: Count | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: Count | None = None  # Cohere; a pair longer than this is cut
    instruction: str | None = None  # of models that judge by one
    texts: list[str] | None = None  # TEI, as the next four
    raw_scores: bool | None = None
    return_text: bool | None = None
    truncate: bool | None = None
    truncation_direction: Literal["right", "Right"] | None = None


class TeiEmbedBody(Struct, kw_only=True):
    """POST /embed of TEI"""

    inputs: Inputs
    model: str | None = None
    normalize: bool | None = None
    truncate: bool | None = None
    truncation_direction: Literal["right", "Right"] | None = None
    prompt_name: str | None = None
    dimensions: Count | None = None


class LlamaCppEmbedBody(Struct, kw_only=True):
    """POST /embedding of llama.cpp"""

    content: Inputs | None = None
    input: Inputs | None = None
    model: str | None = None
    embd_normalize: Literal[-1, 2] | None = None


REFUSED = {
    "messages": Refusal("give input: texts or token ids."),
    "add_special_tokens": Refusal("to decide about special tokens, give token ids.", (True,)),
    "activation": Refusal("scores are as the model's files say; see /classify.", (True,)),
    "softmax": Refusal("classes are as the model's files say.", (True,)),
    "use_activation": Refusal("scores are as the model's files say.", (True,)),
    "embed_dtype": Refusal("vectors are float32.", ("float32",)),
    "endianness": Refusal("bytes are little-endian.", ("native", "little")),
    "output_dtype": Refusal("vectors are float32.", ("float", "float32")),
    "rank_fields": Refusal("documents are text."),
    "max_chunks_per_doc": Refusal("a document is one text."),
    "image": Refusal("this model reads text."),
}
