"""What a server measures itself, for each model: how long requests took, what they cost, and how they ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from quire.observe import metrics
from quire.observe.histogram import Histogram
from quire.observe.metrics import Sample
from quire.observe.record import Record

OK = 400  # the first status that means an error


class ModelMeters:
    """One model's."""

    def __init__(self) -> None:
        self.gap = Histogram(metrics.GAP_SECONDS)  # told for every token: whoever hears them has this
        self.queue, self.first_token, self.request = (Histogram(metrics.REQUEST_SECONDS) for _ in range(3))
        self.prompt: Counter[str] = Counter(computed=0, cached=0)
        self.output: Counter[str] = Counter(sampled=0, forced=0, drafted=0)
        self.ended: Counter[str] = Counter()

    def samples(self, model: str) -> Iterator[Sample]:
        """Its numbers."""
        for metric, histogram in (
            (metrics.QUEUE_TIME, self.queue),
            (metrics.FIRST_TOKEN, self.first_token),
            (metrics.TOKEN_GAP, self.gap),
            (metrics.REQUEST_TIME, self.request),
        ):
            yield Sample(metric, histogram.spread(), model)
        yield Sample(metrics.PROMPT_TOKENS, self.prompt.total(), model)
        yield Sample(metrics.OUTPUT_TOKENS, self.output.total(), model)
        for metric, counter in (
            (metrics.PROMPT_SOURCES, self.prompt),
            (metrics.OUTPUT_SOURCES, self.output),
            (metrics.ENDED, self.ended),
        ):
            yield from (Sample(metric, count, model, label) for label, count in sorted(counter.items()))


class Meters:
    """All models'. Used by one thread."""

    def __init__(self) -> None:
        self._models: dict[str, ModelMeters] = {}
        self._refused: Counter[tuple[str, str]] = Counter()  # by model, "" if it concerned none, and by code

    def of(self, model: str) -> ModelMeters:
        """Those of one model."""
        found = self._models.get(model)
        if found is None:
            found = self._models[model] = ModelMeters()
        return found

    def ended(self, record: Record) -> None:
        """An observer: take in what became of a request."""
        if record.error is not None:
            self._refused[record.model or "", record.error] += 1
        if record.model is None or record.submitted is None:
            return
        meters = self.of(record.model)
        meters.prompt["cached"] += record.cached_tokens
        meters.prompt["computed"] += record.prompt_tokens - record.cached_tokens
        meters.output["forced"] += record.forced_tokens
        meters.output["sampled"] += record.output_tokens - record.forced_tokens
        meters.ended.update(record.endings)
        if record.first_token is not None:
            meters.queue.add(record.waited)
            meters.first_token.add(record.first_token - record.arrived)
        if record.ended is not None and record.status < OK and record.error is None:
            meters.request.add(record.ended - record.arrived)

    def samples(self) -> Iterator[Sample]:
        """All numbers."""
        for model, meters in self._models.items():
            yield from meters.samples(model)
        for (model, code), count in sorted(self._refused.items()):
            yield Sample(metrics.REFUSED, count, model, code)
