"""Which architecture a checkpoint is, other names of one, and what is said about models that are not supported."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quire.models import registry
from quire.models.draw import draw
from quire.models.errors import UnsupportedModel
from quire.models.registry import all_architectures, find_architecture
from quire.ops.registry import relative_error
from tests.models import toys
from tests.models.case import Conversion, pair_heads
from tests.models.toys import MemoryCheckpoint, Session, make_toy, some_tokens

pytestmark = pytest.mark.pure

SUPPORTED = {arch.name for arch in all_architectures()}


def renamed(case: str, name: str, model_type: str, **changes: Any) -> MemoryCheckpoint:
    """The toy of a case, whose config.json has other names."""
    checkpoint = make_toy(case).checkpoint
    metadata = {**checkpoint.metadata, "architectures": [name], "model_type": model_type, **changes}
    return replace(checkpoint, metadata=metadata)


# --- other names


def yi(checkpoint: MemoryCheckpoint) -> MemoryCheckpoint:
    """With the names of norms that the first files of Yi have."""
    names = {"input_layernorm": "ln1", "post_attention_layernorm": "ln2"}
    tensors = dict(checkpoint.tensors)
    for name in list(tensors):
        for ours, theirs in names.items():
            if ours in name:
                tensors[name.replace(ours, theirs)] = tensors.pop(name)
    return replace(checkpoint, tensors=tensors)


OFF = {"attention_bias": False, "mlp_bias": False}
ALIASES: Mapping[str, tuple[str, str, dict[str, Any]]] = {
    "AquilaForCausalLM": ("llama", "aquila", {}),
    "ExaoneMoEForCausalLM": ("exaone_moe", "exaone_moe", {}),
    "InternLMForCausalLM": ("llama", "internlm", {"bias": False}),
    "InternLM3ForCausalLM": ("llama-tied-biased", "internlm3", {**OFF, "qkv_bias": True, "bias": True}),
    "NemotronHMoeForCausalLM": ("nemotron_h-experts", "nemotron_h", {}),
    "XverseForCausalLM": ("llama-linear", "xverse", {}),
    "YiForCausalLM": ("llama", "Yi", {}),
}


def test_every_alias_has_a_case():
    listed = (arch for arch in all_architectures() if arch.source is None)  # others: tests/models/sources.py
    found = {arch.name for arch in listed if arch.alias_of and "head" in arch.names.entries}
    assert found == set(ALIASES)  # those of encoders have cases in tests/models/encoders.py


@pytest.mark.parametrize("name", ALIASES)
def test_another_name_of_an_architecture_gives_its_logits(name):
    case, model_type, changes = ALIASES[name]
    code = {"AutoConfig": "configuration_x.X", "AutoModelForCausalLM": f"modeling_x.{name}"}
    checkpoint = renamed(case, name, model_type, auto_map=code, **changes)
    tokens = some_tokens(20)
    actual = Session(draw(yi(checkpoint) if name == "YiForCausalLM" else checkpoint)).step({"a": tokens})["a"]
    assert relative_error(actual, make_toy(case).expected_logits(tokens)) < 1e-4


def test_biases_of_internlm_are_those_of_attention():
    checkpoint = renamed("llama-tied-biased", "InternLMForCausalLM", "internlm", bias=True, **OFF)
    tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if "mlp" not in name or "bias" not in name}
    weights = draw(replace(checkpoint, tensors=tensors)).weights
    assert {name.partition(".attn.")[2] for name in weights if name.endswith(".bias")} == {
        *("q.bias", "k.bias", "v.bias", "out.bias")
    }


def test_gguf_files_of_xverse_are_those_of_llama(monkeypatch):
    monkeypatch.setitem(toys.CONVERSIONS, "LlamaForCausalLM", Conversion("xverse", tensor=pair_heads))
    checkpoint = make_toy("llama").as_gguf()
    assert find_architecture(checkpoint).name == "XverseForCausalLM"
    tokens = some_tokens(20)
    actual = Session(draw(checkpoint)).step({"a": tokens})["a"]
    assert relative_error(actual, make_toy("llama").expected_logits(tokens)) < 1e-4


def test_code_that_is_not_the_architectures_own_is_refused():
    other = {"AutoModelForCausalLM": "modeling_x.PatchedForCausalLM"}
    with pytest.raises(UnsupportedModel, match="auto_map"):
        find_architecture(renamed("llama", "AquilaForCausalLM", "aquila", auto_map=other))
    same_name = {"AutoModelForCausalLM": "modeling_x.LlamaForCausalLM"}
    checkpoint = renamed("llama", "LlamaForCausalLM", "llama", auto_map=same_name)
    assert find_architecture(checkpoint).name == "LlamaForCausalLM"


# --- models that are not supported


def test_every_causal_model_of_transformers_that_we_lack_is_refused_with_the_names_of_ours():
    auto = pytest.importorskip("transformers.models.auto.modeling_auto")
    missing = set(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()) - SUPPORTED
    assert len(missing) > 50
    for name in missing:
        with pytest.raises(UnsupportedModel, match=rf"The architecture {name} is not supported.*LlamaForCausalLM"):
            find_architecture(MemoryCheckpoint("safetensors", {"architectures": [name]}, {}))


def test_an_unknown_gguf_architecture_is_refused_with_the_names_of_ours():
    with pytest.raises(UnsupportedModel, match=r"rwkv7 is not supported\..* gguf files are: .*llama, .*qwen3"):
        find_architecture(MemoryCheckpoint("gguf", {"general.architecture": "rwkv7"}, {}))


@pytest.mark.parametrize("case, file", [("llama", "llama"), ("qwen3", "qwen3"), ("gpt_neox", "gpt_neox")])
def test_a_near_relative_is_told_which_file_to_copy(case, file):
    with pytest.raises(UnsupportedModel, match=rf"NewForCausalLM is not supported.*copy src/quire/models/{file}\.py"):
        find_architecture(renamed(case, "NewForCausalLM", "new"))


def test_a_near_relative_without_tensors_is_told_the_file_too():
    checkpoint = replace(renamed("llama", "NewForCausalLM", "new"), tensors={})
    with pytest.raises(UnsupportedModel, match=r"copy src/quire/models/\w+\.py"):
        find_architecture(checkpoint)


def test_a_model_with_another_key_or_tensor_is_no_near_relative():
    key = renamed("llama", "NewForCausalLM", "new", new_switch=True)
    plain = renamed("llama", "NewForCausalLM", "new")
    extra = {**plain.tensors, **toys.as_tensors({"model.gate.weight": np.zeros((2, 2), np.float32)})}
    for checkpoint in (key, replace(plain, tensors=extra)):
        with pytest.raises(UnsupportedModel, match="NewForCausalLM is not supported") as error:
            find_architecture(checkpoint)
        assert "copy" not in str(error.value)


def test_dual_chunk_attention_is_refused_by_name():
    chunks = {"chunk_size": 262144, "local_size": 8192, "original_max_position_embeddings": 262144}
    checkpoint = renamed("qwen2", "Qwen2ForCausalLM", "qwen2", dual_chunk_attention_config=chunks)
    with pytest.raises(UnsupportedModel, match="dual_chunk_attention_config"):
        draw(checkpoint)


@pytest.mark.parametrize(
    "container, key, name",
    [
        ("safetensors", "architectures", "DeepseekV32ForCausalLM"),
        ("safetensors", "architectures", "GlmMoeDsaForCausalLM"),
        ("gguf", "general.architecture", "glm-dsa"),
    ],
)
def test_an_architecture_with_an_indexer_is_refused_with_that_reason(container, key, name):
    named = name if container == "gguf" else [name]
    with pytest.raises(UnsupportedModel, match=rf"{name} is not supported: .* an indexer selects \(index_topk\)\. Sup"):
        find_architecture(MemoryCheckpoint(container, {key: named}, {}))


def test_an_indexer_is_refused_by_the_name_of_its_key():
    with pytest.raises(UnsupportedModel, match="index_topk = 2048"):
        draw(renamed("llama", "LlamaForCausalLM", "llama", index_topk=2048))


def test_a_model_imports_the_files_that_mention_it_and_no_others():
    code = (
        "import sys; from quire.models.registry import find_architecture; from types import SimpleNamespace as S; "
        "found = find_architecture(S(container='safetensors', metadata={'architectures': ['XLMRobertaModel']})); "
        "assert found.name == 'XLMRobertaModel'; "
        "assert 'quire.models.roberta' in sys.modules and 'quire.models.qwen3_next' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_file_that_adds_to_an_architecture_mentions_its_name():
    """Else a model whose name is found without importing all files would lack what they add."""
    texts = registry._file_texts()
    for arch in all_architectures():
        text = texts[arch.draw.__module__]
        if arch.mtp is not None:
            assert f'"{arch.alias_of or arch.name}"' in texts["quire.models.mtp_heads"]
        if arch.source is not None:
            assert f'"{arch.alias_of or arch.name}"' in text
        twins = [each for each in all_architectures() if arch.gguf and each.gguf == arch.gguf]
        assert all(f'"{arch.gguf}"' in texts[each.draw.__module__] for each in twins if len(twins) > 1)
