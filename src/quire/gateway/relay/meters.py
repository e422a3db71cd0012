"""What the gateway counts of itself, beside the counts for each model of `observe/meters.py`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from quire.gateway.upstreams.upstream import Upstream
from quire.observe.metrics import Metric, MetricKind, MetricSample

COUNTER, GAUGE = MetricKind.COUNTER, MetricKind.GAUGE
RETRIES = Metric("quire_gateway_retries", COUNTER, "Requests sent again after an upstream's error answer.")
FAILOVERS = Metric("quire_gateway_failovers", COUNTER, "Attempts that an upstream did not answer.")
HEDGED = Metric("quire_gateway_hedged", COUNTER, "Requests sent to a second upstream before the first answered.")
RESUMED = Metric(
    "quire_gateway_resumed", COUNTER, "Streams that another continued, by the upstream that failed.", label="upstream"
)
READY = Metric("quire_gateway_upstream_ready", GAUGE, "1 if the upstream gets requests.", label="upstream")
OPEN = Metric("quire_gateway_upstream_open", GAUGE, "Requests in progress at the upstream.", label="upstream")
REQUESTS = Metric("quire_gateway_upstream_requests", COUNTER, "Requests sent to the upstream.", label="upstream")
FAILURES = Metric("quire_gateway_upstream_failures", COUNTER, "Requests that the upstream failed.", label="upstream")
SOURCED = Metric(
    "quire_gateway_streams",
    COUNTER,
    "Streams by the source of the prompt's KV: alone (computed by the answering server), cache (another's), prefill.",
    label="source",
)
ESTIMATED = Metric(
    "quire_gateway_estimated_first_token_seconds", COUNTER, "Estimated seconds to first tokens, summed.", label="source"
)
MEASURED = Metric(
    "quire_gateway_measured_first_token_seconds", COUNTER, "Measured seconds to first tokens, summed.", label="source"
)
GATEWAY_METRICS = (RETRIES, FAILOVERS, HEDGED, RESUMED, READY, OPEN, REQUESTS, FAILURES, SOURCED, ESTIMATED, MEASURED)


class GatewayMeters:
    """The counts of one gateway."""

    def __init__(self) -> None:
        self.num_retries = 0
        self.num_failovers = 0
        self.num_hedged = 0
        self._first_tokens: dict[str, tuple[int, float, float]] = {}  # source -> streams, estimated, measured seconds

    def record_first_token(self, source: str, estimated: float, measured: float) -> None:
        """Add a stream's estimated and measured seconds to the first token, by the source of its prompt's KV."""
        count, sum_estimated, sum_measured = self._first_tokens.get(source, (0, 0.0, 0.0))
        self._first_tokens[source] = (count + 1, sum_estimated + estimated, sum_measured + measured)

    def samples(self, upstreams: Iterable[Upstream], now: float) -> Iterator[MetricSample]:
        """All counts as samples."""
        for metric, count in ((RETRIES, self.num_retries), (FAILOVERS, self.num_failovers), (HEDGED, self.num_hedged)):
            yield MetricSample(metric, count, "")
        for source, values in self._first_tokens.items():
            for metric, value in zip((SOURCED, ESTIMATED, MEASURED), values, strict=True):
                yield MetricSample(metric, value, "", source)
        for each in upstreams:
            for metric, value in (
                (READY, int(each.may_serve(now))),
                (OPEN, each.pool.num_busy),
                (REQUESTS, each.num_requests),
                (FAILURES, each.num_failures),
                (RESUMED, each.num_resumed),
            ):
                yield MetricSample(metric, value, "", each.name)
