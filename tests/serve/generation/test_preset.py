"""A model's own parameters hold where a request says nothing of them, in every dialect."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from quire.serve.dialects.anthropic import dialect as anthropic
from quire.serve.dialects.contract import GenerateEndpoint, RequestLimits
from quire.serve.dialects.ollama import dialect as ollama
from quire.serve.dialects.openai import dialect as openai
from quire.serve.dialects.responses import dialect as responses
from quire.text.prompts import fill_defaults
from quire.text.sampling_defaults import read_sampling_defaults
from quire.types.chat import Ask
from quire.types.defaults import SamplingDefaults
from quire.types.preset import Preset

pytestmark = pytest.mark.pure

PRESET = Preset(parameters={"temperature": 0.25, "top_k": 7, "num_predict": 33, "stop": ["END"], "num_ctx": 4096})
DEFAULTS = read_sampling_defaults(
    Path("/nowhere"), {"general.sampling.top_k": 3, "general.sampling.min_p": 0.5}, PRESET
)
TALK = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
SILENT = {
    "/v1/chat/completions": (openai, TALK),
    "/v1/completions": (openai, {"model": "m", "prompt": "Hi"}),
    "/v1/responses": (responses, {"model": "m", "input": "Hi"}),
    "/v1/messages": (anthropic, TALK | {"max_tokens": 5}),
    "/api/chat": (ollama, TALK),
    "/api/generate": (ollama, {"model": "m", "prompt": "Hi"}),
}
SAID = {
    "/v1/chat/completions": {"temperature": 1, "top_k": 0, "max_completion_tokens": 4, "stop": "x"},
    "/v1/completions": {"temperature": 1, "top_k": 0, "max_tokens": 4, "stop": ["x"]},
    "/v1/responses": {"temperature": 1, "top_k": 0, "max_output_tokens": 4, "stop": ["x"]},
    "/v1/messages": {"temperature": 1, "top_k": 0, "max_tokens": 4, "stop_sequences": ["x"]},
    "/api/chat": {"options": {"temperature": 1, "top_k": 0, "num_predict": 4, "stop": ["x"]}},
    "/api/generate": {"options": {"temperature": 1, "top_k": 0, "num_predict": 4, "stop": ["x"]}},
}


def asked(path: str, more: dict) -> Ask:
    module, body = SILENT[path]
    (endpoint,) = (
        each for each in module.DIALECT.endpoints if isinstance(each, GenerateEndpoint) and each.path == path
    )
    return endpoint.decode(json.dumps(body | more).encode(), RequestLimits()).ask


@pytest.mark.parametrize("path", SILENT)
def test_parameters_that_a_request_does_not_give_are_the_models(path):
    sampling = fill_defaults(asked(path, {}), DEFAULTS).sampling
    assert (sampling.temperature, sampling.top_k, sampling.stop, sampling.min_p) == (0.25, 7, ("END",), 0.5)
    assert sampling.max_tokens == (5 if path == "/v1/messages" else 33)


@pytest.mark.parametrize("path", SILENT)
def test_parameters_of_a_request_win(path):
    ask = asked(path, SAID[path])
    assert replace(fill_defaults(ask, DEFAULTS).sampling, min_p=0.0) == ask.sampling
    assert (ask.sampling.temperature, ask.sampling.max_tokens, ask.sampling.stop) == (1.0, 4, ("x",))


@pytest.mark.parametrize("path", SILENT)
def test_a_model_without_parameters_changes_nothing(path):
    ask = asked(path, {})
    assert fill_defaults(ask, SamplingDefaults()) is ask
