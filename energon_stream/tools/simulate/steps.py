"""The samples of a step of training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from energon_stream.errors import ConfigError
from energon_stream.prewarming.stream_steps import stream_steps
from energon_stream.schedule import PackedSchedule, skip

if TYPE_CHECKING:
    from energon_stream.pipeline.reader_dataset import ReaderDataset
    from energon_stream.schedule import Refs


_MOST_BEFORE = 10**8
"""Samples of a stream before a step: in a blend, drawing so many takes half a minute."""


def samples_of_step(dataset: ReaderDataset, step: int, batch_size: int) -> Refs:
    """Return the samples of one step, in order; no sample is read.

    Args:
        dataset: The dataset at the bottom of the training, whose configuration names rank and streams. Steps
            of filtered samples, or of those that the encoder packs, consume other numbers of them.
        step: Step of the rank, counted from 0.
        batch_size: Samples of a step; in planned packing, packs.

    Raises:
        ConfigError: The step or the batch size is negative, or there are too many samples before the step.

    Example:
        >>> from energon_stream import WorkerConfig
        >>> from energon_stream.prewarming.job import open_reader_dataset
        >>> config = WorkerConfig(0, 1, 0)
        >>> order = {"batch_size": 4, "shuffle_buffer_size": None, "max_samples_per_sequence": None}
        >>> len(samples_of_step(open_reader_dataset("captions", config, None, order), 1, 4))
        4
    """
    if step < 0 or batch_size < 1:
        raise ConfigError(f"there is no step {step} of {batch_size} samples", hint="count steps from 0")
    streams = list(dataset.worker_config.streams)
    rounds, lane = divmod(step, len(streams))
    left = rounds * batch_size
    if left > _MOST_BEFORE:
        raise ConfigError(
            f"{left:,} samples of the stream come before step {step}",
            hint=f"{_MOST_BEFORE:,} are passed over",
        )
    schedule = dataset.schedule(streams[lane])
    if isinstance(schedule, PackedSchedule):
        steps = stream_steps(schedule, batch_size, len(streams), lane, step + 1)
        first, end = steps.before(step), steps.before(step + 1)
        return schedule.take(schedule.advance(schedule.begin(), first), end - first)[0]
    return schedule.take(skip(schedule, schedule.begin(), left), batch_size)[0]
