"""Functions that join samples to batches, and batches to larger batches."""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from energon_stream.conventions import conventions
from energon_stream.errors import ConfigError, SampleError
from energon_stream.imports import LazyModule
from energon_stream.logs import log_once
from energon_stream.media import Lazy
from energon_stream.samples import METADATA_FIELDS, batch_metadata
from energon_stream.samples.encoded_images import EncodedImages
from energon_stream.samples.sample import CrudeBatch, CrudeSample, crude_batch, with_same_parts
from energon_stream.samples.tensors import is_namedtuple, pad_concat, pad_stack, stack

if TYPE_CHECKING:
    import torch
else:
    torch = LazyModule("torch")

_log = logging.getLogger(__name__)

_MIXED = "samples of several types (%s) make a list and no batch: encode_sample can make one type of them"
_MOST_KEYS = 1000
"""Keys of JSON objects that are filled where they are absent; objects by number of a thing have more."""
Join = Callable[[str | None, list[Any]], Any]
"""Joins the values of one field, called with the field's name (None if it has none) and the values."""


def batch_stack(batch: Sequence[torch.Tensor]) -> torch.Tensor:
    """Stack ``n`` tensors of one shape ``(d1, …)`` to ``(n, d1, …)``.

    Raises:
        SampleError: The shapes differ.

    Example:
        >>> import torch
        >>> from energon_stream import batch_stack
        >>> batch_stack([torch.zeros(3), torch.ones(3)]).shape
        torch.Size([2, 3])
    """
    if len({tensor.shape for tensor in batch}) != 1:
        raise SampleError(
            f"tensors of shapes {[(*tensor.shape,) for tensor in batch]} cannot be stacked",
            hint="use batch_pad_stack to pad them, or batch_list to return a list",
        )
    if len({tensor.dtype for tensor in batch}) == 1:
        return stack(batch)
    return torch.stack(list(batch))


def batch_pad_stack(batch: Sequence[torch.Tensor]) -> torch.Tensor:
    """Stack ``n`` tensors of shapes ``(d1, …)`` to ``(n, max d1, …)``, padded with zeros at the ends.

    Raises:
        SampleError: The tensors differ in dtype or in their number of dimensions.

    Example:
        >>> import torch
        >>> from energon_stream import batch_pad_stack
        >>> batch_pad_stack([torch.tensor([1, 2, 3]), torch.tensor([4])])
        tensor([[1, 2, 3],
                [4, 0, 0]])
    """
    return pad_stack(batch)


def batch_list(batch: Sequence[Any]) -> list[Any]:
    """Return the values in a list, without joining them.

    Example:
        >>> from energon_stream import batch_list
        >>> batch_list(("a cat", "a dog"))
        ['a cat', 'a dog']
    """
    return list(batch)


def concat_pad(batch: Sequence[torch.Tensor]) -> torch.Tensor:
    """Join batched tensors ``(n_i, d1, …)`` to ``(sum n_i, max d1, …)``, padded with zeros at the ends.

    Raises:
        SampleError: The tensors are scalars, or differ in dtype or in their number of dimensions.

    Example:
        >>> import torch
        >>> from energon_stream import concat_pad
        >>> concat_pad([torch.zeros(2, 5), torch.zeros(1, 3)]).shape
        torch.Size([3, 5])
    """
    return pad_concat(batch)


def generic_batch(batch: Sequence[Any]) -> Any:
    """Batch samples of any kind.

    Tensors are padded and stacked. Dicts, dataclasses and NamedTuples are batched field by field, to one of
    the same type. Everything else becomes a list. Metadata fields (``__key__``, …) follow
    :func:`batch_metadata`.

    A part that only some crude samples have is None for the others, and so is a key of dicts within a field.

    Raises:
        SampleError: Tensors of one field cannot be stacked, or dicts of the program have different keys.

    Example:
        >>> import torch
        >>> from energon_stream import generic_batch
        >>> samples = [{"ids": torch.tensor([1, 2]), "text": "a"}, {"ids": torch.tensor([3]), "text": "b"}]
        >>> generic_batch(samples)
        {'ids': tensor([[1, 2],
                [3, 0]]), 'text': ['a', 'b']}
    """
    kinds = sorted({type(sample).__name__ for sample in batch})
    if len(kinds) > 1 and (isinstance(batch[0], dict) or dataclasses.is_dataclass(batch[0])):
        log_once(_log, _MIXED, ", ".join(kinds))
    return batch_values(None, list(with_same_parts(batch)))


