"""Roles of replicas, sources of KV blocks, and the settings of both."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from quire.types.errors import InvalidRequest
from quire.types.setting import BadSetting, setting

MIN_SECRET = 16  # characters


class Role(StrEnum):
    """What a gateway uses a replica for. Every replica can do both: a role is a preference, never a limit."""

    PREFILL = "prefill"  # computes prompts and sends their KV blocks to other replicas
    DECODE = "decode"  # answers; prefill replicas compute its prompts unless that is estimated to cost much more
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class TransferConfig:
    """Settings of KV block transfers between replicas."""

    role: str = setting(
        "both",
        "What a gateway uses this replica for: prefill (it computes prompts for others), decode (it answers), or both.",
        choices=tuple(Role),
    )
    transfer_secret: str | None = setting(
        None,
        f"Secret that replicas share, of {MIN_SECRET} characters or more: only those with the same one exchange KV "
        "blocks. None: no blocks are sent or fetched.",
        secret=True,
    )
    transfer_host: str = setting(
        "127.0.0.1", "Address on which an engine listens for replicas that fetch blocks; 0.0.0.0: all addresses."
    )
    transfer_port: int = setting(
        0, "Port for that; 0: any free port. A server with several models needs 0.", low=0, high=65535
    )
    transport: str = setting(
        "auto",
        "How the bytes of blocks are sent: tcp, shared_memory (between engines of one host), nixl (RDMA; needs the "
        "package nixl), or auto: the fastest that both sides have, nixl only between GPUs on hosts with RDMA.",
        choices=("auto", "tcp", "shared_memory", "nixl"),
    )
    transfer_patience: float = setting(
        10.0,
        "Seconds without a block, beyond twice the gateway's estimate, after which a replica computes the rest of a "
        "prompt itself.",
        low=0.01,
    )


def check_transfers(config: TransferConfig) -> None:
    """Raise BadSetting if the settings contradict each other."""
    secret = config.transfer_secret
    if secret is None and config.role != Role.BOTH:
        raise BadSetting(
            f"role is {config.role!r}, but transfers of KV blocks are off: set transfer_secret too.",
            field="transfer_secret",
        )
    if secret is not None and len(secret) < MIN_SECRET:
        raise BadSetting(
            f"transfer_secret has {len(secret)} characters; it needs {MIN_SECRET} or more.", field="transfer_secret"
        )


@dataclass(frozen=True, slots=True)
class PrefixSource:
    """Another engine that sends the first blocks of a prompt."""

    host: str
    port: int
    computes: bool = False  # it computes blocks that it has not cached; False: it sends only cached blocks
    num_tokens: int = 0  # prompt tokens whose blocks it sends
    seconds: float = 0.0  # estimated until they have arrived

    def __post_init__(self) -> None:
        if not self.host or not 0 < self.port < 1 << 16 or self.num_tokens < 0 or not 0.0 <= self.seconds < 1e9:
            raise InvalidRequest("The source of a prefix has no valid address or size.", field="prefix_source")
