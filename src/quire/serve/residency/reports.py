"""What residency reports about its models: status, records, and the log lines of a load."""

from __future__ import annotations

import logging
import time

from quire.engine.need import WHOLE
from quire.serve.residency.contract import EngineRecord, ModelRecord, ModelStatus
from quire.serve.residency.memory import GpuFit, HostFit
from quire.serve.residency.policy import Resident
from quire.serve.residency.roster import EngineSlot, ResidentModel
from quire.serve.residency.shelf import ModelEntry

logger = logging.getLogger(__name__)


def model_status(model: ResidentModel) -> ModelStatus:
    """Whether a model can answer now."""
    client = model.client
    return ModelStatus(model.name, model.is_named, client is not None, None if client is None else client.trouble)


def entry_record(entry: ModelEntry) -> ModelRecord:
    """A model of the store that no request has used."""
    return ModelRecord(entry.name, entry.identity, is_in_store=True, facts=entry.facts)


def model_record(model: ResidentModel, resident: Resident | None) -> ModelRecord:
    """A model that was named or requested. `resident` is None until it is measured."""
    context = 0 if model.slot is None else model.slot.fit.context
    engine = None if resident is None else _engine_record(model, resident)
    return ModelRecord(
        name=model.name,
        identity=model.entry.identity,
        is_named=model.is_named,
        was_requested=True,
        facts=model.entry.facts,
        path=str(model.path or ""),
        context=context if engine is None else engine.ready.max_context,
        engine=engine,
    )


def _engine_record(model: ResidentModel, resident: Resident) -> EngineRecord | None:
    slot, client = model.slot, model.client
    if slot is None or client is None:
        return None
    ready, fit = client.ready, slot.fit
    if isinstance(fit, HostFit):
        fixed_bytes, allowed_bytes = fit.need.fixed_bytes, resident.num_bytes
    else:
        fixed_bytes = ready.weight_bytes
        allowed_bytes = fixed_bytes + ready.group_bytes + ready.num_blocks * ready.block_bytes
    seconds_left = resident.keep if resident.running else resident.expires - time.monotonic()
    return EngineRecord(
        ready=ready,
        shared_with="" if slot.first is None or slot.first is model else slot.first.name,
        allowed_bytes=allowed_bytes,
        fixed_bytes=fixed_bytes,
        expires=None if resident.keep < 0 else time.time() + max(0.0, seconds_left),
    )


def log_loaded(slot: EngineSlot, num_bytes: int, seconds: float) -> None:
    """Log that an engine is ready, and what it may use."""
    logger.info("%s is loaded, in %.1f s", slot.names, seconds)
    if isinstance(slot.fit, GpuFit):
        logger.info("%s has %.0f %% of the GPU's memory", slot.names, 100 * num_bytes / WHOLE)
        return
    context, longest = slot.fit.context, slot.fit.need.max_context
    logger.info("%s may use %.0f MB, and has a context of %d tokens", slot.names, num_bytes / 1e6, context)
    if slot.client is not None:
        ready = slot.client.ready
        kv_mb = (ready.num_blocks * ready.block_bytes + ready.group_bytes) / 1e6
        logger.info("%s: %.0f MB of that is KV cache, which fills with the first requests", slot.names, kv_mb)
    if context < longest:
        logger.warning("%s: the memory budget does not hold a context of %d tokens", slot.names, longest)
