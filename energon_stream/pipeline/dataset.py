"""What every dataset node is, and what runs one stream of it.

A *dataset* describes: it is built by the user, holds no position, and may be sent to other processes.
A *node* runs one stream of a dataset: ``next()`` gives an item or ``END``, ``state()`` says in plain
values where it stands. A node is built from a state or from None, so restoring is starting. After
``END`` the next call begins the next pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from energon_stream.errors import ConfigError, StateMismatchError
from energon_stream.pipeline.engine import Engine
from energon_stream.pipeline.node import Context, Item, Node, RestoreKey, State
from energon_stream.worker import WorkerConfig

__all__ = ["SavableDataset", "MultiInput", "Wrapper", "common_config"]

T_co = TypeVar("T_co", covariant=True)


class SavableDataset(ABC, Generic[T_co]):
    """Base of all datasets that users compose.

    Attributes:
        worker_config: The configuration of the job.
        inputs: The datasets this one is made of.
    """

    worker_config: WorkerConfig
    inputs: tuple[SavableDataset[Any], ...] = ()

    @property
    def pass_length(self) -> int:
        """Elements of a pass of the whole job, where pass is sure to follow pass, as virtual epochs do; 0 elsewhere.

        Workers may read on into the next pass then, and the streams' turns go on from one to the next.
        """
        return 0

    @abstractmethod
    def build(self, context: Context, state: State | None) -> Node:
        """Make the node of one stream, at the start or where ``state`` says."""

    @abstractmethod
    def len_stream(self, stream: int) -> int | None:
        """Elements of one pass of a stream; None where it never ends or cannot be known."""

    @abstractmethod
    def restore_many(self, keys: Sequence[RestoreKey], context: Context) -> list[Item]:
        """Make elements again from their keys, reading all they need at once."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """The dataset and what it is made of as plain values; describes, and is fingerprinted."""

    def can_restore_sample(self) -> bool:
        """Whether every function on the way is stateless, so that keys can be turned into elements."""
        return all(dataset.can_restore_sample() for dataset in self.inputs)

    def assert_can_restore(self) -> None:
        """Raise where :meth:`can_restore_sample` is False."""
        if not self.can_restore_sample():
            raise ConfigError(
                f"{type(self).__name__} cannot make samples again from their keys",
                hint="mark the functions of the task encoder with @stateless",
            )

    def len_worker(self, worker: int = 0) -> int:
        """Elements of one pass of all streams of one worker."""
        return self._sum(self.worker_config.worker_streams(worker))

    def len_rank(self) -> int:
        """Elements of one pass of this rank."""
        return self._sum(self.worker_config.streams)

    def _sum(self, streams: Sequence[int]) -> int:
        lengths = [self.len_stream(stream) for stream in streams]
        if None in lengths:
            return self.nominal_length()
        return sum(length for length in lengths if length is not None)

    def nominal_length(self) -> int:
        """A length to show for datasets that never end: that of one pass over what they repeat."""
        return max([dataset.nominal_length() for dataset in self.inputs], default=1)

    def count_readers(self) -> int:
        """Source datasets below, each of which reads ahead on its own."""
        return max(1, sum(dataset.count_readers() for dataset in self.inputs))

    def __len__(self) -> int:
        return self.len_rank()

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[T_co]:
        """Iterate in this process, as a loader without workers does; each call begins anew."""
        engine = Engine(self, list(self.worker_config.streams))
        try:
            while (step := engine.step()) is not None:
                yield step.value
        finally:
            engine.close()


class Wrapper(SavableDataset[T_co]):
    """A dataset made of one other, element by element.

    Args:
        dataset: The inner dataset.
        worker_config: Must agree with the inner dataset's where given.
    """

    kind: ClassVar[str]
    """Name of the operator in restore keys."""

    def __init__(self, dataset: SavableDataset[Any], *, worker_config: WorkerConfig | None = None) -> None:
        self.dataset = dataset
        self.inputs = (dataset,)
        self.worker_config = common_config(self.inputs, worker_config)

    def len_stream(self, stream: int) -> int | None:
        """As many as the inner dataset."""
        return self.dataset.len_stream(stream)

    def restore_many(self, keys: Sequence[RestoreKey], context: Context) -> list[Item]:
        """Elements pass through unchanged."""
        return self.dataset.restore_many(keys, context)

    def config(self) -> dict[str, Any]:
        """This operator and its inner dataset."""
        return {"type": type(self).__name__, **self.options(), "dataset": self.dataset.config()}

    def options(self) -> dict[str, Any]:
        """The operator's own options as plain values."""
        return {}


class MultiInput(SavableDataset[T_co]):
    """A dataset made of several others, one element of one of them at a time.

    Args:
        datasets: The inner datasets.
        worker_config: Must agree with the inner datasets' where given.
    """

    kind: ClassVar[str]

    def __init__(
        self, datasets: Sequence[SavableDataset[Any]], *, worker_config: WorkerConfig | None = None
    ) -> None:
        self.inputs = tuple(datasets)
        self.worker_config = common_config(self.inputs, worker_config)

    def len_stream(self, stream: int) -> int | None:
        """Elements of all together."""
        lengths = [dataset.len_stream(stream) for dataset in self.inputs]
        return None if None in lengths else sum(length for length in lengths if length is not None)

    def nominal_length(self) -> int:
        """Nominal elements of all together."""
        return sum(dataset.nominal_length() for dataset in self.inputs)

    def restore_many(self, keys: Sequence[RestoreKey], context: Context) -> list[Item]:
        """Elements of each inner dataset, all of one at once."""
        found: dict[int, Item] = {}
        for number, dataset in enumerate(self.inputs):
            places = [place for place, key in enumerate(keys) if key[0] == self.kind and key[1] == number]
            if places:
                items = dataset.restore_many([keys[place][2] for place in places], context.child(number))
                found.update(zip(places, (self.label(number, item) for item in items), strict=True))
        if len(found) != len(keys):
            raise StateMismatchError(
                f"some key does not belong to this {type(self).__name__}",
                hint="restore with the pipeline of then",
            )
        return [found[place] for place in range(len(keys))]

    def label(self, number: int, item: Item) -> Item:
        """An inner dataset's item as one of this dataset's."""
        return Item(item.value, (self.kind, number, item.key))

    def config(self) -> dict[str, Any]:
        """This operator and its inner datasets."""
        datasets = [dataset.config() for dataset in self.inputs]
        return {"type": type(self).__name__, **self.options(), "datasets": datasets}

    def options(self) -> dict[str, Any]:
        """The operator's own options as plain values."""
        return {}


def common_config(datasets: Sequence[SavableDataset[Any]], given: WorkerConfig | None) -> WorkerConfig:
    """The one configuration of several datasets.

    Raises:
        ConfigError: They differ, or there is no dataset.
    """
    if not datasets:
        raise ConfigError("a dataset made of other datasets needs at least one of them")
    found = given or datasets[0].worker_config
    for dataset in datasets:
        if dataset.worker_config != found:
            raise ConfigError(
                f"worker configurations differ: {dataset.worker_config.config()} and {found.config()}",
                hint="build all datasets of one pipeline with the same WorkerConfig",
            )
    return found
