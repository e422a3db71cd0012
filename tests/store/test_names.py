"""The grammar of names: what a spelling means, that a name prints as it parses, and that none leaves the store."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.store.errors import BadName
from quire.store.manifest import manifest_path
from quire.store.names import ModelName, parse_name

pytestmark = pytest.mark.pure

WORDS = st.from_regex(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,20}[A-Za-z0-9_])?", fullmatch=True).filter(
    lambda w: ".." not in w
)


@pytest.mark.parametrize(
    "text, meant",
    [
        ("smollm2", ModelName("stored", "smollm2", "latest")),
        ("smollm2:135m", ModelName("stored", "smollm2", "135m")),
        ("SmolLM2:135M", ModelName("stored", "smollm2", "135M")),
        ("hf.co/Qwen/Qwen3-0.6B", ModelName("hub", "Qwen/Qwen3-0.6B", "latest")),
        ("hf.co/a/b:Q4_K_M", ModelName("hub", "a/b", "Q4_K_M")),
        ("https://huggingface.co/a/b", ModelName("hub", "a/b", "latest")),
        ("hf.co/a/model.gguf", ModelName("hub", "a/model.gguf", "latest")),
        ("./folder", ModelName("path", "./folder")),
        ("../a b", ModelName("path", "../a b")),
        (".", ModelName("path", ".")),
        ("~/models/x", ModelName("path", "~/models/x")),
        ("/a/b", ModelName("path", "/a/b")),
        ("model.gguf", ModelName("path", "model.gguf")),
        ("sub/MODEL.GGUF", ModelName("path", "sub/MODEL.GGUF")),
        ("x.safetensors", ModelName("path", "x.safetensors")),
        ("C:\\models\\x", ModelName("path", "C:\\models\\x")),
    ],
)
def test_a_spelling_has_one_meaning(text, meant):
    assert parse_name(text) == meant


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "empty"),
        (" smollm2", "spaces"),
        ("smol\nlm", "unprintable"),
        ("smollm2:", "the tag after the colon is empty"),
        (":x", "the name is empty"),
        ("a:b:c", "the tag after the colon may have"),
        ("why is", "may have letters"),
        ("a..b", "may have letters"),
        ("-x", "may have letters"),
        ("x" * 97, "97 characters, at most 96"),
        ("Qwen/Qwen3", "write hf.co/Qwen/Qwen3 for a repository of the model hub, or ./Qwen/Qwen3"),
        ("hf.co/Qwen", "organisation/repository"),
        ("hf.co/a/b/c", "organisation/repository"),
        ("hf.co/a/..", "the repository may have"),
        ("https://example.com/a/b", "only those of the model hub"),
    ],
)
def test_a_name_that_breaks_the_grammar_is_told_how(text, said):
    with pytest.raises(BadName) as caught:
        parse_name(text)
    assert said in caught.value.public and caught.value.status == 400


@given(name=WORDS, tag=WORDS)
def test_a_stored_name_prints_as_it_parses(name, tag):
    parsed = parse_name(f"{name}:{tag}")
    if parsed.kind == "stored":
        assert parse_name(str(parsed)) == parsed
        assert parsed.name == name.lower() and parsed.tag == tag


@given(org=WORDS, repo=WORDS, tag=WORDS)
def test_a_hub_name_prints_as_it_parses(org, repo, tag):
    parsed = parse_name(f"hf.co/{org}/{repo}:{tag}")
    assert parsed == ModelName("hub", f"{org}/{repo}", tag)
    assert parse_name(str(parsed)) == parsed


@given(st.text(max_size=60))
def test_no_text_becomes_a_manifest_outside_of_the_store(text):
    try:
        name = parse_name(text)
    except BadName:
        return
    if name.kind != "path":
        root = Path("/store/manifests")
        assert manifest_path(root, name).resolve().is_relative_to(root)
