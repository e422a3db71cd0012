"""Counters of an engine's transfers, for metrics and gateways."""

from __future__ import annotations

from dataclasses import dataclass, replace

from quire.engine.messages import Counters
from quire.transfer.form import BlockForm
from quire.transfer.receiver import Fetch
from quire.types.load import LoadReport


@dataclass(slots=True)
class TransferTally:
    """Counts since the start. Only the engine's loop changes them."""

    num_fetches: int = 0
    num_failed_fetches: int = 0
    fetched_tokens: int = 0
    sent_tokens: int = 0
    fetch_seconds: float = 0.0
    num_bytes: int = 0
    busy_seconds: float = 0.0

    def add_ended(self, fetch: Fetch) -> None:
        """Add the figures of a fetch that is over."""
        self.fetch_seconds += fetch.seconds
        self.num_bytes += fetch.num_bytes
        self.busy_seconds += fetch.busy_seconds
        self.num_failed_fetches += bool(fetch.error)

    def counted(self, counters: Counters) -> Counters:
        """Return the engine's counters with those of transfers added."""
        return replace(
            counters,
            num_fetches=self.num_fetches,
            num_failed_fetches=self.num_failed_fetches,
            fetched_tokens=self.fetched_tokens,
            sent_tokens=self.sent_tokens,
            fetch_seconds=self.fetch_seconds,
        )

    def reported(self, report: LoadReport, role: str, port: int, form: BlockForm) -> LoadReport:
        """Return a load report with the role and the figures that a gateway needs to estimate transfers."""
        return replace(
            report,
            role=role,
            transfer_port=port,
            token_bytes=-(-form.part_bytes[0] // form.block_tokens),
            receive_rate=self.num_bytes / self.busy_seconds if self.busy_seconds else 0.0,
        )
