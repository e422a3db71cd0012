"""The load that an engine reports, from which a gateway estimates when a request would be answered."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What one engine has to do and how fast it is. All rates are measured; 0 means not measured yet.

    Served as JSON by `GET /v1/load`: {"models": {NAME: report, ...}} of the models that are loaded.
    """

    epoch: str = ""  # of the engine process; another one means a restart, and an empty cache
    sequence: int = 0  # of the newest cache event
    num_waiting: int = 0  # requests that have no row yet
    num_running: int = 0  # requests that have a row
    max_rows: int = 0  # requests that can run at once
    waiting_tokens: int = 0  # prompt tokens of waiting requests, without those that are cached
    prompt_tokens: int = 0  # prompt tokens of running requests that are not computed yet
    num_decoding: int = 0  # running requests that generate now
    prompt_rate: float = 0.0  # prompt tokens per second, while prompts are computed
    decode_seconds: float = 0.0  # between two tokens of one stream that runs alone
    decode_row_seconds: float = 0.0  # what each further stream adds to that
    service_seconds: float = 0.0  # average time from a request's admission to its end
    block_tokens: int = 16
    num_blocks: int = 0
    num_free_blocks: int = 0
    num_held_blocks: int = 0  # used by running requests; the others are cached
    computed_tokens: int = 0  # since the start of the engine
    hit_tokens: int = 0  # since the start of the engine: prompt tokens found in the cache
    queried_tokens: int = 0  # since the start of the engine: prompt tokens looked up
    role: str = "both"  # a `types.transfer.Role`
    transfer_port: int = 0  # where other engines fetch KV blocks; 0: it sends none
    token_bytes: int = 0  # KV bytes per token that it sends; 0: it sends none
    receive_rate: float = 0.0  # bytes per second at which it received blocks; 0: not measured yet

    @property
    def backlog_tokens(self) -> int:
        """Prompt tokens to compute before a request that arrives now is computed."""
        return self.waiting_tokens + self.prompt_tokens
