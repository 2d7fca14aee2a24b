"""Metrics of a loader for Prometheus."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from energon_stream.imports import of_extra
from energon_stream.loader import BasicDataLoader
from energon_stream.loader.observe.metrics import METRICS

with of_extra("prometheus"):
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector

_UNITS = {"s": "seconds", "By": "bytes"}


class LoaderCollector(Collector):  # type: ignore[misc]
    """Collects a loader's statistics when Prometheus asks for them.

    They are read from ``loader.stats()``, and go away with the loader.

    Args:
        loader: The loader.
        name: Value of the label ``loader`` of all metrics. The label ``rank`` has the loader's rank.

    Raises:
        MissingPackageError: (On import.) ``prometheus-client`` is not installed.

    Example:
        >>> from prometheus_client import CollectorRegistry
        >>> from energon_stream import WorkerConfig, get_loader, get_val_dataset
        >>> from energon_stream.integrations.prometheus import LoaderCollector
        >>> dataset = get_val_dataset("captions", batch_size=4, worker_config=WorkerConfig(0, 1, 0))
        >>> loader, registry = get_loader(dataset), CollectorRegistry()
        >>> registry.register(LoaderCollector(loader, "val"))
        >>> batches = list(loader)
        >>> registry.get_sample_value("energon_stream_samples_total", {"loader": "val", "rank": "0"})
        8
    """

    def __init__(self, loader: BasicDataLoader[Any], name: str = "train") -> None:
        self._loader, self._name = weakref.ref(loader), name

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        loader = self._loader()
        if loader is None:
            return
        stats = loader.stats()
        for metric in METRICS:
            labels = ["loader", "rank", *([metric.label] if metric.label else [])]
            family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            unit = _UNITS.get(metric.unit, "")
            found = family(f"energon_stream_{metric.name}", metric.text, labels=labels, unit=unit)
            for label, value in metric.read(stats).items():
                about = [self._name, str(stats.rank), *([label] if metric.label else [])]
                found.add_metric(about, value)
            yield found
