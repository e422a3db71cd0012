"""Errors that the gateway answers with."""

from __future__ import annotations

from collections.abc import Sequence

from quire.types.errors import InvalidRequest, QuireError

MAX_SHOWN = 20  # models


class NoUpstream(QuireError):
    """No upstream can answer now."""

    code = "no_upstream"
    status = 503
    retry_after = 2.0

    def __init__(self, model: str, num_known: int, why: str) -> None:
        of_model = f" for the model {model}" if model else ""
        known = f"{num_known} upstream{'' if num_known == 1 else 's'} {'is' if num_known == 1 else 'are'} known"
        super().__init__(f"No upstream{of_model} can answer now: {known}{why}. GET /v1/upstreams lists them.")


class ModelNotInFleet(InvalidRequest):
    """No upstream has the model."""

    code = "model_not_found"
    status = 404

    def __init__(self, name: str, models: Sequence[str]) -> None:
        what = f"No upstream has the model {name!r}" if name else "The request names no model"
        shown = ", ".join(models[:MAX_SHOWN]) or "none yet"
        super().__init__(f"{what}: the fleet's models are {shown}.", field="model")


class UpstreamRefusedGateway(QuireError):
    """An upstream does not accept the gateway's key."""

    code = "upstream_refused_gateway"
    status = 502

    def __init__(self, name: str, status: int) -> None:
        super().__init__(f"The upstream {name} answers {status} to the gateway: check the key of this upstream.")


class UpstreamsRefused(QuireError):
    """All upstreams of a model answer with errors; another model of the route may do better."""

    code = "upstreams_refused"
    status = 503

    def __init__(self, name: str, status: int) -> None:
        super().__init__(f"The upstream {name} answers {status}, and no other one can answer.")


class StreamLost(QuireError):
    """An upstream failed in the middle of a stream, and no other could continue it."""

    code = "stream_lost"
    status = 502

    def __init__(self, why: str) -> None:
        super().__init__(f"The answer ends here: {why} Send the request again.")


class NotAtGateway(QuireError):
    """What a single server does and a gateway does not."""

    code = "not_at_gateway"
    status = 501

    def __init__(self, path: str) -> None:
        super().__init__(f"The gateway does not pass on {path}: send it to the server that it is meant for.")
