"""The drafter of an engine that is a model: how it is found, how much memory it takes, and how it is loaded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from quire.cache.kv_cache import KVCache
from quire.config import BadSetting, Config
from quire.devices.base import Device, LoweringOptions
from quire.devices.facts import DeviceFacts
from quire.engine.context import context_limit
from quire.models.config import CheckpointSource
from quire.models.draw import DrawnModel, draw, draw_mtp
from quire.models.eagle3 import draw_eagle3, is_eagle3
from quire.models.hidden import keep_last_rows
from quire.ops.cache import State
from quire.runner.cache_plan import cache_bytes, context_blocks
from quire.runner.memory import buffer_bytes, fixed_bytes, limits_of
from quire.runner.runner import Runner
from quire.scheduler.proposals import ProposesByModel
from quire.scheduler.speculation import MAX_ROWS
from quire.spec.draft_model import DraftModel, DraftRoom
from quire.spec.head import HeadDrafter
from quire.spec.hidden_rows import Array, HiddenRows
from quire.types.sampling_values import OFF
from quire.weights.checkpoint import open_checkpoint

STEP_TOKENS = 512  # most tokens that a drafter's model reads in one step
CONTEXTS = 2  # whole contexts that its KV blocks hold
MOST_TOKENS = 1 << 14  # and the most tokens, if one context is not longer


@dataclass(frozen=True, slots=True)
class PlannedDraft:
    """What drafts for a model, before it is loaded: another model, or a head of the model."""

    checkpoint: CheckpointSource
    model: DrawnModel
    config: Config  # its own
    num_bytes: int  # of weights, buffers, KV, and hidden rows
    target: DrawnModel  # as it has to be lowered
    hidden: HiddenRows | None = None  # what a head reads of the target
    name: str = DraftModel.name
    to_token: Array | None = None  # tokens of the target by those of the head, if they differ

    def open(self, device: Device, options: LoweringOptions) -> ProposesByModel:
        """Load it."""
        limits = limits_of(self.config)
        program = device.lower(self.model.graph, self.model.weights, limits, options)
        cache = KVCache(limits.num_blocks, limits.block_tokens)
        room = DraftRoom(limits.max_rows, limits.max_tokens, self.model.context)
        vocab_size = self.model.graph.output.dim
        if self.hidden is None:
            return DraftModel(Runner(program, limits, vocab_size), cache, room)
        head = HeadDrafter(self.name, cache, room, self.hidden)
        head.run_on(Runner(program, limits, vocab_size, hidden=head), self.to_token)
        return head


def plan_draft(
    checkpoint: CheckpointSource | None, target: DrawnModel, config: Config, facts: DeviceFacts, files: CheckpointSource
) -> PlannedDraft | None:
    """Plan what drafts for a model: the checkpoint of a draft model if there is one, else the model's own head.

    `files`: the model's own checkpoint. None: there is nothing that could draft.
    """
    if config.speculation.speculate == OFF:
        return None
    if checkpoint is None:
        return _planned_mtp(files, target, config, facts)
    if is_eagle3(checkpoint):
        return _planned_eagle(checkpoint, target, config, facts)
    longest = replace(config, scheduler=replace(config.scheduler, max_context=target.context))
    model = draw(checkpoint, partial(context_limit, longest))
    _check(model, config, target)
    own = _own_config(longest, model)
    return PlannedDraft(checkpoint, model, own, _bytes(model, own, facts), target)


def _planned_mtp(
    files: CheckpointSource, target: DrawnModel, config: Config, facts: DeviceFacts
) -> PlannedDraft | None:
    """Plan the model's own head. None: it has none."""
    model = draw_mtp(files, target.context)
    if model is None:
        return None
    own = _own_config(config, model)
    keep_last_rows(target)
    hidden = HiddenRows(target.config.hidden, own.scheduler.max_rows)
    num_bytes = _bytes(model, own, facts) + hidden.num_bytes
    return PlannedDraft(files, model, own, num_bytes, target, hidden, "mtp")


def _planned_eagle(
    checkpoint: CheckpointSource, target: DrawnModel, config: Config, facts: DeviceFacts
) -> PlannedDraft:
    """Plan an EAGLE-3 head."""
    head, tapped, to_token = draw_eagle3(checkpoint, target)
    own = _own_config(config, head)
    hidden = HiddenRows(target.config.hidden, own.scheduler.max_rows)
    num_bytes = _bytes(head, own, facts) + hidden.num_bytes
    return PlannedDraft(checkpoint, head, own, num_bytes, tapped, hidden, "eagle", to_token)


def find_draft(config: Config) -> CheckpointSource | None:
    """Return the checkpoint that the settings name. None: there is none, or nothing is drafted."""
    if config.speculation.draft is None or config.speculation.speculate == OFF:
        return None
    return open_checkpoint(Path(config.speculation.draft), config.weights.load_format)


def draft_bytes(files: CheckpointSource, target: DrawnModel, config: Config, facts: DeviceFacts) -> int:
    """Return the bytes of what drafts for a model beside it."""
    planned = plan_draft(find_draft(config), target, config, facts, files)
    return 0 if planned is None else planned.num_bytes


def _bytes(model: DrawnModel, config: Config, facts: DeviceFacts) -> int:
    num_bytes = fixed_bytes(model.weights, model.graph.output.dim, config, facts)
    num_bytes += buffer_bytes(model.graph, model.weights, config, facts)
    return num_bytes + (config.cache.num_blocks or 0) * cache_bytes(model.graph.caches, config, False).tokens


def _check(model: DrawnModel, config: Config, target: DrawnModel) -> None:
    """Refuse a model that cannot draft for the target."""
    name, vocab_size = config.speculation.draft or model.architecture, target.config.vocab_size
    if model.config.vocab_size != vocab_size:
        raise BadSetting(
            f"The draft model {name} ({model.architecture}) has a vocabulary of {model.config.vocab_size} tokens, and "
            f"the model ({target.architecture}) has {vocab_size}. Choose a draft model with the same vocabulary.",
            field="draft",
        )
    if any(isinstance(spec, State) for spec in model.graph.caches):
        raise BadSetting(
            f"The draft model {name} ({model.architecture}) has recurrent layers, whose states cannot go back behind a "
            "rejected draft. Choose a draft model with attention alone.",
            field="draft",
        )


def _own_config(config: Config, model: DrawnModel) -> Config:
    """Return the settings of the drafter's model: fewer rows, shorter steps, its own number of blocks."""
    max_rows = min(MAX_ROWS, config.scheduler.max_rows)
    scheduler = replace(
        config.scheduler,
        max_rows=max_rows,
        max_step_tokens=max(max_rows, min(STEP_TOKENS, config.scheduler.max_step_tokens)),
        max_scored_tokens=1,
        max_context=model.context,
    )
    own = replace(config, scheduler=scheduler)
    one, most = context_blocks(own), -(-MOST_TOKENS // config.cache.block_tokens)
    num_blocks = max(one, min(CONTEXTS * one, most))
    if config.cache.num_blocks is not None:
        num_blocks = min(num_blocks, config.cache.num_blocks)
    return replace(own, cache=replace(config.cache, num_blocks=num_blocks, most_blocks=None))
