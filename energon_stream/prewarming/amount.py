"""Samples of streams: of each step that a stream serves, and of the amount to prewarm."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from energon_stream.errors import ConfigError
from energon_stream.schedule import PackedSchedule, RepeatPlan, build_schedule, stream_shares

if TYPE_CHECKING:
    from energon_stream.pipeline.reader_dataset import ReaderDataset
    from energon_stream.schedule import JobPacks, Schedule
    from energon_stream.worker import WorkerConfig


@dataclass(frozen=True, slots=True)
class StreamSteps:
    """The steps of a rank that one of its streams serves.

    Example:
        >>> StreamSteps(8, lanes=2, lane=1).of(16)
        5
        >>> StreamSteps(1, lanes=2, lane=1, ends=[3, 5, 9]).of(8)
        5
    """

    batch_size: int  # samples of a batch; in planned packing, packs
    lanes: int  # streams of the rank
    lane: int  # place of the stream in the rotation
    ends: Sequence[int] | None = None  # samples up to the end of each pack, in planned packing

    def of(self, sample: int) -> int:
        """Return the step of a sample of the stream."""
        done = sample if self.ends is None else bisect_right(self.ends, sample)
        return done // self.batch_size * self.lanes + self.lane

    def before(self, step: int) -> int:
        """Return the number of samples of the stream before a step."""
        count = len(range(self.lane, step, self.lanes)) * self.batch_size
        return count if self.ends is None else samples_of_packs(self.ends, count)


def samples_of_packs(ends: Sequence[int], packs: int) -> int:
    """Return the samples of ``packs`` packs, or of all if there are fewer."""
    return ends[min(packs, len(ends)) - 1] if packs > 0 and len(ends) else 0


def stream_steps(schedule: Schedule, batch_size: int, lanes: int, lane: int, end: int) -> StreamSteps:
    """Return the steps that a stream serves; of planned packs, only those before ``end``."""
    if not isinstance(schedule, PackedSchedule):
        return StreamSteps(batch_size, lanes, lane)
    packs = len(range(lane, end, lanes)) * batch_size
    return StreamSteps(batch_size, lanes, lane, schedule.pack_ends(packs))


@dataclass(frozen=True, slots=True)
class Amount:
    """A number of steps of each rank, or of passes over the data."""

    steps: int | None  # None to use passes
    passes: float
    step_samples: int
    prefetch: int  # steps of each stream that workers make before the training loop wants them

    @classmethod
    def of(
        cls,
        steps: int | None,
        epochs: int | None,
        fraction: float | None,
        batch_size: int | None,
        prefetch_factor: int,
    ) -> Amount:
        """Check the arguments of a user. Without any, the amount is one pass."""
        amounts = {"steps": steps, "epochs": epochs, "fraction": fraction}
        given = {name: value for name, value in amounts.items() if value is not None}
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)} exclude each other", hint="Give only one.")
        for name, value in given.items():
            if value <= 0:
                raise ConfigError(f"{name} is {value}", hint="Use more than 0.")
        if fraction is not None and fraction > 1:
            hint = "Use at most 1, or pass epochs for more than one pass."
            raise ConfigError(f"fraction is {fraction}", hint=hint)
        if steps is not None and batch_size is None:
            raise ConfigError(
                "batch_size is missing: steps are counted in samples",
                hint="Pass batch_size; for packed or filtered samples, about the number a step consumes.",
            )
        if prefetch_factor < 0:
            raise ConfigError(f"prefetch_factor is {prefetch_factor}", hint="Use 0 or more.")
        # While finished batches wait, a worker makes one more.
        return cls(steps, float(epochs or fraction or 1), batch_size or 1, prefetch_factor + 1)


def node_ranks(config: WorkerConfig, ranks: Sequence[int] | None) -> tuple[int, ...]:
    """Return the ranks that share the cache, ascending; by default the rank of the configuration."""
    chosen = sorted({config.rank} if ranks is None else set(ranks))
    if not chosen or not 0 <= chosen[0] <= chosen[-1] < config.world_size:
        raise ConfigError(
            f"ranks {chosen} are not ranks of world_size {config.world_size}",
            hint="Ranks count from 0 to world_size - 1.",
        )
    return tuple(chosen)


class StreamAmount(NamedTuple):
    """Samples of a stream."""

    samples: int  # that training consumes
    made: int  # that may be made: workers prefetch some
    ends: Sequence[int] | None = None  # samples up to the end of each pack, in planned packing


def amounts_of_streams(
    dataset: ReaderDataset, ranks: Sequence[int], amount: Amount
) -> dict[int, StreamAmount]:
    """Return the amounts of the streams of some ranks, in the order of the rotation."""
    config = dataset.worker_config
    streams = [stream for stream in range(config.num_streams) if stream % config.world_size in set(ranks)]
    batches = None
    if amount.steps is not None:
        per_rank = config.num_streams // config.world_size
        # A rank rotates through its streams, so the first ones may have a step more.
        turns = {stream: -(-(amount.steps - stream // config.world_size) // per_rank) for stream in streams}
        batches = {stream: max(0, count) * amount.step_samples for stream, count in turns.items()}
    ahead = amount.prefetch * amount.step_samples
    if dataset.packing is not None:
        schedule = dataset.schedule(0)
        assert isinstance(schedule, PackedSchedule)
        length = 0 if batches else math.ceil(amount.passes * _pass_length(dataset, 1, 0))
        return _amounts_of_packs(schedule.packs, streams, batches, length, ahead)
    passes, count = amount.passes, config.num_streams
    found = batches or {
        each: math.ceil(passes * _pass_length(dataset, count, config.share(each))) for each in streams
    }
    return {stream: StreamAmount(samples, samples + ahead) for stream, samples in found.items()}


def _amounts_of_packs(
    packs: JobPacks, streams: Sequence[int], wanted: Mapping[int, int] | None, length: int, ahead: int
) -> dict[int, StreamAmount]:
    """Return the amounts of streams, of which each wants some packs, and workers prefetch ``ahead``.

    If ``wanted`` is None, it wants those of the windows up to ``length`` references of the job.
    """
    ends: dict[int, list[int]] = {stream: [] for stream in streams}
    dealt = 0
    for window in packs.windows():
        if wanted is None and dealt >= length:
            wanted = {stream: len(own) for stream, own in ends.items()}
        if wanted is not None and all(len(ends[stream]) >= wanted[stream] + ahead for stream in streams):
            break
        for stream, own in ends.items():
            before = own[-1] if own else 0
            own += [before + end for end in window.streams[stream].ends]
        dealt += window.count
    wanted = wanted or {stream: len(own) for stream, own in ends.items()}
    found = {}
    for stream, own in ends.items():
        count = wanted[stream]
        found[stream] = StreamAmount(samples_of_packs(own, count), samples_of_packs(own, count + ahead), own)
    return found


def _pass_length(dataset: ReaderDataset, streams: int, stream: int) -> int:
    """Return the samples of one pass of a stream; for a blend by weights, all samples of its datasets."""
    plan = dataset.plan
    if isinstance(plan, RepeatPlan) and plan.repeats is None:
        plan = plan.child
    length = build_schedule(plan, num_streams=streams, stream=stream, key=0).length
    if length is None:
        return sum(last - first for _, first, last in stream_shares(plan, streams, stream))
    return length
