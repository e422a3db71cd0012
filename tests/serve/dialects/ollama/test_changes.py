"""What Ollama's clients ask to be changed, in our words; and what is wrong with what they ask."""

import json

import pytest

from quire.serve.dialects.ollama.changes import decode_copy, decode_create, decode_delete, decode_pull, decode_push
from quire.types.errors import InvalidRequest
from quire.types.library import Copy, Create, Delete, Pull, Push, Step
from quire.types.message import Message
from quire.types.preset import Preset

pytestmark = pytest.mark.pure

DIGEST = "ab" * 32


def body(**fields):
    return json.dumps(fields).encode()


def test_a_model_to_be_made():
    asked = decode_create(
        body(
            model="mine",
            **{"from": "smollm2:135m"},
            system="Be brief.",
            template="{{ .Prompt }}",
            parameters={"stop": "x", "top_k": 4},
            messages=[{"role": "user", "content": "Hi"}],
            license=["MIT", ""],
        )
    )
    preset = Preset("{{ .Prompt }}", "Be brief.", {"stop": ["x"], "top_k": 4}, (Message("user", "Hi"),), ("MIT",))
    assert asked.change == Create("mine", "smollm2:135m", {}, preset)
    assert asked.streams and asked.done == b'{"status":"success"}\n' and asked.content_type == "application/x-ndjson"


def test_a_model_of_files():
    asked = decode_create(body(name="mine", files={"a.gguf": f"sha256:{DIGEST}"}, license="MIT", stream=False))
    assert asked.change == Create("mine", "", {"a.gguf": DIGEST}, Preset(licences=("MIT",)))
    assert not asked.streams and asked.done == b'{"status":"success"}'


@pytest.mark.parametrize(
    "fields, field",
    [
        ({"from": "a"}, "model"),
        ({"model": "x"}, "from"),
        ({"model": "x", "from": 1}, "from"),
        ({"model": "x", "from": "a", "system": 1}, "system"),
        ({"model": "x", "from": "a", "license": 1}, "license"),
        ({"model": "x", "from": "a", "parameters": {"warmth": 1}}, "parameters.warmth"),
        ({"model": "x", "from": "a", "parameters": {"top_k": "many"}}, "parameters.top_k"),
        ({"model": "x", "from": "a", "parameters": []}, "parameters"),
        ({"model": "x", "from": "a", "messages": [{"role": "tool", "content": ""}]}, "messages.0.role"),
        ({"model": "x", "from": "a", "messages": [{"content": ""}]}, "messages.0.role"),
        ({"model": "x", "files": {"a.gguf": "md5:1"}}, "files.a.gguf"),
        ({"model": "x", "from": "a", "quantize": "q4_0"}, "quantize"),
        ({"model": "x", "modelfile": "FROM a"}, "modelfile"),
        ({"model": "x", "from": "a", "renderer": "qwen3"}, "renderer"),
    ],
)
def test_what_is_wrong_is_said_with_its_field(fields, field):
    with pytest.raises(InvalidRequest) as caught:
        decode_create(json.dumps(fields).encode())
    assert caught.value.field == field and caught.value.status == 400


def test_the_other_changes():
    assert decode_copy(body(source="a", destination="b")).change == Copy("a", "b")
    assert decode_delete(body(model="a")).change == Delete("a")
    assert decode_pull(body(name="a")).change == Pull("a")
    assert decode_push(body(model="a", insecure=True)).change == Push("a")
    for decode in (decode_copy, decode_delete, decode_pull, decode_push):
        with pytest.raises(InvalidRequest):
            decode(b"{}")


def test_steps_are_lines_as_ollama_has_them():
    asked = decode_pull(body(model="a"))
    assert asked.step(Step("pulling manifest")) == b'{"status":"pulling manifest"}\n'
    said = json.loads(asked.step(Step("m.gguf", 5, 10, DIGEST)))
    assert said == {"status": "m.gguf", "digest": f"sha256:{DIGEST}", "total": 10, "completed": 5}
