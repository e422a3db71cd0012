"""The response object and its items, for whole answers and for events that contain them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from quire.serve.dialects.contract import Reply
from quire.serve.dialects.openai.replies import scores
from quire.serve.dialects.usage import own_counts
from quire.types.answer import Usage
from quire.types.chat import Choice, Ending, ScoredToken
from quire.types.errors import QuireError

Status = Literal["in_progress", "completed", "incomplete"]


class ResponseForm(NamedTuple):
    """What this answer contains."""

    facts: Mapping[str, Any]  # fields of the request that the object repeats
    logprobs: bool = False


def response_object(
    form: ResponseForm, reply: Reply, status: str, output: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The object of a response in progress."""
    used = reply.sampling
    return {
        "id": f"resp_{reply.id}",
        "object": "response",
        "created_at": int(reply.created),
        "completed_at": None,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "model": reply.model,
        "output": output,
        "usage": None,
        **form.facts,
        **({} if used is None else {"temperature": used.temperature, "top_p": used.top_p}),
    }


def finished_object(whole: dict[str, Any], ending: Ending, usage: Usage) -> dict[str, Any]:
    """The object of a finished response. A cancelled one has the output so far."""
    more: dict[str, Any] = {"usage": usage_fields(usage), "status": "completed"}
    if ending is Ending.LENGTH:
        more |= {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    elif ending is Ending.CANCELLED:
        more |= {"status": "cancelled"}
    else:
        more |= {"completed_at": int(whole["created_at"] + usage.seconds)}
    return whole | more


def failed_object(whole: dict[str, Any], error: QuireError) -> dict[str, Any]:
    """The object of a failed response. OpenAI has few error codes."""
    code = "rate_limit_exceeded" if error.status == 429 else "invalid_prompt" if error.status < 500 else "server_error"
    return whole | {"status": "failed", "error": {"code": code, "message": error.public}}


def usage_fields(usage: Usage) -> dict[str, Any]:
    """OpenAI's counts, and ours."""
    details = {"reasoning_tokens": usage.reasoning} | own_counts(usage)
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": usage.kept},
        "output_tokens": usage.output,
        "output_tokens_details": details,
        "total_tokens": usage.prompt + usage.output,
    }


def item_status(ending: Ending) -> Status:
    """The status of the last item of an answer."""
    return "incomplete" if ending in (Ending.LENGTH, Ending.CANCELLED) else "completed"


def output_text_part(text: str, scored: Sequence[ScoredToken] = ()) -> dict[str, Any]:
    """The content of a message."""
    return {"type": "output_text", "text": text, "annotations": (), "logprobs": scores(scored)}


def thought_part(text: str) -> dict[str, Any]:
    """The content of a reasoning item."""
    return {"type": "reasoning_text", "text": text}


def message_item(item_id: str, status: Status, content: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A message of the model."""
    return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": content}


def reasoning_item(item_id: str, status: Status, content: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A thought of the model."""
    return {"id": item_id, "type": "reasoning", "status": status, "summary": (), "content": content}


def call_item(item_id: str, status: Status, call: tuple[str, str], arguments: str) -> dict[str, Any]:
    """A call of the model; `call` is its id and the function's name."""
    names = {"call_id": call[0], "name": call[1]}
    return {"id": item_id, "type": "function_call", "status": status, **names, "arguments": arguments}


def output_items(choice: Choice, reply: Reply, logprobs: bool) -> Iterator[dict[str, Any]]:
    """The items of a whole answer. There is at least one, even if it is empty."""
    status, place = item_status(choice.ending), 0
    if choice.reasoning:
        only = not choice.text and not choice.tool_calls
        yield reasoning_item(f"rs_{reply.id}_0", status if only else "completed", (thought_part(choice.reasoning),))
        place = 1
    if choice.text or not (choice.reasoning or choice.tool_calls):
        part = output_text_part(choice.text, choice.text_logprobs if logprobs else ())
        yield message_item(f"msg_{reply.id}_{place}", "completed" if choice.tool_calls else status, (part,))
        place += 1
    for index, call in enumerate(choice.tool_calls, 1):
        is_last = index == len(choice.tool_calls)
        names = (call.id, call.name)
        yield call_item(f"fc_{reply.id}_{place}", status if is_last else "completed", names, call.arguments)
        place += 1
