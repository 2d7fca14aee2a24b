"""The base of all batches, and batching of metadata fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from energon_stream.conventions import conventions
from energon_stream.errors import ConfigError
from energon_stream.imports import LazyModule
from energon_stream.samples.encoded_images import EncodedImages
from energon_stream.samples.sample import Shown, SourceInfo, edataclass, fields_of, without_tags
from energon_stream.samples.tensors import map_tensors, pad_stack

if TYPE_CHECKING:
    import torch
else:
    torch = LazyModule("torch")

_MISSING: Any = object()


def _flat_sources(values: list[Any]) -> Any:
    return tuple(source for value in values for source in value or ()) or None


_METADATA: dict[str, Callable[[list[Any]], Any]] = {
    "__key__": list,
    "__restore_key__": tuple,
    "__subflavors__": list,
    "__sources__": _flat_sources,
}

METADATA_FIELDS = tuple(_METADATA)
"""Metadata fields of every sample and every batch, in order."""


def batch_metadata(name: str, values: list[Any]) -> Any:
    """Batch a metadata field: keys and subflavors become lists, restore keys a tuple, sources a flat one.

    By Megatron-Energon's conventions, sources become a list of those of each sample.
    """
    return values if name == "__sources__" and conventions() == "energon" else _METADATA[name](values)


@edataclass
class Batch(Shown):
    """Base of batches. Derive with ``@edataclass`` (or ``@dataclass``) and add fields.

    Attributes:
        __key__: Keys of the samples.
        __restore_key__: Key from which the batch can be made again; the library fills it in.
        __subflavors__: Subflavors of each sample.
        __sources__: Sources of all samples, in one flat tuple.

    Example:
        >>> import torch
        >>> from energon_stream import Batch, edataclass
        >>> @edataclass
        ... class Tokens(Batch):
        ...     tokens: torch.Tensor
        >>> sample = {"__key__": "a", "__restore_key__": (), "tokens": torch.tensor([1, 2])}
        >>> Tokens.from_samples([sample, sample]).tokens.shape
        torch.Size([2, 2])
    """

    __key__: list[str]
    __restore_key__: tuple[Any, ...]
    __subflavors__: list[dict[str, Any] | None] | None = None
    __sources__: tuple[SourceInfo, ...] | None = None

    @classmethod
    def derive_from(cls, base_batch: Batch, **fields: Any) -> Self:
        """Make a batch of this type from the metadata of another batch and the given fields."""
        metadata = {name: getattr(base_batch, name) for name in _METADATA}
        return cls(**{**metadata, **without_tags(fields)})

    @classmethod
    def from_samples(cls, samples: Sequence[Any], **fields: Any) -> Self:
        """Batch samples: pad tensors with zeros and stack them; make lists of everything else.

        Args:
            samples: At least one sample or dict, all with the fields that this type needs.
            **fields: Fields of the batch that need no batching.

        Raises:
            ConfigError: The samples lack a field that is required.
            SampleError: Tensors of one field differ in dtype or number of dimensions.
        """
        batched: dict[str, Any] = {}
        without_tags(fields)
        for entry in dataclasses.fields(cls):
            name = entry.name
            if name in fields or not entry.init:
                continue
            values = [
                sample.get(name, _MISSING) if isinstance(sample, Mapping) else getattr(sample, name, _MISSING)
                for sample in samples
            ]
            if all(value is not _MISSING for value in values):
                batched[name] = _batch_field(name, values)
            elif entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING:
                raise ConfigError(
                    f"field {name!r} of {cls.__name__} is required, but {type(samples[0]).__name__} has no such field",
                    hint="pass it to from_samples as a keyword, or give it a default",
                )
        return cls(**batched, **fields)

    @classmethod
    def extend(cls, src: Batch, **fields: Any) -> Self:
        """Make a batch of this type from all fields of another batch and the given fields, which win."""
        return cls(**{**fields_of(src), **without_tags(fields)})

    def pin_memory(self) -> Self:
        """Return a copy with all tensors, also nested ones, in page-locked memory."""
        return map_tensors(lambda tensor: tensor.pin_memory(), self)

    def to_device(self, device: torch.device | str | int, non_blocking: bool = True) -> Self:
        """Return a copy with all tensors on a device. From page-locked memory the copy is asynchronous."""
        return map_tensors(lambda tensor: tensor.to(device, non_blocking=non_blocking), self)


def _batch_field(name: str, values: list[Any]) -> Any:
    if name in _METADATA:
        return _METADATA[name](values)
    if all(isinstance(value, EncodedImages) for value in values):
        return EncodedImages.joined(values)
    return pad_stack(values) if all(isinstance(value, torch.Tensor) for value in values) else values
