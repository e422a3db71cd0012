"""`quire architectures`: list the models that can be run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import typer

from quire.cli.options import CommandSettings, command, option
from quire.cli.terminal.table import print_table
from quire.models.registry import Architecture, all_architectures

COLUMNS = {
    "name": "NAME",
    "gguf": "IN GGUF",
    "containers": "CONTAINERS",
    "attention": "ATTENTION",
    "experts": "EXPERTS",
    "checked_with": "CHECKED WITH",
}
ATTENTION_KEYS = {  # a key of config.json, and the kind of attention that an architecture has if it reads the key
    "sliding_window": "sliding",
    "num_kv_shared_layers": "shared",
    "alibi": "ALiBi",
    "feed_forward_type": "ALiBi",  # a key of Jina v2 alone, which has no other positions
    "attn_logit_softcapping": "softcap",
    "attention_chunk_size": "chunked",
    "kv_lora_rank": "latent",
}
# the name of a weight, and what layers with it have beside or instead of attention
STATE_WORDS = {
    "conv.kernel": "convolution",
    "delta.rate": "delta rule",
    "kda.decay_a": "delta rule",
    "ssm.rate": "scan",
}
EXPERT_WORDS = {"experts.up": "routed", "shared.up": "shared"}  # the name of a weight, and the kind of its experts


@dataclass(frozen=True, slots=True)
class ArchitecturesOptions:
    """Options of `quire architectures`."""

    json: bool = option(False, "Print one JSON object.", "--json")


@command(ArchitecturesOptions)
def architectures(options: ArchitecturesOptions, settings: CommandSettings) -> None:
    """List the architectures of models that can be run."""
    found = list(_descriptions())
    if options.json:
        typer.echo(json.dumps({"architectures": found}, indent=2))
    else:
        print_table([tuple(COLUMNS.values()), *([_cell(each[name]) for name in COLUMNS] for each in found)])


def _descriptions() -> Iterator[dict[str, Any]]:
    for arch in all_architectures():
        yield {
            "name": arch.name,
            "gguf": arch.gguf,
            "containers": ["safetensors", "gguf"] if arch.gguf else ["safetensors"],
            "attention": attention_kinds(arch),
            "experts": expert_kinds(arch),
            "checked_with": checked_with(arch.alias_of or arch.name),
        }


def checked_with(name: str) -> str:
    """What the tests compare an architecture with. The code of Jina v2 is in its repositories alone."""
    return "its formulas, in torch" if name.startswith("JinaBert") else f"transformers.{name}"


def attention_kinds(arch: Architecture) -> list[str]:
    """Return the kinds of attention, and of layers with a state, that models may have, by keys and weights."""
    words, read = arch.names.entries, arch.keys.config.read
    has_attention = any(word.startswith("attn.") for word in words.keys() - {"attn.norm"})
    kinds = ["full", *(kind for key, kind in ATTENTION_KEYS.items() if key in read)] if has_attention else []
    kinds = ["both sides" if kind == "full" else kind for kind in kinds] if "head" not in words else kinds
    kinds += ["sinks"] if "attn.sinks" in words else []
    kinds += ["cross"] if arch.source is not None else []
    return kinds + [kind for word, kind in STATE_WORDS.items() if word in words]


def expert_kinds(arch: Architecture) -> list[str]:
    """Return the kinds of experts that models of an architecture may have: shared ones are used by all tokens."""
    return [kind for word, kind in EXPERT_WORDS.items() if word in arch.names.entries]


def _cell(value: Any) -> str:
    return (", ".join(value) if isinstance(value, list) else value) or "-"
