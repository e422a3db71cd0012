"""What `quire show` says of a checkpoint's files."""

from __future__ import annotations

import json

import pytest

from quire.cli.engine import describe

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    "config, named",
    [
        ({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, "LlamaForCausalLM"),
        ({"model_type": "llama"}, "llama"),
        ({"architectures": 5}, "5"),
        ({"architectures": [None]}, "None"),
        ({}, ""),
    ],
)
def test_a_config_file_is_described_whatever_it_says(config, named, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    assert describe(tmp_path)["architecture"] == named
