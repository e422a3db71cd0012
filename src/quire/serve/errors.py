"""What only a server says to a client: beside those of types/errors.py."""

from __future__ import annotations

from collections.abc import Sequence

from quire.store.suggest import did_you_mean
from quire.types.errors import InvalidRequest, QuireError

MAX_SHOWN = 20  # models
MAX_HOST_CHARS = 100


class NoSuchPath(QuireError):
    """Nothing answers here."""

    code = "not_found"
    status = 404

    def __init__(self, path: str) -> None:
        super().__init__(f"There is nothing at {path}: /openapi.json lists what there is.")


class WrongMethod(QuireError):
    """The path is right, the verb is not."""

    code = "method_not_allowed"
    status = 405

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(f"{method} is not possible here, only {allowed}.")
        self.allowed = allowed


class BodyTooLarge(QuireError):
    """More bytes than the server takes."""

    code = "body_too_large"
    status = 413

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"The body is larger than {max_bytes:,} bytes, the most that this server takes.")


class BodyTooSlow(QuireError):
    """The body did not arrive in time."""

    code = "body_timeout"
    status = 408

    def __init__(self, seconds: float) -> None:
        super().__init__(f"The body did not arrive within {seconds:g} s.")


class ModelNotServed(InvalidRequest):
    """The request names a model that is not here."""

    code = "model_not_found"
    status = 404

    def __init__(self, name: str, served: Sequence[str]) -> None:
        asked = f"The model {name!r} is not served here" if name else "The request names no model"
        shown = " or ".join(served[:MAX_SHOWN]) + (f" or one of {len(served)}" if len(served) > MAX_SHOWN else "")
        hint = did_you_mean(name, served)
        rest = f"choose {shown}.{hint}" if served else "no model is here yet. Fetch one with `quire pull`."
        super().__init__(f"{asked}: {rest}", field="model")


class NoLibrary(QuireError):
    """The server serves what it was started with, and keeps nothing."""

    code = "no_library"
    status = 501

    def __init__(self) -> None:
        super().__init__(
            "This server cannot change what models there are: it was started with --only, and serves no store."
        )


class NoSuchBlob(QuireError):
    """A file that nobody has sent."""

    code = "blob_not_found"
    status = 404

    def __init__(self, digest: str) -> None:
        super().__init__(f"There is no blob sha256:{digest}.")


class NoRequestLog(QuireError):
    """Nobody has asked the server to remember its requests."""

    code = "no_request_log"
    status = 404

    def __init__(self) -> None:
        super().__init__("This server keeps no request log: start it with --request-log FILE.")


class ModelLoading(QuireError):
    """The model will be there soon."""

    code = "model_loading"
    status = 503

    def __init__(self, name: str, retry_after: float) -> None:
        super().__init__(f"The model {name} is still being loaded. Try again in {retry_after:g} s.")
        self.retry_after = retry_after


class NoRoom(QuireError):
    """Models that are in use take the memory that this one needs."""

    code = "no_room"
    status = 503

    def __init__(self, name: str, seconds: float, retry_after: float) -> None:
        public = f"The model {name} has waited {seconds:g} s for memory that others use."
        super().__init__(f"{public} Try again in {retry_after:g} s.")
        self.retry_after = retry_after


class ModelTooLarge(QuireError):
    """The model does not fit into the memory budget, even alone."""

    code = "model_too_large"
    status = 507
    may_retry = False

    def __init__(self, name: str, need: tuple[int, int], budget: int, fits: int) -> None:
        context, num_bytes = need
        way = f"A context of {fits} tokens would fit: set max_context to {fits}, or raise memory_budget."
        if not fits:
            way = "No context would fit: use a smaller model, or raise memory_budget."
        super().__init__(
            f"The model {name} needs {num_bytes / 1e6:,.0f} MB with a context of {context} tokens, "
            f"and the memory budget is {budget / 1e6:,.0f} MB. {way}"
        )


class EngineBusy(QuireError):
    """The engine does not answer a question: its step takes too long."""

    code = "engine_busy"
    status = 503
    retry_after = 5.0

    def __init__(self, seconds: float) -> None:
        super().__init__(f"The engine has not answered within {seconds:g} s. Try again later.")


class ShuttingDown(QuireError):
    """The server ends."""

    code = "shutting_down"
    status = 503
    retry_after = 5.0

    def __init__(self) -> None:
        super().__init__("The server is shutting down: send the request again to another one, or a little later.")


class Unauthorized(QuireError):
    """No key, or one that nobody has."""

    code = "invalid_api_key"
    status = 401


class Forbidden(QuireError):
    """The key may not do this."""

    code = "forbidden"
    status = 403


class HostNotAllowed(QuireError):
    """The Host header has a name that is not this server's."""

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
    """The key has had its share for now."""

    code = "rate_limited"
    status = 429

    def __init__(self, public: str, retry_after: float) -> None:
        super().__init__(f"{public} Try again in {retry_after:.1f} s.")
        self.retry_after = retry_after


class FrontFailed(QuireError):
    """A process of the server cannot be started."""

    code = "front_failed"

    def __init__(self, num_starts: int) -> None:
        super().__init__(f"A front process has died {num_starts} times before it was ready; the log says why.")


class InternalError(QuireError):
    """A bug of ours. What it was, the log says beside the request's id."""

    def __init__(self, request_id: str) -> None:
        super().__init__(f"Something went wrong in the server; its log says what, under the request id {request_id}.")
