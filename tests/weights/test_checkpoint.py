"""Opening a checkpoint: a file of either container, the parts of a split one, a folder of shards."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest

from quire.types.errors import QuireError
from quire.weights.checkpoint import open_checkpoint
from quire.weights.errors import CheckpointError, CheckpointNotFound, CorruptCheckpoint, UnsupportedCheckpoint
from tests.weights.file_bytes import entry, gguf_bytes, safetensors_bytes

pytestmark = pytest.mark.pure

CONFIG = {"architectures": ["LlamaForCausalLM"], "hidden_size": 8}
INDEX = "model.safetensors.index.json"


def one_tensor(name: str, value: float) -> bytes:
    return safetensors_bytes({name: entry("F32", [1], 0, 4)}, struct.pack("<f", value))


def write_folder(folder: Path, files: dict[str, bytes], weight_map: dict[str, str] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    for name, content in files.items():
        (folder / name).write_bytes(content)
    if weight_map is not None:
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def refusal(path: Path | str) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    assert isinstance(caught.value, QuireError)
    return caught.value


def gguf_part(number: int, count: int) -> bytes:
    metadata = {"split.no": (2, number), "split.count": (2, count)}
    if number == 0:
        metadata["general.architecture"] = (8, "llama")
    return gguf_bytes(metadata, [(f"t{number}", (1,), 0, struct.pack("<f", number))])


def write_parts(folder: Path, numbers: tuple[int, ...], count: int = 3) -> list[Path]:
    paths = [folder / f"big-{number + 1:05}-of-{count:05}.gguf" for number in numbers]
    for path, number in zip(paths, numbers, strict=True):
        path.write_bytes(gguf_part(number, count))
    return paths


def test_opens_a_folder_with_one_file_and_its_config(tmp_path: Path):
    folder = write_folder(tmp_path, {"model.safetensors": one_tensor("w", 1.5)})
    for path in (folder, str(folder), folder / "model.safetensors"):
        checkpoint = open_checkpoint(path)
        assert (checkpoint.container, checkpoint.metadata, checkpoint.path) == ("safetensors", CONFIG, Path(path))
        assert checkpoint.tensors["w"].dequantize().tolist() == [1.5]


def test_opens_the_shards_that_the_index_names_in_its_order(tmp_path: Path):
    files = {"a.safetensors": one_tensor("x", 1), "b.safetensors": one_tensor("y", 2), "c.safetensors": b"not read"}
    checkpoint = open_checkpoint(write_folder(tmp_path, files, {"y": "b.safetensors", "x": "a.safetensors"}))
    assert {name: t.dequantize().item() for name, t in checkpoint.tensors.items()} == {"y": 2, "x": 1}
    assert list(checkpoint.tensors) == ["y", "x"]


def test_opens_what_transformers_saves_in_shards(tmp_path: Path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=100
    )
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert (tmp_path / INDEX).exists()
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.metadata["architectures"] == ["LlamaForCausalLM"]
    state = model.state_dict()
    assert checkpoint.tensors.keys() == state.keys()
    for name, tensor in checkpoint.tensors.items():
        assert tensor.format == "bf16"
        np.testing.assert_array_equal(tensor.dequantize(), state[name].float().numpy())


@pytest.mark.parametrize("part", [0, 2])
def test_any_part_of_a_split_gguf_opens_all_of_them(tmp_path: Path, part: int):
    checkpoint = open_checkpoint(write_parts(tmp_path, (0, 1, 2))[part])
    assert {name: t.dequantize().item() for name, t in checkpoint.tensors.items()} == {"t0": 0, "t1": 1, "t2": 2}
    assert checkpoint.metadata["general.architecture"] == "llama"


def test_a_missing_part_is_named(tmp_path: Path):
    error = refusal(write_parts(tmp_path, (0, 2))[0])
    assert isinstance(error, CheckpointNotFound) and "big-00002-of-00003.gguf" in error.public
    renamed = tmp_path / "renamed.gguf"
    renamed.write_bytes(gguf_part(0, 3))
    assert "a part of a model in 3 files" in refusal(renamed).public


def test_a_tensor_in_two_parts_or_an_odd_count_is_refused(tmp_path: Path):
    first, second = write_parts(tmp_path, (0, 1), count=2)
    second.write_bytes(gguf_part(0, 2))
    assert "'t0' is in another part" in refusal(first).public
    for value in [(8, "2"), (6, 2.0), (9, (4, (2,)))]:
        first.write_bytes(gguf_bytes({"split.count": value}))
        assert "'split.count'" in refusal(first).public


def test_a_file_without_a_known_ending_is_recognised_by_its_content(tmp_path: Path):
    (tmp_path / "sha256-1").write_bytes(gguf_bytes({"general.name": (8, "x")}))
    (tmp_path / "sha256-2").write_bytes(one_tensor("w", 1))
    assert open_checkpoint(tmp_path / "sha256-1").container == "gguf"
    assert open_checkpoint(tmp_path / "sha256-2").container == "safetensors"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("model.gguf", b"<html>404</html>", "letters GGUF"),
        ("model.gguf", b"", "empty"),
        ("model.gguf", b"version https://git-lfs.github.com/spec/v1\noid", "Git LFS pointer"),
        ("model.safetensors", b"version https://git-lfs.github.com/spec/v1\noid", "Git LFS pointer"),
        ("model.safetensors", b"\x80", "ends inside its header"),
        ("pytorch_model.bin", b"PK\3\4 a pickle in an archive", "neither GGUF nor safetensors"),
    ],
)
def test_a_file_that_is_not_a_model_is_refused_with_the_likely_reason(
    tmp_path: Path, name: str, content: bytes, words: str
):
    (tmp_path / name).write_bytes(content)
    error = refusal(tmp_path / name)
    assert words in error.public and name in error.public and str(tmp_path) not in error.public
    assert error.path == tmp_path / name


def test_missing_and_unreadable_files_are_reported(tmp_path: Path):
    assert isinstance(refusal(tmp_path / "absent.gguf"), CheckpointNotFound)
    assert refusal(tmp_path / "absent.gguf").status == 404
    (tmp_path / "file").write_bytes(b"x")
    assert isinstance(refusal(tmp_path / "file" / "inside.gguf"), CheckpointNotFound)
    assert "cannot be read" in refusal("a\0b").public
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in refusal(tmp_path / "pipe").public
    assert isinstance(refusal("/dev/null"), CheckpointError)


def test_an_incomplete_folder_says_what_is_missing(tmp_path: Path):
    assert "no config.json" in refusal(tmp_path).public
    (tmp_path / "m-q4.gguf").write_bytes(gguf_bytes({}))
    assert "m-q4.gguf" in refusal(tmp_path).public
    folder = write_folder(tmp_path / "model", {})
    assert "neither model.safetensors nor" in refusal(folder).public
    (folder / "config.json").write_text("[]")
    assert isinstance(refusal(folder), CorruptCheckpoint)
    (folder / "config.json").write_bytes(b"\xff")
    assert "config.json" in refusal(folder).public


@pytest.mark.parametrize(
    ("weight_map", "words"),
    [
        ({"x": "absent.safetensors"}, "absent.safetensors"),
        ({"gone": "a.safetensors"}, "tensor 'gone'"),
        ({"x": "../a.safetensors"}, "not in this folder"),
        ({"x": "/etc/passwd"}, "not in this folder"),
        ({"x": ""}, "not in this folder"),
        ({"x": ".."}, "missing"),
        ({"x": "a\0b"}, "not in this folder"),
        ({"x": 5}, "weight_map"),
        ([], "weight_map"),
    ],
)
def test_an_invalid_index_is_refused(tmp_path: Path, weight_map, words: str):
    error = refusal(write_folder(tmp_path, {"a.safetensors": one_tensor("x", 1)}, weight_map))
    assert words in error.public


def test_the_digest_is_stable_and_does_not_depend_on_the_folder(tmp_path: Path):
    for folder in (tmp_path / "a", tmp_path / "b"):
        write_folder(folder, {"model.safetensors": one_tensor("w", 1.5)})
        os.utime(folder / "model.safetensors", ns=(10**18, 10**18))
    digest = open_checkpoint(tmp_path / "a").digest()
    assert len(digest) == 64
    assert digest == open_checkpoint(tmp_path / "a").digest() == open_checkpoint(tmp_path / "b").digest()


def test_the_digest_changes_with_weights_header_time_and_config(tmp_path: Path):
    file, digests = tmp_path / "model.safetensors", set()

    def add_digest(content: bytes, ns: int) -> None:
        write_folder(tmp_path, {file.name: content})
        os.utime(file, ns=(ns, ns))
        digests.add(open_checkpoint(tmp_path).digest())

    add_digest(one_tensor("w", 1.5), 10**18)
    add_digest(one_tensor("w", 2.5), 10**18)
    add_digest(one_tensor("v", 1.5), 10**18)
    add_digest(one_tensor("w", 1.5), 10**18 + 1)
    add_digest(one_tensor("w", 1.5), 10**18)
    assert len(digests) == 4
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"hidden_size": 9}))
    assert open_checkpoint(tmp_path).digest() not in digests


def test_an_error_has_a_code_and_a_status(tmp_path: Path):
    (tmp_path / "x.bin").write_bytes(b"nothing that we know")
    error = refusal(tmp_path / "x.bin")
    assert (type(error), error.code, error.status) == (UnsupportedCheckpoint, "checkpoint_unsupported", 501)
