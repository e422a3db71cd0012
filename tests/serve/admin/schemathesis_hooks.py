"""What schemathesis cannot know of the server of test_openapi.py: its model's name, and what would take long.

schemathesis reads this in its own process.
"""

from __future__ import annotations

from typing import Any

import schemathesis

MODEL = "toy"
MAX_TOKENS = 6
PATIENCE = 60.0  # seconds; a deadline that has passed is a 504, as it should be
LIMITS = {
    "/v1/chat/completions": "max_completion_tokens",
    "/v1/completions": "max_tokens",
    "/v1/responses": "max_output_tokens",
    "/v1/messages": "max_tokens",
}


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """The same, valid or not, with an answer that is short, of a model that there is."""
    body, limit = case.body, LIMITS.get(case.operation.path)
    if not isinstance(body, dict):
        return
    changed: dict[str, Any] = {}
    if isinstance(body.get("model"), str) and body["model"]:
        changed["model"] = MODEL
    if isinstance(body.get("timeout"), int | float) and 0 < body["timeout"] < PATIENCE:
        changed["timeout"] = PATIENCE
    is_absent = limit not in body and case.operation.path != "/v1/messages"  # where it is required
    if limit is not None and (is_absent or _is_more(body.get(limit))):
        changed[limit] = MAX_TOKENS
    case.body = {**body, **changed}


def _is_more(limit: object) -> bool:
    """Than we have time for, though it is a limit that may be given."""
    return type(limit) is int and MAX_TOKENS < limit < 2**31
