"""The amount to prewarm: streams, and the number of samples of each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from energon_stream.errors import ConfigError
from energon_stream.schedule import RepeatPlan, build_schedule, stream_shares

if TYPE_CHECKING:
    from energon_stream.pipeline.reader_dataset import ReaderDataset
    from energon_stream.worker import WorkerConfig


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
            raise ConfigError(
                f"fraction is {fraction}", hint="Use at most 1, or pass epochs for more than one pass."
            )
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


def samples_of_streams(dataset: ReaderDataset, ranks: Sequence[int], amount: Amount) -> dict[int, int]:
    """Return the number of samples of each stream of some ranks, in the order of the rotation."""
    config = dataset.worker_config
    streams = [stream for stream in range(config.num_streams) if stream % config.world_size in set(ranks)]
    if amount.steps is None:
        return {stream: math.ceil(amount.passes * _pass_length(dataset, stream)) for stream in streams}
    per_rank = config.num_streams // config.world_size
    # A rank rotates through its streams, so the first ones may have a step more.
    steps = {stream: -(-(amount.steps - stream // config.world_size) // per_rank) for stream in streams}
    return {stream: max(0, count) * amount.step_samples for stream, count in steps.items()}


def _pass_length(dataset: ReaderDataset, stream: int) -> int:
    """Return the samples of one pass of a stream; for a blend by weights, all samples of its datasets."""
    plan, streams = dataset.plan, dataset.worker_config.num_streams
    if isinstance(plan, RepeatPlan) and plan.repeats is None:
        plan = plan.child
    length = build_schedule(plan, num_streams=streams, stream=stream, key=0).length
    if length is None:
        return sum(last - first for _, first, last in stream_shares(plan, streams, stream))
    return length
