"""Errors of the server, in addition to those of types/errors.py."""

from __future__ import annotations

from collections.abc import Sequence

from quire.store.suggest import did_you_mean
from quire.types.errors import InvalidRequest, QuireError

MAX_SHOWN = 20  # models
MAX_HOST_CHARS = 100


class NoSuchPath(QuireError):
    """There is no endpoint at this path."""

    code = "not_found"
    status = 404

    def __init__(self, path: str) -> None:
        super().__init__(f"There is nothing at {path}: /openapi.json lists what there is.")


class WrongMethod(QuireError):
    """The path exists, but not with this HTTP method."""

    code = "method_not_allowed"
    status = 405

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(f"{method} is not allowed here, only {allowed}.")
        self.allowed = allowed


class BodyTooLarge(QuireError):
    """The body has more bytes than the server accepts."""

    code = "body_too_large"
    status = 413

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"The body is larger than {max_bytes:,} bytes, the limit of this server.")


class BodyTooSlow(QuireError):
    """The body did not arrive in time."""

    code = "body_timeout"
    status = 408

    def __init__(self, seconds: float) -> None:
        super().__init__(f"The body did not arrive within {seconds:g} s.")


class ModelNotServed(InvalidRequest):
    """The request names a model that this server does not have."""

    code = "model_not_found"
    status = 404

    def __init__(self, name: str, served: Sequence[str]) -> None:
        problem = f"The model {name!r} is not served here" if name else "The request names no model"
        shown = " or ".join(served[:MAX_SHOWN]) + (f" or one of {len(served)}" if len(served) > MAX_SHOWN else "")
        hint = did_you_mean(name, served)
        rest = f"choose {shown}.{hint}" if served else "there are no models yet. Fetch one with `quire pull`."
        super().__init__(f"{problem}: {rest}", field="model")


class NoLibrary(QuireError):
    """The server serves no store, so models cannot be changed."""

    code = "no_library"
    status = 501

    def __init__(self) -> None:
        super().__init__(
            "Models cannot be changed over HTTP: this server was started with --only, and serves no store."
        )


class NoSuchBlob(QuireError):
    """A file that is not in the store."""

    code = "blob_not_found"
    status = 404

    def __init__(self, digest: str) -> None:
        super().__init__(f"There is no blob sha256:{digest}.")


class NoRequestLog(QuireError):
    """The server keeps no request log."""

    code = "no_request_log"
    status = 404

    def __init__(self) -> None:
        super().__init__("This server keeps no request log: start it with --request-log FILE.")


class ModelLoading(QuireError):
    """The model is being loaded."""

    code = "model_loading"
    status = 503

    def __init__(self, name: str, retry_after: float) -> None:
        super().__init__(f"The model {name} is still being loaded. Try again in {retry_after:g} s.")
        self.retry_after = retry_after


class NotLoaded(QuireError):
    """The model has no engine now. Its first request loads it."""

    code = "model_not_loaded"
    status = 503
    retry_after = 2.0

    def __init__(self, name: str) -> None:
        super().__init__(f"The model {name} is not loaded: it has neither a cache nor a load. A request loads it.")


class NoRoom(QuireError):
    """Models in use occupy the memory that this one needs."""

    code = "no_room"
    status = 503

    def __init__(self, name: str, seconds: float, retry_after: float) -> None:
        public = f"The model {name} has waited {seconds:g} s for memory that other models use."
        super().__init__(f"{public} Try again in {retry_after:g} s.")
        self.retry_after = retry_after


class ModelTooLarge(QuireError):
    """The model does not fit into the memory budget, even alone."""

    code = "model_too_large"
    status = 507
    may_retry = False

    def __init__(self, name: str, need: tuple[int, int], budget: int, fits: int) -> None:
        context, num_bytes = need
        advice = f"A context of {fits} tokens would fit: set max_context to {fits}, or raise memory_budget."
        if not fits:
            advice = "No context would fit: use a smaller model, or raise memory_budget."
        super().__init__(
            f"The model {name} needs {num_bytes / 1e6:,.0f} MB with a context of {context} tokens, "
            f"and the memory budget is {budget / 1e6:,.0f} MB. {advice}"
        )


class EngineBusy(QuireError):
    """The engine did not answer in time: a step takes too long."""

    code = "engine_busy"
    status = 503
    retry_after = 5.0

    def __init__(self, seconds: float) -> None:
        super().__init__(f"The engine did not answer within {seconds:g} s. Try again later.")


class ShuttingDown(QuireError):
    """The server is shutting down."""

    code = "shutting_down"
    status = 503
    retry_after = 5.0

    def __init__(self) -> None:
        super().__init__("The server is shutting down: send the request to another server, or try again later.")


class Unauthorized(QuireError):
    """The API key is missing or unknown."""

    code = "invalid_api_key"
    status = 401


class Forbidden(QuireError):
    """The API key may not do this."""

    code = "forbidden"
    status = 403


class HostNotAllowed(QuireError):
    """The Host header has a name that this server does not accept."""

    code = "host_not_allowed"
    status = 403
    may_retry = False

    def __init__(self, host: str) -> None:
        shown = host[:MAX_HOST_CHARS]
        super().__init__(
            f"The request is addressed to the host {shown!r}, which is none of this server's names. If that name is "
            "meant to lead here, as behind a proxy, start the server with --allowed-hosts NAME (or QUIRE_ALLOWED_HOSTS)"
            ", or protect it with --api-key."
        )


class QuotaExceeded(QuireError):
    """The API key has reached a limit."""

    code = "rate_limited"
    status = 429

    def __init__(self, public: str, retry_after: float) -> None:
        super().__init__(f"{public} Try again in {retry_after:.1f} s.")
        self.retry_after = retry_after


class FrontFailed(QuireError):
    """A front process cannot be started."""

    code = "front_failed"

    def __init__(self, num_starts: int) -> None:
        super().__init__(f"A front process ended {num_starts} times before it was ready: see the log.")


class InternalError(QuireError):
    """A bug in the server. The log has details, with the request's id."""

    def __init__(self, request_id: str) -> None:
        super().__init__(f"An internal error occurred: see the server's log for the request id {request_id}.")
