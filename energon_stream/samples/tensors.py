"""Nested tensors of samples and batches, and joining tensors of unequal shapes."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from energon_stream.errors import SampleError
from energon_stream.imports import LazyModule
from energon_stream.samples.batch_memory import batch_tensor

if TYPE_CHECKING:
    import torch
else:
    torch = LazyModule("torch")

T = TypeVar("T")


def is_namedtuple(value: Any) -> bool:
    """Return whether a value is an instance of a NamedTuple."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], value: T) -> T:
    """Apply a function to all tensors within dicts, lists, tuples and dataclasses, which are copied."""
    return map_values(torch.Tensor, function, value)


def map_values(kind: type[Any], function: Callable[[Any], Any], value: T) -> T:
    """Apply a function to all values of a type within containers, which are copied."""
    mapped: Any = value
    if isinstance(value, kind):
        mapped = function(value)
    elif isinstance(value, dict):
        mapped = copy.copy(value)
        for key, inner in value.items():
            mapped[key] = map_values(kind, function, inner)
    elif is_namedtuple(value):
        mapped = type(value)(*(map_values(kind, function, inner) for inner in value))  # type: ignore[attr-defined]
    elif type(value) in (list, tuple):
        mapped = type(value)(map_values(kind, function, inner) for inner in value)  # type: ignore[attr-defined, call-arg]
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        mapped = copy.copy(value)
        for entry in dataclasses.fields(value):
            # object's setter, because the dataclass may be frozen.
            object.__setattr__(mapped, entry.name, map_values(kind, function, getattr(value, entry.name)))
    return mapped  # type: ignore[no-any-return]


def _largest(tensors: Sequence[torch.Tensor], first_dimension: int) -> list[int]:
    """Return the largest extent of each dimension from ``first_dimension`` on."""
    kinds = {(tensor.ndim, tensor.dtype) for tensor in tensors}
    if len(kinds) != 1 or tensors[0].ndim < first_dimension:
        raise SampleError(
            f"tensors of shapes {[(*tensor.shape,) for tensor in tensors]} and types "
            f"{sorted({str(tensor.dtype) for tensor in tensors})} cannot be joined",
            hint="give them one dtype and one number of dimensions in encode_sample",
        )
    shapes = zip(*(tensor.shape[first_dimension:] for tensor in tensors), strict=True)
    return [max(extents) for extents in shapes]


def pad_stack(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Stack tensors of shapes ``(d1, …)`` to ``(n, max d1, …)``, padded with zeros."""
    largest = _largest(tensors, 0)
    if all(list(tensor.shape) == largest for tensor in tensors):
        return stack(tensors)
    stacked = tensors[0].new_zeros((len(tensors), *largest))
    for row, tensor in zip(stacked, tensors, strict=True):
        row[tuple(slice(extent) for extent in tensor.shape)] = tensor
    return stacked


def stack(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Stack tensors of one shape and dtype, a batch in the memory of batches."""
    first = tensors[0]
    plain = all(type(tensor) is torch.Tensor and tensor.device.type == "cpu" for tensor in tensors)
    if plain and not any(tensor.requires_grad for tensor in tensors):
        made = batch_tensor((len(tensors), *first.shape), first.dtype)
        if made is not None:
            return torch.stack(list(tensors), out=made)
    return torch.stack(list(tensors))


def pad_concat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Join tensors of shapes ``(n_i, d1, …)`` to ``(sum n_i, max d1, …)``, padded with zeros."""
    largest = _largest(tensors, 1)
    if all(list(tensor.shape[1:]) == largest for tensor in tensors):
        return torch.cat(list(tensors))
    joined = tensors[0].new_zeros((sum(len(tensor) for tensor in tensors), *largest))
    begin = 0
    for tensor in tensors:
        place = (slice(begin, begin + len(tensor)), *(slice(extent) for extent in tensor.shape[1:]))
        joined[place] = tensor
        begin += len(tensor)
    return joined
