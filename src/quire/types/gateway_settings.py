"""The settings of a gateway, and of servers that join one. They are sections of `config.py:Config`."""

from __future__ import annotations

from dataclasses import dataclass

from quire.types.setting import setting


@dataclass(frozen=True, slots=True)
class JoinConfig:
    """Joining a gateway."""

    join: str | None = setting(
        None, "URL of a gateway that this server registers with, and leaves when it drains. None: no gateway."
    )
    join_key: str | None = setting(None, "API key for that gateway; its key must be an admin's.", secret=True)
    advertise: str | None = setting(
        None, "URL by which the gateway reaches this server. None: http://HOST:PORT, where it listens."
    )
    offered_key: str | None = setting(
        None, "API key, an admin's, with which the gateway calls this server. None: no key.", secret=True
    )


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """The gateway."""

    fleet: str | None = setting(
        None, "YAML file of upstreams, prices and discovery; read again when it changes and at SIGHUP. None: no file."
    )
    upstream_key: str | None = setting(None, "API key for the upstreams of --upstream. None: no key.", secret=True)
    balance: str = setting("cache", "How the replica of a request is chosen: a balancer of gateway/balancers.")
    check_seconds: float = setting(2.0, "Seconds between two health checks of an upstream.", low=0.01)
    check_timeout: float = setting(2.0, "Seconds that a health check may take.", low=0.01)
    load_seconds: float = setting(0.5, "Seconds between two reports of load from a Quire upstream.", low=0.01)
    connect_seconds: float = setting(2.0, "Seconds that a connection to an upstream may take.", low=0.01)
    silence_seconds: float = setting(
        300.0, "Seconds without a byte after which an upstream's answer is taken for lost.", low=0.01
    )
    max_failures: int = setting(5, "Failures in a row after which an upstream gets no requests for a while.", low=1)
    max_retries: int = setting(3, "Most further upstreams that are tried for one request.", low=0)
    retry_share: float = setting(
        0.2,
        "Retries after an upstream's error answer, as a share of all requests. Not limited: replacing a dead one.",
        low=0,
    )
    hedge_seconds: float | None = setting(
        None,
        "Seconds without a first byte after which a request is sent to a second upstream too; the first answer is "
        "used. None: never.",
        low=0.001,
    )
    resume_text: bool = setting(
        False,
        "Continue streams of upstreams that are not Quire too, by asking another one to continue the text. The text "
        "may differ from that of an undisturbed run.",
    )
    wait_seconds: float = setting(5.0, "Seconds that a request waits for an upstream if none can answer.", low=0)
    join_seconds: float = setting(
        15.0, "Seconds without a heartbeat after which a server that joined is removed.", low=0.1
    )
    spend_file: str | None = setting(
        None, "SQLite file of what each API key has spent, for budgets and /v1/spend. None: in memory, until the end."
    )
    audit_log: str | None = setting(None, "File with a JSON line for each request at the gateway. None: no such file.")
