"""A stream that is cut after any frame continues on a server with the same bytes, in every dialect."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from quire.serve.http.app import all_dialects
from quire.serve.relayed.frames import DATA, END, STREAM_TYPE, USAGE, Frame, FrameReader, decode_usage
from quire.serve.relayed.note import CLIENT, NOTE, RelayedClient, RelayNote, encode_note
from quire.text.model_text import ModelText
from quire.text.prompts import Prompt, encode_prompts
from quire.types.chat import ChatRequest
from quire.types.message import Message
from tests.serve.running import Running, running

pytestmark = pytest.mark.e2e

NEW = RelayNote(reply_id="0123abcd", created=1_700_000_000.0, in_frames=True)
SAY = [{"role": "user", "content": "Count from one to twenty in words."}]
CHAT: dict[str, Any] = {"model": "toy", "messages": SAY, "temperature": 0, "max_tokens": 12, "stream": True}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", CHAT | {"logprobs": True, "top_logprobs": 2, "n": 2}),
    "required call": ("/v1/chat/completions", CHAT | {"tools": [TOOL], "tool_choice": "required"}),
    "stop string": ("/v1/chat/completions", CHAT | {"stop": [" two", "Two", "2"], "max_tokens": 24}),
    "completion": ("/v1/completions", {"model": "toy", "prompt": ["One, two,", "A, b,"], "echo": True, "logprobs": 1}),
    "responses": ("/v1/responses", {"model": "toy", "input": "Count to ten.", "max_output_tokens": 12}),
    "anthropic": ("/v1/messages", {key: CHAT[key] for key in CHAT}),
    "ollama": ("/api/chat", {"model": "toy", "messages": SAY, "options": {"temperature": 0, "num_predict": 12}}),
}


@pytest.fixture(scope="module")
def server(model_file: Path) -> Iterator[Running]:
    with running(model_file, dialects=all_dialects()) as started:
        yield started


def body_of(name: str) -> tuple[str, bytes]:
    path, fields = REQUESTS[name]
    common = {"stream": True} | ({} if name == "ollama" else {"temperature": 0})
    if path == "/v1/completions":
        common["max_tokens"] = 8
    return path, json.dumps(common | fields).encode()


def relayed(server: Running, path: str, body: bytes, note: RelayNote, **headers: str) -> httpx.Response:
    return server.http.post(path, content=body + encode_note(note), headers={NOTE: str(len(body)), **headers})


def frames_of(server: Running, path: str, body: bytes, note: RelayNote) -> list[Frame]:
    response = relayed(server, path, body, note)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-quire-frames" and response.headers[STREAM_TYPE]
    return list(FrameReader().feed(response.content))


def joined(frames: list[Frame]) -> bytes:
    return b"".join(frame.payload for frame in frames)


class Parts:
    """What a stream says: the texts of each choice, joined, and all ids. How tokens are grouped depends on timing."""

    def __init__(self, data: bytes) -> None:
        self.texts: dict[int, str] = {}
        self.ids: set[str] = set()
        for line in data.splitlines():
            line = line.removeprefix(b"data: ")
            if line.startswith(b"{"):
                self._add(json.loads(line), 0)

    def _add(self, value: Any, choice: int) -> None:
        if isinstance(value, list):
            for each in value:
                self._add(each, choice)
        elif isinstance(value, dict):
            choice = value["index"] if "finish_reason" in value else choice
            for key, inner in value.items():
                if isinstance(inner, str) and key in ("content", "text", "delta", "arguments", "partial_json", "name"):
                    self.texts[choice] = self.texts.get(choice, "") + inner
                elif isinstance(inner, str) and "id" in key:
                    self.ids.add(inner)
                else:
                    self._add(inner, choice)


@pytest.mark.parametrize("name", REQUESTS)
def test_a_stream_that_is_cut_after_a_frame_continues_with_the_same_text_and_ids(server, name):
    path, body = body_of(name)
    whole = frames_of(server, path, body, NEW)
    assert whole[-1].kind == END and all(frame.kind == DATA for frame in whole[:-1])
    usage = decode_usage(whole[-1].journal)
    for cut in sorted({0, min(1, len(whole) - 1), len(whole) // 2, len(whole) - 1}):
        begun = whole[:cut]
        note = replace(NEW, is_begun=cut > 0, journal=[frame.journal for frame in begun])
        rest = frames_of(server, path, body, note)
        both, undisturbed = Parts(joined(begun + rest)), Parts(joined(whole))
        assert both.texts == undisturbed.texts and both.ids == undisturbed.ids
        assert decode_usage(rest[-1].journal)[::2] == usage[::2]


def test_an_answer_that_is_no_stream_reports_its_usage_in_a_header(server):
    body = json.dumps(CHAT | {"stream": False}).encode()
    response = relayed(server, "/v1/chat/completions", body, NEW)
    usage = response.json()["usage"]
    assert response.headers[USAGE].split(",")[::2] == [str(usage["prompt_tokens"]), str(usage["completion_tokens"])]
    assert response.json()["id"].endswith(NEW.reply_id)


def test_the_text_of_a_model_makes_the_same_tokens_elsewhere(server, tmp_path):
    packed = server.http.get("/v1/text?model=toy")
    text = ModelText.from_bundle(packed.content, tmp_path)
    assert text.digest == packed.headers["x-quire-digest"]
    tokens = encode_prompts(ChatRequest("toy", (Message("user", SAY[0]["content"]),)), text)[0].tokens
    shown = server.http.post("/tokenize", json={"model": "toy", "messages": SAY}).json()["tokens"]
    assert list(tokens) == shown


def test_prompts_of_a_note_are_used_if_they_were_made_with_the_same_text(server):
    body = json.dumps(CHAT | {"stream": False}).encode()
    digest = server.http.get("/v1/text?model=toy").headers["x-quire-digest"]
    prompts = [Prompt((1, 2, 3), None)]
    used = relayed(server, "/v1/chat/completions", body, replace(NEW, prompts=prompts, text_digest=digest))
    assert used.json()["usage"]["prompt_tokens"] == 3
    again = relayed(server, "/v1/chat/completions", body, replace(NEW, prompts=prompts, text_digest="other"))
    assert again.json()["usage"]["prompt_tokens"] > 3


def test_a_note_that_cannot_be_read_is_refused(server):
    for header, content in (("99999", b"{}"), ("x", b"{}"), ("2", b"{}garbage")):
        response = server.http.post("/v1/chat/completions", content=content, headers={NOTE: header})
        assert response.status_code == 400 and "note" in response.text
    bad = server.http.post("/v1/chat/completions", content=b"{}", headers={CLIENT: "{"})
    assert bad.status_code == 400 and CLIENT in bad.text


def test_the_client_of_a_gateway_is_named_in_the_record(server):
    body = json.dumps(CHAT | {"stream": False, "max_tokens": 1}).encode()
    relayed(server, "/v1/chat/completions", body, NEW, **{CLIENT: RelayedClient("zoë", "s").header()})
    assert server.records[-1].key == "zoë"


def test_only_an_admin_key_may_relay(model_file, tmp_path):
    from quire.serve.access.keys import hash_of

    keys = tmp_path / "keys.toml"
    keys.write_text(f'[[key]]\nname = "a"\nsha256 = "{hash_of("secret")}"\n')
    with running(model_file, dialects=all_dialects(), waits=False, api_keys=str(keys)) as started:
        headers = {"authorization": "Bearer secret", CLIENT: "{}"}
        refused = started.http.post("/v1/chat/completions", json=CHAT, headers=headers)
        assert refused.status_code == 403 and "admin" in refused.text
