"""What the server itself counts for each model: how long requests took, their tokens, and how they ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from quire.observe import metrics
from quire.observe.histogram import Histogram
from quire.observe.metrics import MetricSample
from quire.observe.record import Record

FIRST_ERROR_STATUS = 400


class ModelMeters:
    """The counts of one model."""

    def __init__(self) -> None:
        self.gap = Histogram(metrics.GAP_SECONDS)  # added to for every token, by the stream
        self.queue, self.first_token, self.request = (Histogram(metrics.REQUEST_SECONDS) for _ in range(3))
        self.prompt: Counter[str] = Counter(computed=0, cached=0)
        self.output: Counter[str] = Counter(sampled=0, forced=0, drafted=0)
        self.finish_reasons: Counter[str] = Counter()

    def samples(self, model: str) -> Iterator[MetricSample]:
        """Its counts as samples."""
        for metric, histogram in (
            (metrics.QUEUE_TIME, self.queue),
            (metrics.FIRST_TOKEN, self.first_token),
            (metrics.TOKEN_GAP, self.gap),
            (metrics.REQUEST_TIME, self.request),
        ):
            yield MetricSample(metric, histogram.value(), model)
        yield MetricSample(metrics.PROMPT_TOKENS, self.prompt.total(), model)
        yield MetricSample(metrics.OUTPUT_TOKENS, self.output.total(), model)
        for metric, counter in (
            (metrics.PROMPT_SOURCES, self.prompt),
            (metrics.OUTPUT_SOURCES, self.output),
            (metrics.ENDED, self.finish_reasons),
        ):
            yield from (MetricSample(metric, count, model, label) for label, count in sorted(counter.items()))


class Meters:
    """The counts of all models. Used by one thread."""

    def __init__(self) -> None:
        self._models: dict[str, ModelMeters] = {}
        self._refused: Counter[tuple[str, str]] = Counter()  # by model ("" if the request named none) and error code

    def of(self, model: str) -> ModelMeters:
        """The counts of one model."""
        meters = self._models.get(model)
        if meters is None:
            meters = self._models[model] = ModelMeters()
        return meters

    def observe(self, record: Record) -> None:
        """Count a request that has ended."""
        if record.error is not None:
            self._refused[record.model or "", record.error] += 1
        if record.model is None or record.submitted is None:
            return
        meters = self.of(record.model)
        meters.prompt["cached"] += record.cached_tokens
        meters.prompt["computed"] += record.prompt_tokens - record.cached_tokens
        meters.output["forced"] += record.forced_tokens
        meters.output["drafted"] += record.accepted_drafts
        meters.output["sampled"] += record.output_tokens - record.forced_tokens - record.accepted_drafts
        meters.finish_reasons.update(record.endings)
        if record.first_token is not None:
            meters.queue.add(record.waited)
            meters.first_token.add(record.first_token - record.arrived)
        if record.ended is not None and record.status < FIRST_ERROR_STATUS and record.error is None:
            meters.request.add(record.ended - record.arrived)

    def samples(self) -> Iterator[MetricSample]:
        """All counts as samples."""
        for model, meters in self._models.items():
            yield from meters.samples(model)
        for (model, code), count in sorted(self._refused.items()):
            yield MetricSample(metrics.REFUSED, count, model, code)
