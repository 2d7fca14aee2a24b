"""Metrics and spans of a loader for OpenTelemetry."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from energon_stream.errors import ConfigError
from energon_stream.imports import of_extra
from energon_stream.loader.observe.metrics import METRICS, Metric

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from energon_stream.loader import BasicDataLoader

with of_extra("otel"):
    from opentelemetry import metrics, trace

_SCOPE = "energon_stream"


def observe_loader(
    loader: BasicDataLoader[Any], name: str = "train", *, meter_provider: MeterProvider | None = None
) -> None:
    """Make a loader's statistics metrics of OpenTelemetry, by observable instruments.

    They are read from ``loader.stats()`` when the metrics are collected, and not otherwise. They go away with
    the loader.

    Args:
        loader: The loader.
        name: Value of the attribute ``loader`` of all metrics. The attribute ``rank`` has the loader's rank.
        meter_provider: Where the instruments are made; None for the global one.

    Raises:
        MissingPackageError: (On import.) ``opentelemetry-api`` is not installed.

    Example:
        >>> from opentelemetry.sdk.metrics import MeterProvider
        >>> from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        >>> from energon_stream import WorkerConfig, get_loader, get_val_dataset
        >>> from energon_stream.integrations.opentelemetry import observe_loader
        >>> dataset = get_val_dataset("captions", batch_size=4, worker_config=WorkerConfig(0, 1, 0))
        >>> loader, reader = get_loader(dataset), InMemoryMetricReader()
        >>> observe_loader(loader, "val", meter_provider=MeterProvider([reader]))
        >>> batches = list(loader)
        >>> found = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
        >>> {metric.name: metric for metric in found}["energon_stream.samples"].data.data_points[0].value
        8
    """
    provider = metrics.get_meter_provider() if meter_provider is None else meter_provider
    meter, reference = provider.get_meter(_SCOPE), weakref.ref(loader)
    for metric in METRICS:
        make = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
        callback = partial(_read, reference, name, metric)
        make(f"{_SCOPE}.{metric.name}", callbacks=[callback], unit=metric.unit, description=metric.text)


def _read(
    reference: weakref.ref[BasicDataLoader[Any]], name: str, metric: Metric, _: metrics.CallbackOptions
) -> Iterator[metrics.Observation]:
    loader = reference()
    if loader is None:
        return
    stats = loader.stats()
    about = {"loader": name, "rank": stats.rank}
    for label, value in metric.read(stats).items():
        yield metrics.Observation(value, {**about, metric.label: label} if metric.label else about)


def send_spans(path: str | os.PathLike[str], *, tracer_provider: TracerProvider | None = None) -> int:
    """Send a trace that :meth:`BasicDataLoader.trace` wrote as spans of OpenTelemetry.

    There is a span for each request, each batch that the loop waited for, and each stretch in which a worker
    did the same, below one span of the whole trace.

    Args:
        path: File of the trace.
        tracer_provider: Where the spans go; None for the global one.

    Returns:
        The number of spans.

    Raises:
        ConfigError: The file is no such trace.

    Example:
        >>> from energon_stream import WorkerConfig, get_loader, get_val_dataset
        >>> from energon_stream.integrations.opentelemetry import send_spans
        >>> dataset = get_val_dataset("captions", batch_size=4, worker_config=WorkerConfig(0, 1, 0))
        >>> loader = get_loader(dataset)
        >>> with loader.trace("trace.json"):
        ...     batches = list(loader)
        >>> send_spans("trace.json") > len(batches)
        True
    """
    try:
        with open(path) as file:
            found = json.load(file)
        begin = found["otherData"]["begin_unix_seconds"]
        events = [event for event in found["traceEvents"] if event["ph"] == "X"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"the trace cannot be read: {error!r:.200}",
            where=os.fspath(path),
            hint="use one of loader.trace()",
        ) from error
    provider = trace.get_tracer_provider() if tracer_provider is None else tracer_provider
    tracer = provider.get_tracer(_SCOPE)

    def at(microseconds: float) -> int:
        return int(1e9 * begin + 1e3 * microseconds)

    first = min((event["ts"] for event in events), default=0.0)
    last = max((event["ts"] + event["dur"] for event in events), default=0.0)
    root = tracer.start_span("trace", start_time=at(first))
    context = trace.set_span_in_context(root)
    for event in events:
        about = {"process.pid": event["pid"], "thread.id": event["tid"]}
        about |= {f"{_SCOPE}.{name}": value for name, value in event["args"].items()}
        name = f"{event['cat']} {event['name']}"
        span = tracer.start_span(name, context, attributes=about, start_time=at(event["ts"]))
        span.end(at(event["ts"] + event["dur"]))
    root.end(at(last))
    return len(events) + 1
