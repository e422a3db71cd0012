"""The details of a checkpoint that `quire show` prints."""

from __future__ import annotations

import json

import pytest

from quire.cli.commands.show import checkpoint_details
from tests.models.toys import make_toy

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    "config, architecture",
    [
        ({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, "LlamaForCausalLM"),
        ({"model_type": "llama"}, "llama"),
        ({"architectures": 5}, "5"),
        ({"architectures": [None]}, "None"),
        ({}, ""),
    ],
)
def test_the_architecture_is_read_from_any_config_file(config, architecture, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    assert checkpoint_details(tmp_path)["architecture"] == architecture


@pytest.mark.parametrize(
    "case, expected",
    [
        ("gemma3", "bytes: 128 for each token, 256 for each of the last 7 tokens"),
        ("lfm2", "bytes: 64 for each token, 768 for the state of a text"),
    ],
)
def test_the_kv_bytes_are_shown_by_how_long_layers_keep_them(case, expected, tmp_path):
    make_toy(case).torch_model.save_pretrained(tmp_path)
    assert checkpoint_details(tmp_path)["KV cache"] == expected