def generic_concat(batch: Sequence[Any]) -> Any:
    """Join batches of any kind to a larger one.

    Tensors are padded and joined along their first dimension; lists and tuples are joined (under the alias,
    they become a list). Dicts, dataclasses and NamedTuples are joined field by field. None stays None.
    Everything else becomes a list.

    Raises:
        SampleError: Tensors of one field cannot be joined, or dicts have different keys.

    Example:
        >>> from energon_stream import generic_concat
        >>> generic_concat([{"text": ["a", "b"]}, {"text": ["c"]}])
        {'text': ['a', 'b', 'c']}
    """
    return _concat_values(None, list(batch))


def homogeneous_concat_mix(samples: Sequence[Any]) -> Any:
    """Join batches of one type; a ``batch_mix_fn`` for ``MixBatchDataset``.

    Raises:
        ConfigError: The batches have different types.

    Example:
        >>> from energon_stream import homogeneous_concat_mix
        >>> homogeneous_concat_mix([["a"], ["b", "c"]])
        ['a', 'b', 'c']
    """
    kinds = sorted({type(sample).__qualname__ for sample in samples})
    if len(kinds) > 1:
        raise ConfigError(
            f"batches of different types cannot be mixed: {', '.join(kinds)}",
            hint="pass a batch_mix_fn that converts them to one type",
        )
    return generic_concat(samples)


def batch_values(name: str | None, values: list[Any]) -> Any:
    """Batch the values of a field, or whole samples, whose name is None."""
    if name in METADATA_FIELDS:
        return batch_metadata(name, values)
    if all(isinstance(value, torch.Tensor) for value in values):
        return pad_stack(values)
    if all(isinstance(value, EncodedImages) for value in values):
        return EncodedImages.joined(values)
    if name is not None and all(isinstance(value, dict) for value in values):  # as JSON has them
        keys = dict.fromkeys(key for value in values for key in value)
        if len(keys) <= max(_MOST_KEYS, len(values[0])):
            values = [{key: value.get(key) for key in keys} for value in values]
    return _by_field(values, batch_values)


def _concat_values(name: str | None, values: list[Any]) -> Any:
    if conventions() == "energon" and not all(isinstance(value, torch.Tensor) for value in values):
        return _by_field(values, _concat_values)
    present = [value for value in values if value is not None]
    if name in METADATA_FIELDS and not present:
        return None
    if name == "__sources__":
        return tuple(source for sources in present for source in sources)
    if all(isinstance(value, torch.Tensor) for value in values):
        return pad_concat(values)
    for kind in (list, tuple):
        if all(type(value) is kind for value in values):
            return kind(inner for value in values for inner in value)
    return None if not present else _by_field(values, _concat_values)


def _by_field(values: list[Any], join: Join) -> Any:
    """Join the fields of values of one type; values without fields become a list."""
    first = values[0]
    if any(type(value) is not type(first) for value in values):
        return values
    if isinstance(first, dict):
        if some := {key for value in values for key in value.keys() ^ first.keys()}:
            raise SampleError(
                f"dicts with different keys cannot be joined: some have {sorted(map(str, some))}, others not",
                hint="give all samples the same keys in encode_sample or a cooker, or name a sample_type",
            )
        fields = {key: join(key, [value[key] for value in values]) for key in first}
        short = isinstance(first, CrudeSample | CrudeBatch) and conventions() == "own"
        return crude_batch(fields) if short else fields
    if is_namedtuple(first):
        columns = zip(first._fields, zip(*values, strict=True), strict=True)
        return type(first)(*(join(name, list(column)) for name, column in columns))
    if dataclasses.is_dataclass(first) and not isinstance(first, Lazy):
        joined = copy.copy(first)
        for entry in dataclasses.fields(first):
            column = [getattr(value, entry.name) for value in values]
            # The dataclass may be frozen, so its own setter may refuse.
            object.__setattr__(joined, entry.name, join(entry.name, column))
        return joined
    return values
