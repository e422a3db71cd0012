"""Which prompt a model has for a query and a document."""

from __future__ import annotations

import pytest

from quire.text.embedding_rules import EmbeddingRules, gguf_rules
from quire.text.pair_prompts import QWEN3_RERANKER, RANK_TEMPLATE, pair_prompt_of
from quire.text.template import ChatTemplate
from quire.types.errors import InvalidRequest

pytestmark = pytest.mark.pure
JUDGE, PLAIN = EmbeddingRules(judges=True), EmbeddingRules()
QWEN3 = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
ROLES = "{% for m in messages if m.role in ('query', 'document') %}<{{ m.content }}>{% endfor %}"


def test_a_chat_model_has_none():
    assert pair_prompt_of(ChatTemplate(ROLES), QWEN3, PLAIN) is None


def test_the_chat_template_counts_if_it_writes_both_texts():
    assert pair_prompt_of(ChatTemplate(ROLES), QWEN3, JUDGE).parts(None) == ("<", "><", ">")
    words = "{{ 'a query, a document' }}"
    assert pair_prompt_of(ChatTemplate(words), QWEN3, JUDGE).parts(None).between == "\n<Document>: "
    assert pair_prompt_of(ChatTemplate(None), {**QWEN3, "model_type": "llama"}, JUDGE) is None


def test_a_gguf_file_has_its_prompt_as_a_text():
    metadata = {"general.architecture": "qwen3", RANK_TEMPLATE: QWEN3_RERANKER}
    assert not gguf_rules(metadata).judges
    rules = gguf_rules({**metadata, "qwen3.classifier.output_labels": ("yes", "no")})
    parts = pair_prompt_of(ChatTemplate(None), metadata, rules).parts("Find names")
    assert (
        rules.judges and "<Instruct>: Find names\n<Query>: " in parts.before and parts.behind.startswith("<|im_end|>")
    )
    other = pair_prompt_of(ChatTemplate(None), {RANK_TEMPLATE: "{query} | {document}"}, rules)
    assert other.parts(None) == ("", " | ", "")
    with pytest.raises(InvalidRequest, match="does not use an instruction"):
        other.parts("Find names")
