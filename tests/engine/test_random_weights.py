"""A folder with config.json alone runs on random weights, with little installed and nothing large made in vain."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from quire.config import BadSetting, load
from quire.devices.facts import device_facts
from quire.engine.llm import LLM
from quire.engine.need import need_of
from quire.models.draw import draw
from quire.types.errors import QuireError
from quire.types.request import SamplingParams
from quire.weights.checkpoint import open_checkpoint
from quire.weights.random_weights import RandomTensor
from tests.models.published_experts import WITH_EXPERTS

pytestmark = pytest.mark.device

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
SMALL = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.25,
    "eos_token_id": 2,
}
LARGE = {
    **SMALL,
    "hidden_size": 16384,
    "intermediate_size": 53248,
    "num_attention_heads": 128,
    "num_hidden_layers": 126,
}
# What a machine for measuring lacks: all that serves, fetches and constrains.
ABSENT = "starlette msgspec llguidance zmq httpx huggingface_hub typer rich yaml uvicorn prometheus_client"
SCRIPT = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ABSENT.split()!r}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
import quire
with quire.LLM(sys.argv[1], load_format="dummy", num_blocks=64) as llm:
    sampling = quire.SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    print(*[token for answer in llm.generate([[1, 2, 3], [4, 5]], sampling) for token in answer.tokens])
"""


def folder_with(config: dict[str, object], folder: Path) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return folder_with(SMALL, tmp_path)


def test_random_weights_from_a_configuration_give_the_same_tokens_every_time(small: Path):
    with LLM(small, load_format="dummy", num_blocks=64) as llm:
        first = [answer.tokens for answer in llm.generate([[1, 2, 3], [4, 5]], GREEDY)]
        assert llm.tokenizer is None
    with LLM(small, load_format="dummy", num_blocks=64) as llm:
        assert [answer.tokens for answer in llm.generate([[1, 2, 3], [4, 5]], GREEDY)] == first
    assert all(len(tokens) == 12 and len(set(tokens)) > 3 for tokens in first)


def test_the_python_api_runs_with_few_packages_installed(small: Path):
    command = [sys.executable, "-c", SCRIPT, str(small)]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
    assert len(child.stdout.split()) == 24


def test_without_load_format_dummy_missing_weights_are_an_error(small: Path):
    with pytest.raises(QuireError, match=r"neither model\.safetensors nor"):
        open_checkpoint(small)


def test_drawing_and_sizing_a_model_reads_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(tensor: RandomTensor) -> np.ndarray:
        raise AssertionError(f"{tensor.name} was made")

    monkeypatch.setattr(RandomTensor, "_draw", refuse)
    folder = folder_with(LARGE, tmp_path)
    need = need_of(folder, load({"load_format": "dummy"}, {}), device_facts("cpu"))
    assert need.fixed_bytes > 700e9  # over 350 billion parameters of two bytes
    weights = draw(open_checkpoint(folder, "dummy")).weights
    assert all(weight.format == "bf16" for name, weight in weights.items() if not name.startswith("rope."))


def test_the_need_of_a_model_with_experts_has_all_of_them(tmp_path: Path):
    """In the formats of its configuration; what does not fit is refused before anything is made."""
    needs, config = {}, load({"load_format": "dummy", "max_rows": 8}, {})
    for name in ("Qwen3 30B A3B", "gpt-oss 20B"):
        (tmp_path / name).mkdir()
        folder = folder_with(WITH_EXPERTS[name], tmp_path / name)
        needs[name] = need_of(folder, config, device_facts("cpu")).fixed_bytes
    assert needs["Qwen3 30B A3B"] == pytest.approx(61.1e9, rel=0.02)
    assert needs["gpt-oss 20B"] == pytest.approx(13.8e9, rel=0.03)  # experts 10.2, the rest in bf16
    with pytest.raises(BadSetting, match=r"No memory is left for the KV cache: the model takes 6\d{4} MB"):
        LLM(tmp_path / "Qwen3 30B A3B", load_format="dummy")


def test_random_norms_are_near_one_and_other_weights_have_the_configured_deviation(small: Path):
    weights = draw(open_checkpoint(small, "dummy")).weights
    norm, matrix = weights["layers.1.mlp.norm"].float32(), weights["layers.1.mlp.gate"].float32()
    assert abs(norm.mean() - 1) < 0.2 and abs(norm.std() - 0.25) < 0.1
    assert abs(matrix.mean()) < 0.02 and abs(matrix.std() - 0.25) < 0.01
    twin = weights["layers.0.mlp.gate"]
    assert not np.array_equal(matrix, twin.float32()) and np.array_equal(twin.float32(), twin.float32())
    assert twin.source.data.nbytes == twin.num_bytes == matrix.size * 2


def test_a_device_without_conversions_refuses_quantize(small: Path):
    with pytest.raises(BadSetting, match=r"'fp8', which the device 'cpu' does not have: it has q8_0"):
        LLM(small, load_format="dummy", num_blocks=64, quantize="fp8")


def test_a_kv_format_that_the_device_does_not_have_is_refused_with_one_that_it_has(small: Path):
    with pytest.raises(BadSetting, match=r"'f8_e4m3', which the device 'cpu' does not have.*nearest in size is q8_0"):
        LLM(small, load_format="dummy", num_blocks=64, kv_dtype="f8_e4m3")
