"""Every setting, declared once. Flags, environment variables, docs and `/props` are generated from these fields.

This is the only module that reads the environment. `load` is pure: same inputs, same result.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from quire.types.embedding_settings import EmbeddingConfig
from quire.types.expert_memory import expert_bytes_on_host
from quire.types.formats import ACTIVATION_FORMATS, AUTO, CONVERSIONS, KV_FORMATS, listed
from quire.types.gateway_settings import GatewayConfig, JoinConfig
from quire.types.sampling_values import OFF
from quire.types.setting import BadSetting, Setting, setting
from quire.types.transfer import TransferConfig, check_transfers


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The KV cache."""

    block_tokens: int = setting(16, "Tokens in one KV block.", choices=(1, 2, 4, 8, 16, 32, 64))
    kv_dtype: str = setting(
        AUTO,
        f"How the KV cache stores numbers: {listed({each.name: each.help for each in KV_FORMATS.values()})}. auto: f16 "
        "on a CPU (bf16 where it has AVX-512 BF16), bf16 on a GPU.",
        choices=(AUTO, *KV_FORMATS),
    )
    num_blocks: int | None = setting(
        None,
        "KV blocks of the layers that keep all tokens. None: as many as fit after the model is loaded. Layers that "
        "read only the last tokens have blocks of their own, as many as are needed beside these.",
        low=1,
    )
    most_blocks: int | None = setting(
        None,
        "Most KV blocks that a running engine can get when memory moves between models. "
        "None: num_blocks if that is set, else up to four times the blocks that it starts with.",
        low=1,
    )
    memory_share: float = setting(0.9, "Share of the device's memory that the engine may use.", low=0.01, high=1)
    num_states: int | None = setting(
        None,
        "States of a model with recurrent layers: one for each running request, the others are checkpoints, from which "
        "requests with a known prefix resume. None: by memory.",
        low=2,
    )
    checkpoint_every: int = setting(
        4096,
        "Tokens of a long prompt after which recurrent layers store another checkpoint, beside those at the ends of "
        "prompts and answers and where two prompts part. 0: never.",
        low=0,
    )
    session_ttl: float = setting(1800.0, "Seconds that an idle session keeps its last context in the cache.", low=0)
    check_states: bool = setting(
        False,
        "For debugging models with recurrent layers: fail a request that would continue from another text's state.",
    )


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Steps and the queue."""

    max_rows: int = setting(256, "Most requests that run at once.", low=1, high=2**16)
    max_step_tokens: int = setting(2048, "Most tokens computed in one step. At least max_rows.", low=1, high=2**20)
    max_scored_tokens: int = setting(
        128,
        "Tokens of a step that yield logits beside each row's newest token: for prompt logprobs and drafts.",
        low=1,
    )
    max_context: int = setting(
        8192, "Most tokens of prompt and answer together. If not set, a Modelfile's num_ctx applies.", low=2
    )
    context_is_set: bool = False  # not a setting: `load` records here whether max_context was set
    stream_gap: float = setting(
        0.2,
        "Seconds that prompt work may add between two tokens of a running stream; a quarter more if that finishes all "
        "prompts.",
        low=0,
    )
    min_prompt_tokens: int = setting(64, "Prompt tokens in a step even if stream_gap allows fewer.", low=1)
    max_partial_prompts: int = setting(
        4, "Most prompts that share a step's prompt work, so that none waits for another. Role prefill: 1.", low=1
    )
    hands_over: bool = False  # not a setting: prompts are for other engines, which wait for them
    max_step_seconds: float = setting(
        300.0,
        "Seconds that one step may take. An engine that takes longer is killed and restarted, and its requests resume. "
        "0: no limit.",
        low=0,
    )
    max_waiting: int = setting(4096, "Most requests in the queue; further ones are refused.", low=0)
    pressure: str = setting(
        "evict",
        "When memory is short: evict (drop cold cache, then preempt), queue (admit only requests that surely fit), "
        "reject (as evict, and refuse requests that would wait longer than max_wait).",
        choices=("evict", "queue", "reject"),
    )
    max_wait: float = setting(30.0, "Expected wait in seconds above which pressure=reject refuses a request.", low=0)
    watermark: float = setting(
        0.01, "Share of blocks that must stay free for running requests when another is admitted.", low=0
    )
    prefix_window: int = setting(
        8, "Oldest waiting requests of a key from which the longest cached prefix is admitted first.", low=1
    )
    ageing: float = setting(512.0, "Cached tokens that one second of waiting is worth in that order.", low=0)
    output_cost: float = setting(2.0, "Cost of an output token in a key's fair share; a prompt token costs 1.", low=0)


@dataclass(frozen=True, slots=True)
class SamplingConfig:
    """Sampling."""

    sampling_defaults: str = setting(
        "model",
        "Defaults of parameters that a request does not set: model (from generation_config.json or the GGUF file) or "
        "none (those of the API). A Modelfile's parameters come before both.",
        choices=("model", "none"),
    )


@dataclass(frozen=True, slots=True)
class GrammarConfig:
    """Constrained output."""

    jump_forward: bool = setting(
        True, "Tokens that a grammar forces enter the next step together, and are not sampled."
    )
    max_grammar_bytes: int = setting(
        131072, "Largest size in bytes of a JSON schema, a regular expression or a grammar.", low=1
    )
    max_grammar_seconds: float = setting(5.0, "Seconds that a grammar may take to compile.", low=0.001)
    cached_grammars: int = setting(256, "Compiled grammars that are kept for later requests.", low=1)
    open_objects: bool = setting(
        False,
        "Objects may have properties that their schema does not list, as in the JSON Schema specification. Off: only "
        "where additionalProperties or unevaluatedProperties allows it. A schema with strict is always closed.",
    )


@dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """Speculative decoding."""

    speculate: str = setting(
        AUTO,
        "auto: guess next tokens from the text, from the prefix cache and by the model's own head, and verify several "
        "in one step where that is faster; the text stays the same, on CUDA in deterministic mode. off: never.",
        choices=(AUTO, OFF),
    )
    draft: str | None = setting(
        None,
        "A small model with the same vocabulary, by name or path, that guesses next tokens too, where that is faster; "
        "or the folder of an EAGLE-3 head. A server uses it for the models of its command line. None: no such model.",
    )


@dataclass(frozen=True, slots=True)
class ObserveConfig:
    """Logs."""

    log_level: str = setting("info", "Lowest level that is logged.", choices=("debug", "info", "warning", "error"))
    log_format: str = setting("text", "text: lines for people; json: one JSON object a line.", choices=("text", "json"))


@dataclass(frozen=True, slots=True)
class WeightsConfig:
    """Loading weights."""

    load_format: str = setting(
        "auto",
        "auto: read the checkpoint. dummy: read only config.json and make random weights, to measure speed.",
        choices=("auto", "dummy"),
    )
    quantize: str | None = setting(
        None,
        f"What matrices become when they are loaded: {listed(CONVERSIONS)}. None: they stay as they are.",
        choices=tuple(CONVERSIONS),
    )
    experts_on_host: str = setting(
        AUTO,
        "On a GPU: GB of a model's experts that are kept in host memory, from where the GPU reads them; those in use "
        "move to the GPU. auto: as few as needed for the model to fit. off: none.",
    )
    lowered_gb: float = setting(
        20.0,
        "Disk space in GB for lowered weights, which make a model's next start quick; the least recently used are "
        "dropped first. 0: none are kept.",
        low=0,
    )


@dataclass(frozen=True, slots=True)
class DeviceConfig:
    """The device."""

    fuse: bool = setting(
        True,
        "Use kernels that compute several operations of a model at once. off: one plain kernel for each operation; "
        "slower, to find out whether a fused kernel is wrong.",
    )
    dtype: str | None = setting(
        None, "On a GPU: number format of activations, and of weights that are not quantized. None: bf16.",
        choices=ACTIVATION_FORMATS,
    )  # fmt: skip
    deterministic: bool = setting(
        False,
        "A request's tokens do not depend on other requests, on chunks or on cache hits. Slower; a CPU is always so.",
    )
    captures: bool = setting(True, "On a GPU: capture decode steps as CUDA graphs, and replay them.")
    tune: bool = setting(
        False,
        "On a GPU: in idle time, find the fastest kernel for each matrix, a second at a time; for the next start.",
    )


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Models on disk."""

    home: str | None = setting(None, "Folder of models and history. None: the folder quire in the user's data folder.")
    registry: str = setting(
        "ollama.com",
        "Registry of names without one (of org/name, if the model hub has no such repository): a host, or "
        "http://host:port for a registry without TLS on another machine.",
    )


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """The HTTP server."""

    host: str = setting("127.0.0.1", "Address to listen on; 0.0.0.0: all addresses of this machine.")
    port: int = setting(8000, "Port to listen on; 0: any free port.", low=0, high=65535)
    api_keys: str | None = setting(None, "TOML file of API keys with their limits. None: no key is required.")
    api_key: str | None = setting(None, "API keys without limits, separated by commas.", secret=True)
    routes: str | None = setting(
        None, "YAML file of aliases with rules that choose a model; read again at SIGHUP. None: no aliases."
    )
    tls_cert: str | None = setting(None, "File of the TLS certificate, with the chain to its root. None: plain HTTP.")
    tls_key: str | None = setting(None, "File of the certificate's private key.")
    cors_origins: str = setting("", "Origins of web pages that may call, separated by commas, or *.")
    allowed_hosts: str = setting(
        "",
        "Host names of this server, separated by commas; .example.com: every name below it; *: any name. Always "
        "allowed: IP addresses, localhost, this machine's name and --host. If empty, not checked with API keys.",
    )
    max_body_mb: float = setting(32.0, "Largest request body in MB.", low=0.001)
    body_seconds: float = setting(30.0, "Seconds that a request body may take to arrive.", low=0.01)
    unknown_fields: str = setting(
        "refuse",
        "Unknown fields of requests: refuse, or ignore (logged once for each name). Known but unsupported fields that "
        "would change the answer are refused either way.",
        choices=("refuse", "ignore"),
    )
    header_seconds: float = setting(20.0, "Seconds that a request's headers may take to arrive.", low=0.01)
    stall_seconds: float = setting(
        300.0, "Seconds after which a connection is closed if its client does not read the answer.", low=0.01
    )
    max_prompts: int = setting(1024, "Most prompts in one request.", low=1)
    max_n: int = setting(128, "Most samples of one prompt.", low=1)
    max_stops: int = setting(64, "Most stop strings of one request.", low=0)
    max_tools: int = setting(256, "Most tools of one request.", low=0)
    max_logprobs: int = setting(20, "Most alternatives reported for each token.", low=0)
    fronts: int = setting(1, "Processes that serve HTTP and tokenize, for the same engines.", low=1, high=1024)
    keep_alive: str = setting(
        "5m", "Time that a model stays in memory after its last request, such as 30s, 1h or 0; -1: for ever."
    )
    memory_budget: float | None = setting(
        None, "Memory in GB that all models together may use. None: memory_share of this machine's.", low=0.001
    )
    min_context: int = setting(
        1024,
        "Smallest context that a model is loaded with when memory is short; if that does not fit, it is refused.",
        low=2,
    )
    load_patience: float = setting(
        60.0, "Seconds that a request waits until its model is loaded and others are unloaded for it.", low=0
    )
    drain_seconds: float = setting(30.0, "Seconds that accepted requests may take to finish after SIGTERM.", low=0)
    metrics_for: str = setting(
        "keys",
        "Who may read /metrics where keys are required: all (without a key), keys (with any key), or admins.",
        choices=("all", "keys", "admins"),
    )
    log_prompts: bool = setting(False, "Log prompts. They may contain secrets.")
    request_log: str | None = setting(
        None,
        "File with a JSON line for each request: times, lengths, and marks instead of tokens, which show how much of "
        "two prompts is equal and nothing else. For quire advise. None: no such file.",
    )
    otlp_endpoint: str | None = setting(
        None, "OpenTelemetry collector for a trace of every request, such as http://localhost:4318. None: no traces."
    )


