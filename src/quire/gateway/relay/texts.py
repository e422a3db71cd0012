"""Tokenizers and templates of the fleet's models: from a Quire upstream, or from the store if no Quire has the model.

A prompt is encoded once, here: the tokens choose the upstream, and go along to Quire upstreams, which do not encode it
again if their tokenizer and template have the same digest.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from urllib.parse import quote

from quire.gateway.http.errors import UpstreamFailed
from quire.gateway.upstreams.registry import Upstreams
from quire.text.model_text import ModelText
from quire.types.errors import QuireError

logger = logging.getLogger(__name__)

FETCH_SECONDS = 60.0  # a model that is not loaded yet is loaded by the question
RETRY_SECONDS = 5.0

ReadText = Callable[[str], ModelText]  # reads the text side of a model of the store; in a thread


class ModelTexts:
    """The text side of each model, read once. Used in the event loop's thread."""

    def __init__(self, upstreams: Upstreams, read_text: ReadText) -> None:
        self._upstreams = upstreams
        self._read_text = read_text
        self.tokenizers: Mapping[str, str] = {}  # model -> name in the store, from the fleet file
        self._found: dict[str, ModelText] = {}
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._failed_at: dict[str, float] = {}

    def get(self, model: str) -> ModelText | None:
        """The text side of a model, if it is known. If not, it is read meanwhile."""
        found = self._found.get(model)
        if found is None:
            self.read_soon(model)
        return found

    def read_soon(self, model: str) -> None:
        """Begin to read a model's text side."""
        failed_at = self._failed_at.get(model)
        if not model or model in self._reading or model in self._found:
            return
        if failed_at is None or time.monotonic() - failed_at >= RETRY_SECONDS:
            self._reading[model] = asyncio.create_task(self._read(model))

    def forget(self, model: str) -> None:
        """Read it again at the next request: an upstream has another tokenizer now."""
        self._found.pop(model, None)

    async def wait(self, model: str) -> ModelText | None:
        """The text side of a model, once it is read; None if it cannot be."""
        self.read_soon(model)
        if task := self._reading.get(model):
            await asyncio.shield(task)
        return self._found.get(model)

    async def _read(self, model: str) -> None:
        try:
            found = await self._from_upstream(model) or await self._from_store(model)
        except (QuireError, OSError, ValueError) as error:
            logger.warning("the tokenizer of %s cannot be read: %s", model, getattr(error, "public", error))
            found = None
        finally:
            self._reading.pop(model, None)
        if found is None:
            self._failed_at[model] = time.monotonic()
        else:
            self._found[model] = found
            logger.info("prompts of %s are encoded here (digest %s)", model, found.digest)

    async def _from_upstream(self, model: str) -> ModelText | None:
        for upstream in self._upstreams:
            if upstream.is_quire and upstream.is_ready and upstream.serves(model):
                target = f"/v1/text?model={quote(model, safe='')}"
                try:
                    status, body, _ = await upstream.pool.fetch(
                        "GET", target, upstream.headers(), seconds=FETCH_SECONDS
                    )
                except UpstreamFailed:
                    continue
                if status == 200:
                    return await asyncio.to_thread(partial(_unpack, body))
        return None

    async def _from_store(self, model: str) -> ModelText | None:
        name = self.tokenizers.get(model)
        return None if name is None else await asyncio.to_thread(self._read_text, name)


def _unpack(data: bytes) -> ModelText:
    with tempfile.TemporaryDirectory(prefix="quire-text-") as folder:
        text = ModelText.from_bundle(data, Path(folder))
    assert text.digest  # computed in this thread
    return text
