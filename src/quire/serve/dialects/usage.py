"""Token counts that are ours, beside those that each API has."""

from __future__ import annotations

from typing import Any

from quire.types.answer import Usage


def own_counts(usage: Usage) -> dict[str, Any]:
    """Output that a grammar forced, and drafted tokens by drafter; each only if there are any."""
    counts: dict[str, Any] = {"forced_tokens": usage.forced} if usage.forced else {}
    if usage.drafts:
        counts["drafts"] = {name: {"drafted": drafted, "accepted": held} for name, drafted, held in usage.drafts}
    return counts
