"""The details of a checkpoint that `quire show` prints."""

from __future__ import annotations

import json

import pytest

from quire.cli.commands.show import checkpoint_details

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
