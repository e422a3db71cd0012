"""Errors between the gateway and an upstream."""

from __future__ import annotations

from quire.types.errors import QuireError


class UpstreamFailed(QuireError):
    """An upstream cannot be reached, does not answer, or sends what is no HTTP."""

    code = "upstream_failed"
    status = 502
    is_unsent = False  # the upstream has surely not seen the request

    def __init__(self, name: str, what: str) -> None:
        super().__init__(f"The upstream {name} {what}.")
        self.what = what


class UpstreamUnreachable(UpstreamFailed):
    """No connection can be made."""

    code = "upstream_unreachable"
    is_unsent = True


class UpstreamSilent(UpstreamFailed):
    """Nothing has come for too long."""

    code = "upstream_silent"
    status = 504
