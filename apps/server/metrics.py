"""What /metrics shows, for Prometheus."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

import edgert

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
TOKENS = (1, 8, 32, 128, 512, 2048, 8192, 32768, 131072)
NOW = ("running", "waiting", "pages_used", "pages_cached", "pages_total")  # fields of Stats that go up and down


class Metrics:
    """Its own registry, so that several servers in one process do not meet."""

    def __init__(self, models: Callable[[], Iterable[tuple[str, edgert.Model]]]) -> None:
        """models: the loaded ones with their names."""
        self._registry = CollectorRegistry()

        def histogram(name: str, meaning: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"edgert_{name}", meaning, ["model"], registry=self._registry, buckets=buckets)

        self._ttft = histogram("time_to_first_token_seconds", "From the request to its first token", SECONDS)
        self._tpot = histogram("time_per_output_token_seconds", "Between tokens after the first", TOKEN_SECONDS)
        self._queue = histogram("queue_seconds", "From the request to the beginning of the work", SECONDS)
        self._prompt = histogram("request_prompt_tokens", "Tokens of a prompt", TOKENS)
        self._answer = histogram("request_generated_tokens", "Tokens of an answer", TOKENS)
        self._ended = Counter("edgert_requests", "Answers by how they ended", ["model", "reason"],
                              registry=self._registry)  # fmt: skip
        self._registry.register(_Engines(models))

    def answered(self, model: str, completion: edgert.Completion) -> None:
        """Count one answer."""
        usage, timings = completion.usage, completion.timings
        self._ended.labels(model, completion.finish_reason).inc()
        self._prompt.labels(model).observe(usage.prompt_tokens)
        self._answer.labels(model).observe(usage.completion_tokens)
        self._queue.labels(model).observe(timings.queued_s)
        if usage.completion_tokens:
            self._ttft.labels(model).observe(timings.queued_s + timings.prompt_s)
        if usage.completion_tokens > 1:
            self._tpot.labels(model).observe(timings.decode_s / (usage.completion_tokens - 1))

    def failed(self, model: str) -> None:
        self._ended.labels(model, "error").inc()

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _Engines(Collector):
    """What each loaded model's engine says of itself, field by field of `edgert.Stats`."""

    def __init__(self, models: Callable[[], Iterable[tuple[str, edgert.Model]]]) -> None:
        self._models = models

    def describe(self) -> Iterable[Metric]:
        return []  # what there is depends on the loaded models

    def collect(self) -> Iterator[Metric]:
        stats = []
        for name, model in self._models():
            with contextlib.suppress(edgert.EdgertError):  # closed at this moment
                stats.append((name, model.stats()))
        for field in dataclasses.fields(edgert.Stats):
            meaning = f"{field.name.replace('_', ' ')} of the engine"
            family: Metric
            if field.name in NOW:
                family = gauge = GaugeMetricFamily(f"edgert_engine_{field.name}", meaning, labels=["model"])
                for name, values in stats:
                    gauge.add_metric([name], getattr(values, field.name))
            else:
                by_reason = any(isinstance(getattr(values, field.name), dict) for _, values in stats)
                labels = ["model", "reason"] if by_reason else ["model"]
                family = counter = CounterMetricFamily(f"edgert_engine_{field.name}", meaning, labels=labels)
                for name, values in stats:
                    value = getattr(values, field.name)
                    for reason, count in value.items() if by_reason else [(None, value)]:
                        counter.add_metric([name, reason] if reason else [name], count)
            yield family
