"""Models made from others: what they inherit, what they replace, and what is refused."""

import hashlib
import json

import pytest

from quire.store.create import (
    AdapterNotSupported,
    base_of_blobs,
    create_from_base,
    create_model,
    modelfile_text,
    preset_of_model,
)
from quire.store.modelfile import parse_modelfile
from quire.store.store import Store
from quire.types.errors import InvalidRequest, QuireError
from quire.types.preset import Preset

pytestmark = pytest.mark.pure


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "home", sources=())


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "toy.gguf"
    path.write_bytes(b"GGUF and more")
    return path


def made(store, folder, name, text):
    return create_model(store, name, parse_modelfile(text), folder)


def test_a_model_is_made_from_a_file_beside_the_modelfile(store, weights):
    manifest = made(store, weights.parent, "mine", 'FROM ./toy.gguf\nSYSTEM Hi\nPARAMETER stop a\nPARAMETER stop "b"')
    assert (manifest.name, manifest.tag, manifest.format) == ("mine", "latest", "gguf")
    found = store.find("mine")
    assert found.read_bytes() == b"GGUF and more" and found.name == "toy.gguf"
    assert (found.parent / "preset.system").read_text() == "Hi"
    assert json.loads((found.parent / "preset.params.json").read_text()) == {"stop": ["a", "b"]}


def test_what_the_modelfile_leaves_out_stays_as_in_the_base(store, weights):
    base = "FROM ./toy.gguf\nSYSTEM Old\nTEMPLATE {{ .Prompt }}\nPARAMETER top_k 1\nPARAMETER seed 2\nLICENSE A\n"
    made(store, weights.parent, "base", base + "MESSAGE user x")
    made(store, weights.parent, "heir", "FROM base\nSYSTEM New\nPARAMETER top_k 5\nLICENSE B")
    preset = preset_of_model(store, store.show("heir"))
    assert (preset.system, preset.template, preset.licences) == ("New", "{{ .Prompt }}", ("A", "B"))
    assert preset.parameters == {"top_k": 5, "seed": 2} and [each.text for each in preset.messages] == ["x"]
    assert store.show("base").of_role("weights") == store.show("heir").of_role("weights")


def test_the_modelfile_that_is_shown_makes_the_same_model(store, weights):
    text = 'FROM ./toy.gguf\nSYSTEM """two\nlines"""\nPARAMETER temperature 0.5\nMESSAGE assistant "x"'
    text += "\nLICENSE a\nLICENSE b"
    first = made(store, weights.parent, "one", text)
    second = made(store, weights.parent, "two", modelfile_text(store, "one"))
    assert second.identity == first.identity
    assert "FROM one:latest\n" in modelfile_text(store, "one", shows_path=False).replace("# FROM", "")


def test_a_model_survives_the_removal_of_its_base(store, weights):
    made(store, weights.parent, "base", "FROM ./toy.gguf\nSYSTEM Old")
    made(store, weights.parent, "heir", "FROM base\nTEMPLATE {{ .Prompt }}")
    store.remove("base")
    assert store.find("heir").read_bytes() == b"GGUF and more"
    assert preset_of_model(store, store.show("heir")).system == "Old"


@pytest.mark.parametrize(
    "text, problem",
    [
        ("FROM ./toy.gguf\nADAPTER ./lora.gguf", "LoRA"),
        ("FROM ./toy.gguf\nTEMPLATE {{ if }}", "not a valid Go template: a value is missing in line 1"),
        ("FROM ./nothing.gguf", "no file or folder"),
        ("FROM ./wrong.gguf", "not a GGUF file"),
        ("FROM nobody", "no model nobody"),
        ("FROM no spaces", "not a valid model name"),
    ],
)
def test_a_model_that_cannot_be_created_is_refused_and_leaves_nothing(store, weights, text, problem):
    weights.with_name("wrong.gguf").write_bytes(b"PK zip")
    with pytest.raises(QuireError, match=problem) as caught:
        made(store, weights.parent, "mine", text)
    assert 400 <= caught.value.status < 500 and store.list() == []


def test_a_pulled_model_with_an_adapter_cannot_be_a_base(store, weights):
    made(store, weights.parent, "base", "FROM ./toy.gguf")
    manifest = store.show("base")
    path = store.layout.manifests / "base" / "latest.json"
    fields = json.loads(manifest.to_json())
    fields["files"].append({**fields["files"][0], "role": "adapter", "file_name": "lora.gguf"})
    path.write_text(json.dumps(fields))
    with pytest.raises(AdapterNotSupported):
        made(store, weights.parent, "heir", "FROM base")


def test_a_model_is_made_of_blobs(store):
    digest = hashlib.sha256(b"GGUF!").hexdigest()
    with pytest.raises(InvalidRequest, match="upload it first"):
        base_of_blobs(store, {"m.gguf": digest})
    store.add_blob([b"GG", b"UF!"], digest)
    create_from_base(store, "mine", base_of_blobs(store, {"up/../m.gguf": digest}), Preset(system="x"))
    assert store.find("mine").name == "m.gguf" and store.find("mine").read_bytes() == b"GGUF!"
    with pytest.raises(InvalidRequest, match="not a file of a GGUF"):
        base_of_blobs(store, {"m.exe": digest})
    (file,) = base_of_blobs(store, {"additional_chat_templates/rag.jinja": digest}).files
    assert (file.file_name, file.role) == ("chat_template.rag.jinja", "tokenizer")
