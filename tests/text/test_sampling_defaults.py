"""What a model's files say about sampling: generation_config.json, the GGUF header, the Modelfile."""

import json
from pathlib import Path

import pytest

from quire.config import load
from quire.text.preset import with_model_settings
from quire.text.sampling_defaults import GGUF, MODELFILE, read_sampling_defaults
from quire.types.preset import Preset

pytestmark = pytest.mark.pure

HEADER = {
    "general.sampling.temp": 0.600000023841858,
    "general.sampling.penalty_repeat": 1.1,
    "general.sampling.top_k": 20,
}
MODEL = Preset(parameters={"temperature": 0.1, "num_predict": 50, "num_ctx": 2048})


def read(folder: Path, said: object = None, header: dict | None = None, preset: Preset | None = None, **more: bool):
    if said is not None:
        (folder / "generation_config.json").write_text(said if isinstance(said, str) else json.dumps(said))
    return read_sampling_defaults(folder, header or {}, preset or Preset(), **more)


def test_generation_config_is_read_by_its_names(tmp_path):
    said = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0, "repetition_penalty": 1.05, "typical_p": 0.9}
    said |= {"max_new_tokens": 2048, "eos_token_id": 2, "do_sample": True, "num_beams": 4, "transformers_version": "4"}
    wanted = {
        "temperature": 0.6,
        "top_p": 0.95,
        "top_k": 20,
        "min_p": 0.0,
        "repetition_penalty": 1.05,
        "typical_p": 0.9,
    }
    assert read(tmp_path, said).values == wanted | {"max_tokens": 2048}


def test_a_model_that_is_not_to_be_sampled_is_greedy(tmp_path):
    assert read(tmp_path, {"do_sample": False, "temperature": 0.7}).values == {"temperature": 0.0}


def test_the_gguf_header_wins_over_the_file_and_the_modelfile_over_both(tmp_path):
    defaults = read(tmp_path, {"temperature": 0.9, "top_p": 0.8}, HEADER, MODEL)
    values = {"temperature": 0.1, "top_p": 0.8, "repetition_penalty": 1.1, "top_k": 20, "max_tokens": 50}
    assert defaults.values == values
    assert defaults.sources["top_p"] == "generation_config.json"
    assert (defaults.sources["top_k"], defaults.sources["temperature"]) == (GGUF, MODELFILE)
    assert read(tmp_path, None, HEADER).values["temperature"] == 0.6  # not 0.600000023841858
    text = defaults.describe()
    assert "temperature 0.1" in text and "top_p 0.8 (generation_config.json)" in text and "(Modelfile)" in text


def test_without_the_models_own_defaults_only_the_modelfile_applies(tmp_path):
    defaults = read(tmp_path, {"temperature": 0.9, "top_p": 0.8}, HEADER, MODEL, of_model=False)
    assert defaults.values == {"temperature": 0.1, "max_tokens": 50}


@pytest.mark.parametrize("said", ["", "[]", "no", "[" * 9999, {"temperature": "hot"}, {"temperature": -1, "top_p": 7}])
def test_an_invalid_file_has_no_defaults(tmp_path, said):
    assert read(tmp_path, said).values == {}


def test_values_beyond_their_range_are_brought_into_it_or_left_out(tmp_path):
    said = {"top_k": -1, "max_new_tokens": 10**12, "temperature": True, "top_p": float("nan"), "min_p": None}
    assert read(tmp_path, said).values == {"top_k": 0, "max_tokens": 2**31 - 1}


@pytest.mark.parametrize(
    "flags, environ, num_ctx, context",
    [
        ({}, {}, 2048, 2048),
        ({}, {}, 32768, 32768),
        ({}, {}, 0, 8192),
        ({"max_context": 4096}, {}, 2048, 4096),
        ({}, {"QUIRE_MAX_CONTEXT": "4096"}, 32768, 4096),
    ],
)
def test_num_ctx_is_the_models_context_unless_one_is_set(flags, environ, num_ctx, context):
    config = with_model_settings(load(flags, environ), Preset(parameters={"num_ctx": num_ctx}))
    assert config.scheduler.max_context == context


def test_pooling_of_a_modelfile_is_that_model_s_whatever_the_server_s_setting_is():
    preset = Preset(parameters={"pooling": "last"})
    assert with_model_settings(load({"pooling": "mean"}, {}), preset).embedding.pooling == "last"
    assert with_model_settings(load({"pooling": "mean"}, {}), Preset()).embedding.pooling == "mean"
