"""A closed loop over fixed prompts of token ids, whose answers must all be complete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

from quire.bench.load.patterns import ClosedLoop, StopAfter
from quire.bench.load.run_load import EngineClient, run_load
from quire.bench.load.session import LoadRequest, Session, TokenIds
from quire.bench.load.summary import RunConditions, Summary, summarize
from quire.types.errors import QuireError


class IncompleteAnswer(QuireError):
    """A request failed, or its answer has fewer tokens than were requested."""

    code = "incomplete_answer"


@dataclass(frozen=True, slots=True)
class PromptSet:
    """Prompts, each sent once, and how they are sent."""

    prompts: Sequence[TokenIds]
    num_clients: int
    max_tokens: int
    extra_fields: Sequence[Mapping[str, Any]] = field(default=({},))  # of the request bodies, in turn


async def closed_loop(client: EngineClient, load: PromptSet) -> Summary:
    """Send every prompt once and summarize the answers. Raise IncompleteAnswer if one is not as long as requested."""
    requests = (
        LoadRequest(prompt=prompt, max_tokens=load.max_tokens, extra_fields=fields)
        for prompt, fields in zip(load.prompts, cycle(load.extra_fields), strict=False)
    )
    sessions = (Session((request,)) for request in requests)
    pattern = ClosedLoop(load.num_clients)
    results = await run_load(client, sessions, pattern, StopAfter(len(load.prompts)), lambda result: None)
    for result in results:
        if result.error is not None:
            raise IncompleteAnswer(f"A request failed: {result.error}")
        if result.num_tokens != load.max_tokens:
            raise IncompleteAnswer(f"An answer has {result.num_tokens} tokens instead of {load.max_tokens}.")
    return summarize(str(pattern), results, None, RunConditions())
