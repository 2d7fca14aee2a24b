"""What a recipe hands to a task encoder's ``build_*_datasets``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from inspect import Parameter, signature
from typing import Any

from energon_stream.pipeline import SavableDataset

__all__ = ["DatasetBlendMode", "LoadedDataset", "call_with_accepted"]


class DatasetBlendMode(Enum):
    """How several datasets become one sequence."""

    NONE = "none"
    DATASET_WEIGHT = "dataset_weight"
    SAMPLE_REPETITIONS = "sample_repetitions"


@dataclass(frozen=True, slots=True)
class LoadedDataset:
    """A dataset with its share of a mixture; unpacks as ``(dataset, weight)``, as blending expects it.

    Attributes:
        dataset: The samples.
        weight: Relative weight of a blend; None where repetitions decide.
        repetitions: Passes over the samples in one epoch; None where the weight decides.
        subflavors: Subflavors of all samples, where there is one source.
    """

    dataset: SavableDataset[Any]
    weight: float | None = 1.0
    repetitions: float | None = None
    subflavors: Mapping[str, Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        return iter((self.dataset, self.weight))

    def __len__(self) -> int:
        return 2

    def __getitem__(self, position: int) -> Any:
        return (self.dataset, self.weight)[position]


def call_with_accepted(function: Callable[..., Any], **arguments: Any) -> Any:
    """Call a function with those of the keyword arguments that its signature accepts.

    Older task encoders override ``build_train_datasets`` with fewer parameters.
    """
    parameters = signature(function).parameters
    if all(parameter.kind is not Parameter.VAR_KEYWORD for parameter in parameters.values()):
        arguments = {name: value for name, value in arguments.items() if name in parameters}
    return function(**arguments)
