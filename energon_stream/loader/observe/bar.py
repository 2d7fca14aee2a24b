"""A bar beside a training loop, with the rate in samples and the share of waiting."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from tqdm import tqdm

from energon_stream.loader.observe.metrics import Recent

if TYPE_CHECKING:
    from energon_stream.loader.observe.stats import LoaderStats

T = TypeVar("T")

_SECONDS = 1.0
"""Time that the rate and the share of waiting stand for, at least."""


class _Bar(tqdm):  # type: ignore[type-arg] # not generic when it runs
    """A bar that says the rate in samples and the share of waiting. It asks when it is drawn."""

    read: Callable[[], LoaderStats] | None = None
    recent: Recent
    taken_at = 0.0
    text = ""

    @property
    def format_dict(self) -> Any:
        values = dict(super().format_dict)
        if self.read is not None and (now := time.monotonic()) - self.taken_at >= _SECONDS:
            stats, self.taken_at = self.recent.take(self.read()), now
            self.text = f"{stats.samples_per_second:,.0f} samples/s, waiting {stats.waiting:.0%}"
        return {**values, "postfix": self.text}


def progress(
    read: Callable[[], LoaderStats], batches: Iterable[T], total: int | None, options: Mapping[str, Any]
) -> Iterator[T]:
    """Yield batches beside a bar; see :meth:`BasicDataLoader.progress`."""
    with _Bar(total=total, **{"unit": "batch", "disable": None, "dynamic_ncols": True, **options}) as bar:
        bar.read, bar.recent, bar.taken_at = read, Recent(read()), time.monotonic()
        iterator = iter(batches)
        while True:
            try:
                batch = [next(iterator)]
            except StopIteration:
                return
            bar.update()
            yield batch.pop()  # keeps no reference, so the batch is freed as soon as the loop drops it
