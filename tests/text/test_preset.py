"""What a stored model brings beside its weights, read from files, and put before a conversation."""

import json

import pytest

from quire.text.errors import BrokenPreset
from quire.text.preset import FILES, read_preset, with_preset_messages
from quire.types.message import Message
from quire.types.preset import Preset

pytestmark = pytest.mark.pure

EXAMPLES = (Message("user", "1+1?"), Message("assistant", "2"))


def test_a_folder_without_a_preset_has_an_empty_one(tmp_path):
    (tmp_path / "system").write_text("not ours")
    assert read_preset(tmp_path) == Preset()


def test_every_file_is_read(tmp_path):
    said = {
        "template": "{{ .Prompt }}",
        "system": "Be brief.",
        "params": json.dumps({"top_k": 3, "stop": ["x"], "unheard_of": 1}),
        "messages": json.dumps([{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]),
        "license": "MIT",
    }
    for role, text in said.items():
        (tmp_path / FILES[role]).write_text(text)
    (tmp_path / "preset-2.license").write_text("Apache")
    preset = Preset("{{ .Prompt }}", "Be brief.", {"top_k": 3, "stop": ["x"]}, EXAMPLES, ("MIT", "Apache"))
    assert read_preset(tmp_path) == preset


@pytest.mark.parametrize(
    "role, text",
    [
        ("params", "{"),
        ("params", "[]"),
        ("messages", "{}"),
        ("messages", '[{"role": "tool"}]'),
        ("messages", "[1]"),
        ("adapter", "lora"),
    ],
)
def test_an_invalid_preset_file_is_an_error(tmp_path, role, text):
    (tmp_path / FILES[role]).write_text(text)
    with pytest.raises(BrokenPreset):
        read_preset(tmp_path)


@pytest.mark.parametrize(
    "talk, whole",
    [
        ([("user", "Hi")], [("system", "Be brief."), ("user", "1+1?"), ("assistant", "2"), ("user", "Hi")]),
        ([("system", ""), ("user", "Hi")], [("system", ""), ("user", "1+1?"), ("assistant", "2"), ("user", "Hi")]),
        ([], [("system", "Be brief."), ("user", "1+1?"), ("assistant", "2")]),
    ],
)
def test_a_conversation_begins_with_the_presets_messages_and_keeps_its_own_system_message(talk, whole):
    preset = Preset(system="Be brief.", messages=EXAMPLES)
    messages = with_preset_messages([Message(*each) for each in talk], preset)
    assert [(message.role, message.text) for message in messages] == whole
