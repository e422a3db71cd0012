"""Loading a model: open the checkpoint, draw the graph, lower it for the device, size the KV cache, make the engine."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path

from quire import __version__
from quire.cache.checkpoints import CheckpointSpacing
from quire.cache.kv_cache import KVCache
from quire.cache.sources import SourcePool
from quire.config import Config, home_folder
from quire.devices import base as devices
from quire.devices.base import Device, Limits, LoweringOptions, Program, ReportsKernels, WeightCache
from quire.devices.facts import DeviceFacts
from quire.engine.context import context_limit, with_model_limits
from quire.engine.core import EngineCore
from quire.engine.drafting import PlannedDraft, find_draft, plan_draft
from quire.engine.grammars import Grammars
from quire.engine.messages import Ready, WindowCache
from quire.grammar.compiler import Compiler
from quire.grammar.grammar import GrammarVocabulary, open_backend
from quire.models.config import CheckpointSource
from quire.models.draw import DrawnModel, draw
from quire.models.errors import UnsupportedModel
from quire.runner.cache_plan import CachePlan, cache_bytes, plan_own
from quire.runner.memory import (
    ModelMemory,
    buffer_bytes,
    fit_cache,
    fixed_bytes,
    limits_of,
    source_bytes,
    with_kv_format,
)
from quire.runner.runner import ExchangesRows, Runner
from quire.runner.sources import SourcePrograms, lower_source
from quire.runner.whole_texts import WholeTextRunner
from quire.scheduler.overlapped import OverlappedSpeculation
from quire.scheduler.proposals import MAX_DRAFTS, DraftLimits, ProposesByModel, ProposesDrafts
from quire.scheduler.request_state import RequestState
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.speculation import Speculation
from quire.scheduler.whole_texts import WholeTextScheduler
from quire.spec.prediction import PredictionDrafter
from quire.spec.suffix import SuffixDrafter
from quire.spec.tree import TreeDrafter
from quire.types.kinds import RequestKind
from quire.types.lowered import FOLDER
from quire.types.sampling_values import OFF
from quire.types.transfer import Role
from quire.weights.checkpoint import Checkpoint, open_checkpoint
from quire.weights.lowered import LoweredStore

logger = logging.getLogger(__name__)

TUNED = "tuned"  # a folder below QUIRE_HOME
Progress = Callable[[str, float], None]  # the stage, and seconds since the start


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """An engine, and the message that announces it."""

    core: EngineCore
    ready: Ready


def load_engine(
    path: str | Path, device: str | Device, config: Config, progress: Progress = lambda stage, seconds: None
) -> LoadedEngine:
    """Open the checkpoint at `path` and build its engine on this device."""
    began = time.monotonic()
    progress("opening the checkpoint", 0.0)
    checkpoint = open_checkpoint(path, config.weights.load_format)
    return build_engine(checkpoint, device, config, lambda stage: progress(stage, time.monotonic() - began))


def build_engine(
    checkpoint: CheckpointSource,
    device: str | Device,
    config: Config,
    progress: Callable[[str], None] = lambda stage: None,
    drafters: Sequence[ProposesDrafts] | None = None,
    draft: CheckpointSource | None = None,
) -> LoadedEngine:
    """An engine for an open checkpoint. `drafters`, `draft`: instead of what every model has, or the settings name."""
    began = time.monotonic()
    progress("drawing the graph")
    model = draw(checkpoint, partial(context_limit, config), config.embedding.pooling)
    opened = devices.open(device) if isinstance(device, str) else device
    facts = opened.facts()
    config = with_kv_format(config, facts)
    drafting = plan_draft(draft or find_draft(config), model, config, facts, checkpoint)
    model = model if drafting is None else drafting.target
    config, plan = fit_config(config, model, facts, 0 if drafting is None else drafting.num_bytes)
    progress(f"lowering for {opened.name}")
    drafter = None if drafting is None else _open_draft(drafting, opened)  # first: the KV cache takes what is left
    encoder = _lower_source(opened, model, limits_of(config, plan), config)  # before it too
    program, limits = lower(opened, model, limits_of(config, plan), kept_weights(checkpoint, model, config), config)
    if isinstance(checkpoint, Checkpoint):
        checkpoint.release_pages()
    vocab_size = model.config.vocab_size
    runner = _runner(program, model, limits, config, None if drafting is None else drafting.hidden)
    cache = _cache(limits, config, facts)
    if model.source is not None and isinstance(runner, Runner):
        runner.sources = encoder
        sizes = (limits.num_source_blocks, limits.block_tokens, model.source.max_tokens, model.source.num_features)
        cache.sources = SourcePool(*sizes)
    scheduler = _scheduler(cache, runner, config, (_drafters(cache) if drafters is None else drafters, drafter))
    cache.resizing.start(max(config.cache.num_blocks or limits.num_blocks, scheduler.fewest_blocks), 0.0)
    grammars = Grammars(scheduler, _compiler(checkpoint, vocab_size, config), config, vocab_size)
    core = _core(config)(scheduler, cache, runner, grammars, vocab_size, depth=runner.depth)
    core.kinds, vector_size = request_kinds(model)
    core.seeds_requests = drafter is not None
    core.checks_when_idle = config.observe.log_level == "debug"
    _open_transfers(core, runner, checkpoint, model, config)
    ready = Ready(
        device=opened.name,
        architecture=model.architecture,
        vocab_size=vocab_size,
        max_context=config.scheduler.max_context,
        num_blocks=cache.num_blocks,
        block_tokens=limits.block_tokens,
        seconds=time.monotonic() - began,
        most_blocks=cache.most_blocks,
        block_bytes=plan.sizes.tokens,
        weight_bytes=fixed_bytes(model.weights, vocab_size, config, facts),
        kernels=program.kernels if isinstance(program, ReportsKernels) else {},
        windows=tuple(WindowCache(*group, size.block) for group, size in plan.window_pairs),
        num_states=plan.num_states,
        state_bytes=plan.sizes.state,
        kinds=core.kinds,
        vector_size=vector_size,
    )
    return LoadedEngine(core, ready)


def _lower_source(device: Device, model: DrawnModel, limits: Limits, config: Config) -> SourcePrograms | None:
    """Return the programs that compute the sources of an encoder-decoder; None: the model is none."""
    if model.source is None:
        return None
    return lower_source(device, model.source, limits, lowering_options(device, None, config))


def _core(config: Config) -> type[EngineCore]:
    """Return the class of the step loop. The one with transfers is imported only if they are on."""
    if config.transfer.transfer_secret is None:
        return EngineCore
    found: type[EngineCore] = import_module("quire.engine.transfers").TransferCore
    return found


def _open_transfers(
    core: EngineCore,
    runner: Runner | WholeTextRunner,
    checkpoint: CheckpointSource,
    model: DrawnModel,
    config: Config,
) -> None:
    """Open transfers of KV blocks if the settings enable them. Log a warning if the model or device cannot."""
    if config.transfer.transfer_secret is None:
        return
    mover = runner.block_mover if isinstance(runner, Runner) else None
    if mover is None or model.source is not None:
        logger.warning(
            "%s exchanges no KV blocks with other engines: its device or its kind of model does not support it.",
            model.architecture,
        )
        return
    weights = checkpoint.digest(with_times=False) if isinstance(checkpoint, Checkpoint) else "weights without a file"
    identity = f"{__version__} {weights} {model.graph.digest()} {config.weights.quantize}"
    import_module("quire.engine.transfers").open_transfers(core, mover, identity, config.transfer)


def _cache(limits: Limits, config: Config, facts: DeviceFacts) -> KVCache:
    return KVCache(
        max(1, limits.num_blocks),
        limits.block_tokens,
        config.cache.session_ttl,
        windows=limits.windows,
        num_states=limits.num_states,
        spacing=_spacing(config, facts),
    )


def _runner(
    program: Program, model: DrawnModel, limits: Limits, config: Config, hidden: ExchangesRows | None
) -> Runner | WholeTextRunner:
    """The runner of a model: of whole texts if it keeps nothing of them."""
    if model.is_encoder:
        assert model.pool is not None
        return WholeTextRunner(program, limits, model.pool)
    return Runner(program, limits, model.config.vocab_size, config.cache.check_states, model.pool, hidden)


def _scheduler(
    cache: KVCache,
    runner: Runner | WholeTextRunner,
    config: Config,
    drafters: tuple[Sequence[ProposesDrafts], ProposesByModel | None],
) -> Scheduler | WholeTextScheduler:
    if isinstance(runner, WholeTextRunner):
        return WholeTextScheduler(config.scheduler)
    limits = config.scheduler
    if config.transfer.role == Role.PREFILL:  # a prompt is sent on as soon as it is computed, not with others
        limits = replace(limits, max_partial_prompts=1, hands_over=True)
    return Scheduler(cache, limits, _speculation(*drafters, runner, cache.has_states, config))


def request_kinds(model: DrawnModel) -> tuple[tuple[RequestKind, ...], int]:
    """What requests may ask the model for, and the size of its vectors."""
    outputs = model.graph.outputs
    generates = (RequestKind.GENERATE,) if "logits" in outputs else ()
    if model.source is not None and "hidden" in outputs:
        return (*generates, RequestKind.ALIGN), outputs["hidden"].dim
    if "scores" in outputs:
        return (*generates, RequestKind.SCORE, RequestKind.CLASSIFY), outputs["scores"].dim
    if "pooled" in outputs:
        return (*generates, RequestKind.EMBED, RequestKind.SCORE), outputs["pooled"].dim
    return generates, 0


def _compiler(checkpoint: CheckpointSource, vocab_size: int, config: Config) -> Compiler:
    return Compiler(
        lambda: open_backend(grammar_vocabulary(checkpoint, vocab_size), config.grammar.open_objects), config.grammar
    )


def _drafters(cache: KVCache) -> tuple[ProposesDrafts, ...]:
    """The drafters that every model has."""

    def continued(state: RequestState, limit: int) -> Sequence[int]:
        return () if state.lease is None else cache.continuation(state.lease, state.tokens, limit)

    def predicted(state: RequestState) -> tuple[Sequence[int], int]:
        return state.request.predicted, state.num_prompt

    return TreeDrafter(continued), PredictionDrafter(predicted), SuffixDrafter()


def _open_draft(drafting: PlannedDraft, device: Device) -> ProposesByModel:
    kept = kept_weights(drafting.checkpoint, drafting.model, drafting.config)
    drafter = drafting.open(device, lowering_options(device, kept, drafting.config))
    if isinstance(drafting.checkpoint, Checkpoint):
        drafting.checkpoint.release_pages()
    return drafter


def _speculation(
    drafters: Sequence[ProposesDrafts],
    model: ProposesByModel | None,
    runner: Runner,
    has_states: bool,
    config: Config,
) -> Speculation | None:
    """Speculation with these drafters. None: it is off, or the device is slow at drafts."""
    capacity = runner.draft_capacity
    if config.speculation.speculate == OFF or capacity is None:
        return None
    row_drafts, scheduler = min(capacity.row_drafts, MAX_DRAFTS), config.scheduler
    limits = DraftLimits(
        row_drafts, scheduler.max_scored_tokens, capacity.step_tokens, has_states, scheduler.max_step_tokens
    )
    return (Speculation if runner.depth == 1 else OverlappedSpeculation)(drafters, limits, model)


def lower(
    device: Device, model: DrawnModel, limits: Limits, kept: WeightCache | None, config: Config
) -> tuple[Program, Limits]:
    """The program, and the limits with the KV blocks that it has: a device with its own memory decides how many fit."""
    if device.facts().has_own_memory:
        limits = replace(limits, num_blocks=config.cache.num_blocks or 0)
    options = lowering_options(device, kept, config)
    program = device.lower(model.graph, model.weights, limits, options)
    return program, replace(limits, num_blocks=program.num_blocks)


def lowering_options(device: Device, kept: WeightCache | None, config: Config) -> LoweringOptions:
    """The choices for a lowering, as set."""
    return LoweringOptions(
        dtype=config.device.dtype,
        quantize=config.weights.quantize,
        fuse=config.device.fuse,
        deterministic=config.device.deterministic,
        captures=config.device.captures,
        tuned=home_folder(config) / TUNED,
        tune=config.device.tune,
        memory_share=config.cache.memory_share,
        experts_on_host=device.facts().expert_bytes_on_host(config.weights.experts_on_host),
        kept=kept,
    )


def fit_config(config: Config, model: DrawnModel, facts: DeviceFacts, other_bytes: int = 0) -> tuple[Config, CachePlan]:
    """The settings, limited to what the model can do, what the device has, and what its memory holds; the cache.

    `other_bytes`: of a model that drafts.
    """
    config = with_model_limits(config, model)
    config = with_kv_format(config, facts)
    if model.source is not None and not facts.reads_sources:
        raise UnsupportedModel(
            f"{model.architecture} has an encoder and a decoder, which the device {facts.name} cannot run yet. Use "
            "--device cpu."
        )
    longest_source = 0 if model.source is None else model.source.max_tokens
    sizes = cache_bytes(model.graph.caches, config, facts.frees_windows, longest_source)
    total = facts.memory.total_bytes
    if facts.has_own_memory:  # how many blocks fit is known when the program is made
        room = None
        if total is not None and (sizes.state or sizes.windows):
            room = int(total * config.cache.memory_share) - other_bytes - _fixed_bytes(model, config, facts)
        plan = plan_own(sizes, config, room, facts.steps_in_flight)
        return replace(config, cache=replace(config.cache, num_blocks=plan.num_blocks or None)), plan
    if total is None:
        sized = config.cache.num_blocks is not None
        return fit_cache(config, ModelMemory(0, 0, sizes)) if sized else (config, CachePlan(sizes.within(0), 0))
    return fit_cache(config, ModelMemory(total, other_bytes + _fixed_bytes(model, config, facts), sizes))


def _fixed_bytes(model: DrawnModel, config: Config, facts: DeviceFacts) -> int:
    weights = fixed_bytes(model.weights, model.config.vocab_size, config, facts)
    weights += source_bytes(model.source, config, facts)
    return weights + buffer_bytes(model.graph, model.weights, config, facts)


def _spacing(config: Config, facts: DeviceFacts) -> CheckpointSpacing:
    """Where recurrent layers store checkpoints inside a prompt."""
    every = config.cache.checkpoint_every or config.scheduler.max_context  # no prompt is longer
    return CheckpointSpacing(every, facts.checkpoint_grain(config.device.deterministic))


def grammar_vocabulary(checkpoint: CheckpointSource, vocab_size: int) -> GrammarVocabulary | None:
    """The model's tokens, for grammars. None: it has no tokenizer."""
    if not isinstance(checkpoint, Checkpoint):
        return None
    files = import_module("quire.engine.model_files")  # here, because most engines need no tokenizer of their own
    model_text = files.read_model_text(checkpoint)
    ends = tuple(token for token in model_text.eos_ids if token < vocab_size)
    return None if model_text.tokenizer is None else GrammarVocabulary(model_text.tokenizer, vocab_size, ends)


def kept_weights(checkpoint: CheckpointSource, model: DrawnModel, config: Config) -> WeightCache | None:
    """Where devices keep this model's weights as they lower them. None: switched off, or no file has the weights."""
    max_bytes = int(config.weights.lowered_gb * 1e9)
    if max_bytes == 0 or not isinstance(checkpoint, Checkpoint) or checkpoint.container == "dummy":
        return None
    store = LoweredStore(home_folder(config) / FOLDER, max_bytes)
    return store.for_model(checkpoint.digest(), model.graph.digest(), __version__, file=checkpoint.files[0].file.path)