@dataclass(frozen=True, slots=True)
class Config:
    """All settings. A setting's flag is --name, its environment variable QUIRE_NAME."""

    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    grammar: GrammarConfig = field(default_factory=GrammarConfig)
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
    embedding: EmbeddingConfig = field(default_factory=EmbeddingConfig)
    observe: ObserveConfig = field(default_factory=ObserveConfig)
    weights: WeightsConfig = field(default_factory=WeightsConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)
    store: StoreConfig = field(default_factory=StoreConfig)
    serve: ServeConfig = field(default_factory=ServeConfig)
    join: JoinConfig = field(default_factory=JoinConfig)
    gateway: GatewayConfig = field(default_factory=GatewayConfig)
    transfer: TransferConfig = field(default_factory=TransferConfig)


def settings() -> Iterator[Setting]:
    """Every declared setting, in order."""
    for section, kind in get_type_hints(Config).items():
        hints = get_type_hints(kind)
        for each in fields(kind):
            if each.metadata:
                yield _declared(section, each, hints[each.name])


def _declared(section: str, each: Field[Any], kind: Any) -> Setting:
    return Setting(section, each.name, kind, each.default, **each.metadata)


def load(flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None) -> Config:
    """Defaults, overridden by the environment, then by flags (name -> value). Unknown names are errors."""
    environ = os.environ if environ is None else environ
    declared = {each.name: each for each in settings()}
    values = {name: each.parse(environ[each.variable]) for name, each in declared.items() if each.variable in environ}
    for name, value in (flags or {}).items():
        if name not in declared:
            raise BadSetting(f"There is no setting {name!r}.", field=name)
        values[name] = declared[name].parse(value) if isinstance(value, str) else value
    for name, value in values.items():
        declared[name].check(value)
    config = Config(scheduler=SchedulerConfig(context_is_set="max_context" in values))
    for section in fields(Config):
        mine = {name: value for name, value in values.items() if declared[name].section == section.name}
        config = replace(config, **{section.name: replace(getattr(config, section.name), **mine)})
    expert_bytes_on_host(config.weights.experts_on_host)  # refuses what it cannot read
    check_transfers(config.transfer)
    if config.scheduler.max_step_tokens < config.scheduler.max_rows:
        raise BadSetting(
            f"max_step_tokens is {config.scheduler.max_step_tokens} and max_rows is {config.scheduler.max_rows}. Every "
            "running request needs a token in each step: max_step_tokens must be at least max_rows.",
            field="max_step_tokens",
        )
    return config


