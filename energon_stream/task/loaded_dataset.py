"""The datasets that a task encoder composes, their shares, and the groups that it packs them in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

from energon_stream.errors import ConfigError
from energon_stream.pipeline import RepeatDataset, SavableDataset

if TYPE_CHECKING:
    from energon_stream.media import FileStore
    from energon_stream.pipeline.packing import BufferSize


class DatasetBlendMode(Enum):
    """The rule by which several datasets become one sequence.

    Attributes:
        NONE: One dataset, or one after the other.
        DATASET_WEIGHT: Weighted draws.
        SAMPLE_REPETITIONS: Each sample comes a number of times in an epoch.

    Example:
        >>> from energon_stream import DatasetBlendMode
        >>> DatasetBlendMode("dataset_weight")
        <DatasetBlendMode.DATASET_WEIGHT: 'dataset_weight'>
    """

    NONE = "none"
    DATASET_WEIGHT = "dataset_weight"
    SAMPLE_REPETITIONS = "sample_repetitions"


@dataclass(frozen=True, slots=True)
class LoadedDataset:
    """A dataset with its share of a mixture; unpacks to ``(dataset, weight)``, for ``BlendDataset``."""

    dataset: SavableDataset[Any]
    weight: float | None = 1.0  # None if repetitions decide
    repetitions: float | None = None  # passes over the samples in one epoch; None if the weight decides
    subflavors: Mapping[str, Any] | None = None  # of all samples, if there is one leaf
    aux: Mapping[str, FileStore[Any]] | None = None  # stores of auxiliary data, if there is one leaf

    def __iter__(self) -> Iterator[Any]:
        return iter((self.dataset, self.weight))

    def __len__(self) -> int:
        return 2

    def with_passes(self) -> LoadedDataset:
        """Return a dataset of repetitions without a weight in this many passes; it weighs their samples."""
        if self.weight is not None or self.repetitions is None:
            return self
        repeated = getattr(self.dataset, "repeated", None)
        if repeated is None:
            dataset: SavableDataset[Any] = RepeatDataset(self.dataset, repeats=self.repetitions)
            return replace(self, dataset=dataset, weight=self.repetitions * len(self.dataset))
        dataset, weight = repeated(self.repetitions)
        return replace(self, dataset=dataset, weight=weight)

    def __getitem__(self, position: int) -> Any:
        return (self.dataset, self.weight)[position]


@dataclass(frozen=True, slots=True)
class PackingGroupConfig:
    """Datasets whose samples are packed together; see ``TaskEncoder.build_packing_groups``.

    Attributes:
        datasets: Some of the datasets.
        packing_buffer_size: As of ``get_train_dataset``; None for no packing.
        shuffle_buffer_size: Samples of the group that are shuffled in memory, if it is another number than
            that of the plan, which shuffles already.

    Example:
        >>> from energon_stream import DefaultTaskEncoder, PackingGroupConfig
        >>> class Apart(DefaultTaskEncoder):
        ...     def build_packing_groups(self, datasets, packing_buffer_size, shuffle_buffer_size):
        ...         return [PackingGroupConfig([each], packing_buffer_size) for each in datasets]
    """

    datasets: Sequence[LoadedDataset]
    packing_buffer_size: BufferSize | None
    shuffle_buffer_size: int | None = None


def group_members(
    made: object, datasets: Sequence[LoadedDataset]
) -> list[tuple[PackingGroupConfig, list[int]]]:
    """Return groups with the places of their datasets. Raises ConfigError unless each is in exactly one."""
    groups: list[Any] = list(made) if isinstance(made, Iterable) else [made]
    hint = "put each of the datasets that it gets into exactly one group, and leave no group empty"
    wrong = {type(group).__name__ for group in groups if not isinstance(group, PackingGroupConfig)}
    if wrong:
        what, hint = ", ".join(sorted(wrong)), "return a list of PackingGroupConfig"
        raise ConfigError(f"build_packing_groups returned {what}", hint=hint)
    places = {id(each): place for place, each in enumerate(datasets)}
    members = [[places.get(id(each), -1) for each in group.datasets] for group in groups]
    if sorted(place for group in members for place in group) != list(range(len(datasets))) or [] in members:
        what = f"groups of {[*map(len, members)]} datasets, of {len(datasets)}"
        raise ConfigError(f"build_packing_groups returned {what}", hint=hint)
    return list(zip(groups, members, strict=True))


def call_with_accepted(function: Callable[..., Any], **arguments: Any) -> Any:
    """Call a function with the keyword arguments that its signature accepts, and leave out the others.

    Task encoders written for older versions override ``build_train_datasets`` with fewer parameters.
    """
    parameters = signature(function).parameters
    if all(parameter.kind is not Parameter.VAR_KEYWORD for parameter in parameters.values()):
        if "blend_weight_unit" in arguments.keys() - parameters.keys():
            what = (
                f"weights are shares of {arguments['blend_weight_unit']!r}, which an override does not take"
            )
            hint = "let it take blend_weight_unit, and pass it on to super()"
            raise ConfigError(what, where=function.__qualname__, hint=hint)
        arguments = {name: value for name, value in arguments.items() if name in parameters}
    return function(**arguments)
