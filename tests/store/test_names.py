"""The grammar of names: what a text means, that a name prints as it parses, and that none leaves the store."""

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
        ("someone/Toy:v2", ModelName("registry", "someone/Toy", "v2")),
        ("ollama.com/library/llama3.2:1b", ModelName("registry", "library/llama3.2", "1b", "ollama.com")),
        ("registry.ollama.ai/library/llama3.2:1b", ModelName("registry", "library/llama3.2", "1b", "ollama.com")),
        ("https://ollama.com/library/llama3.2", ModelName("registry", "library/llama3.2", "latest", "ollama.com")),
        ("localhost:5000/me/toy", ModelName("registry", "me/toy", "latest", "localhost:5000")),
        ("localhost/toy:1", ModelName("registry", "library/toy", "1", "localhost")),
        ("Registry.Lan:5000/a/b", ModelName("registry", "a/b", "latest", "registry.lan:5000")),
        ("http://registry.lan/a/b", ModelName("registry", "a/b", "latest", "http://registry.lan")),
        ("http://localhost:5000/a/b", ModelName("registry", "a/b", "latest", "localhost:5000")),
        ("https://localhost:5000/a/b", ModelName("registry", "a/b", "latest", "https://localhost:5000")),
        ("https://server/a/b", ModelName("registry", "a/b", "latest", "https://server")),
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
    assert parse_name(text) == meant == parse_name(str(meant))


@pytest.mark.parametrize(
    "text, expected",
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
        ("x" * 97, "97 characters; at most 96"),
        ("a/b/c", "write ./a/b/c for a file or folder"),
        ("host.lan/a/b/c", "host/space/name"),
        ("host.lan:port/a/b", "the port after the host is not a number"),
        ("host.lan/a/-b", "the name may have"),
        ("a/b:", "the tag after the colon is empty"),
        ("https://", "needs a host and a name"),
        ("https://example.com/a/b.gguf", "the URL of a file: download it"),
        ("hf.co/Qwen", "organisation/repository"),
        ("hf.co/a/b/c", "organisation/repository"),
        ("hf.co/a/..", "the repository may have"),
    ],
)
def test_an_invalid_name_is_refused_with_the_reason(text, expected):
    with pytest.raises(BadName) as caught:
        parse_name(text)
    assert expected in caught.value.public and caught.value.status == 400


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


@given(scheme=st.sampled_from(["", "http://", "https://"]), host=WORDS, space=WORDS, name=WORDS, tag=WORDS)
def test_a_registry_name_prints_as_it_parses_and_has_its_own_manifest(scheme, host, space, name, tag):
    full, short = parse_name(f"{scheme}{host}:5000/{space}/{name}:{tag}"), parse_name(f"x{space[1:]}:{tag}")
    if full.kind == "registry":
        assert parse_name(str(full)) == full and full.host.endswith(f"{host.lower()}:5000")
    if full.kind != "path" and short.kind != "path":
        assert manifest_path(Path("/m"), full) != manifest_path(Path("/m"), short)


@pytest.mark.parametrize(
    "text, meant",
    [
        ("toy:1", ModelName("registry", "library/toy", "1", "registry.lan:5000")),
        ("me/toy", ModelName("registry", "me/toy", "latest", "registry.lan:5000")),
        ("ollama.com/me/toy", ModelName("registry", "me/toy", "latest", "ollama.com")),
        ("hf.co/me/toy", ModelName("hub", "me/toy", "latest")),
    ],
)
def test_a_name_without_a_host_belongs_to_the_configured_registry(text, meant):
    assert parse_name(text).at("registry.lan:5000") == meant


@pytest.mark.parametrize(
    "text, address",
    [
        ("ollama.com/a/b", "https://ollama.com"),
        ("localhost:5000/a/b", "http://localhost:5000"),
        ("127.0.0.1:5000/a/b", "http://127.0.0.1:5000"),
        ("registry.lan:5000/a/b", "https://registry.lan:5000"),
        ("http://registry.lan:5000/a/b", "http://registry.lan:5000"),
        ("https://localhost:5000/a/b", "https://localhost:5000"),
    ],
)
def test_plain_http_is_used_only_on_this_machine_or_if_written(text, address):
    assert parse_name(text).address == address


@given(st.text(max_size=60))
def test_no_name_leads_to_a_manifest_outside_the_store(text):
    try:
        name = parse_name(text)
    except BadName:
        return
    if name.kind != "path":
        root = Path("/store/manifests")
        assert manifest_path(root, name).resolve().is_relative_to(root)