def environment() -> Mapping[str, str]:
    """The environment, for variables of other programs."""
    return os.environ


def home_folder(config: Config, environ: Mapping[str, str] | None = None, platform: str = sys.platform) -> Path:
    """The folder of models and history: the setting `home`, else the system's folder for user data."""
    environ = os.environ if environ is None else environ
    if config.store.home is not None:
        return Path(config.store.home).expanduser().absolute()
    if platform == "win32":
        base = environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    else:  # the XDG rules: a relative path in the variable is ignored
        given = environ.get("XDG_DATA_HOME", "")
        base = given if Path(given).is_absolute() else Path.home() / ".local" / "share"
    return Path(base) / "quire"


def child_environment(more: Mapping[str, str]) -> dict[str, str]:
    """The environment of this process, with further variables, for a child."""
    return {**os.environ, **more}


def reference() -> str:
    """Return the text of `docs/SETTINGS.md`, generated from the declarations."""
    lines = ["# Settings", "", "Generated from `config.py`. A flag overrides an environment variable.", ""]
    for section in fields(Config):
        kind = get_type_hints(Config)[section.name]
        lines += [f"## {section.name}: {kind.__doc__}", "", "| flag | variable | default | |", "|---|---|---|---|"]
        for each in settings():
            if each.section == section.name:
                lines.append(f"| `{each.flag}` | `{each.variable}` | {each.default} | {each.help} |")
        lines.append("")
    return "\n".join(lines)
