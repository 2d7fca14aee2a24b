"""How much is warmed: which streams, and how many samples of each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from energon_stream.errors import ConfigError
from energon_stream.pipeline.reader_dataset import ReaderDataset
from energon_stream.schedule import RepeatPlan, build_schedule, stream_shares
from energon_stream.worker import WorkerConfig

__all__ = ["Amount", "node_ranks", "samples_of_streams"]


@dataclass(frozen=True, slots=True)
class Amount:
    """Steps, or passes over the data.

    Attributes:
        steps: Batches of each rank; None for ``passes``.
        passes: Passes over the data; it may be a part of one.
        batch_size: Samples of a step; None where samples are not batched, and then a step is one.
        prefetch: Steps of each stream that workers make before they are asked for.
    """

    steps: int | None
    passes: float
    batch_size: int | None
    prefetch: int

    @classmethod
    def of(
        cls,
        steps: int | None,
        epochs: int | None,
        fraction: float | None,
        batch_size: int | None,
        prefetch_factor: int,
    ) -> Amount:
        """What a user says; nothing is a whole pass.

        Raises:
            ConfigError: It is said in two ways, it is nothing, or steps have no size.
        """
        given = {"steps": steps, "epochs": epochs, "fraction": fraction}
        said = {name: value for name, value in given.items() if value is not None}
        if len(said) > 1:
            raise ConfigError(f"{' and '.join(said)} exclude each other", hint="give one of them")
        for name, value in said.items():
            if value <= 0:
                raise ConfigError(f"{name} is {value}", hint="use more than 0")
        if fraction is not None and fraction > 1:
            raise ConfigError(f"fraction is {fraction}", hint="use a share of a pass, up to 1, or epochs")
        if steps is not None and batch_size is None:
            raise ConfigError(
                "steps are counted in samples, and how many a step has is not said",
                hint="give the batch size; where samples are packed or filtered, about how many a step takes",
            )
        if prefetch_factor < 0:
            raise ConfigError(f"prefetch_factor is {prefetch_factor}", hint="use 0 or more")
        # A worker makes one more batch while those that it holds ready wait.
        return cls(steps, float(epochs or fraction or 1), batch_size, prefetch_factor + 1)

    @property
    def step_samples(self) -> int:
        """Samples of a step."""
        return self.batch_size or 1


def node_ranks(config: WorkerConfig, ranks: Sequence[int] | None) -> tuple[int, ...]:
    """The ranks that share the cache, ascending; by default the one of the configuration.

    Raises:
        ConfigError: There are no such ranks.
    """
    chosen = sorted({config.rank} if ranks is None else set(ranks))
    if not chosen or not 0 <= chosen[0] <= chosen[-1] < config.world_size:
        raise ConfigError(
            f"ranks {chosen} are not ranks of world_size {config.world_size}",
            hint="ranks count from 0 to world_size - 1",
        )
    return tuple(chosen)


def samples_of_streams(dataset: ReaderDataset, ranks: Sequence[int], amount: Amount) -> dict[int, int]:
    """Samples of each stream of some ranks, by stream; the streams are in the order of their turns."""
    config = dataset.worker_config
    streams = [stream for stream in range(config.num_streams) if stream % config.world_size in set(ranks)]
    if amount.steps is None:
        return {stream: math.ceil(amount.passes * _pass_length(dataset, stream)) for stream in streams}
    per_rank = config.num_streams // config.world_size
    # A rank's streams take turns, so the first ones may have a step more.
    steps = {stream: -(-(amount.steps - stream // config.world_size) // per_rank) for stream in streams}
    return {stream: max(0, count) * amount.step_samples for stream, count in steps.items()}


def _pass_length(dataset: ReaderDataset, stream: int) -> int:
    """Samples of one pass of a stream; a blend by weights has none, and counts as all that it is drawn from."""
    plan, streams = dataset.plan, dataset.worker_config.num_streams
    if isinstance(plan, RepeatPlan) and plan.repeats is None:
        plan = plan.child
    length = build_schedule(plan, num_streams=streams, stream=stream, key=0).length
    if length is None:
        return sum(last - first for _, first, last in stream_shares(plan, streams, stream))
    return length
