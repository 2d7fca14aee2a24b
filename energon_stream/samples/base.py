"""What all samples have in common, and where they came from."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, TypeVar

from energon_stream.errors import ConfigError
from energon_stream.samples.edataclass import edataclass
from energon_stream.samples.tensors import map_tensors

__all__ = ["CrudeSample", "Sample", "SourceInfo", "fields_of"]

SampleT = TypeVar("SampleT", bound="Sample")


@dataclass(
    slots=True, unsafe_hash=True
)  # a frozen one takes three times as long to make: one for each sample
class SourceInfo:
    """Where a sample was read; a value, not to be changed.

    Attributes:
        dataset_path: URL or path of the dataset.
        index: Number of the sample within its split part.
        shard_name: Path of the shard, relative to the dataset; None where there is none.
        file_names: Full names of the members that were read.
    """

    dataset_path: str
    index: int | str
    shard_name: str | None
    file_names: tuple[str, ...]


def fields_of(value: Any) -> dict[str, Any]:
    """Fields of a dataclass instance by name, not copied."""
    return {entry.name: getattr(value, entry.name) for entry in dataclasses.fields(value)}


@edataclass
class Sample:
    """Base of all samples. Derive with ``@edataclass`` (or ``@dataclass``) and add fields.

    Attributes:
        __key__: Shard and name: unique within a dataset.
        __restore_key__: How the element was made; the library fills it in.
        __subflavors__: What the dataset's metadata says about where the sample belongs.
        __sources__: Where all data of the sample was read.
    """

    __key__: str
    __restore_key__: tuple[Any, ...]
    __subflavors__: dict[str, Any] | None = None
    __sources__: tuple[SourceInfo, ...] | None = None

    @classmethod
    def derive_from(cls: type[SampleT], base_sample: Sample, **fields: Any) -> SampleT:
        """Make a sample of this type with the metadata of another and the given fields."""
        metadata = {entry.name: getattr(base_sample, entry.name) for entry in dataclasses.fields(Sample)}
        return cls(**{**metadata, **fields})

    @classmethod
    def extend(cls: type[SampleT], src: Sample, **fields: Any) -> SampleT:
        """Make a sample of this type with all fields of another; the given ones are added or replaced."""
        return cls(**{**fields_of(src), **fields})

    @classmethod
    def from_joined(cls: type[SampleT], *samples: Sample | None, **named_samples: Sample | None) -> SampleT:
        """Join samples that belong together; a missing partner is None.

        Key, restore key and subflavors come from the first sample, the sources are those of all in
        order. Of the other fields, those that this type has are taken; a later sample's wins.

        Raises:
            ConfigError: There is no sample to join.
        """
        found = [sample for sample in (*samples, *named_samples.values()) if sample is not None]
        if not found:
            raise ConfigError(f"{cls.__name__}.from_joined got no sample")
        own = {entry.name for entry in dataclasses.fields(cls)}
        joined: dict[str, Any] = {}
        for sample in found:
            joined.update((name, value) for name, value in fields_of(sample).items() if name in own)
        sources = tuple(source for sample in found for source in sample.__sources__ or ())
        joined["__sources__"] = sources or None
        return cls.derive_from(found[0], **{k: v for k, v in joined.items() if k not in _FROM_PRIMARY})

    def pin_memory(self: SampleT) -> SampleT:
        """A copy with all tensors in page-locked memory, wherever they are nested."""
        return map_tensors(lambda tensor: tensor.pin_memory(), self)


_FROM_PRIMARY = ("__key__", "__restore_key__", "__subflavors__")


class CrudeSample(dict[str, Any]):
    """A sample without a type: its decoded parts by name.

    Besides the parts it holds ``__key__``, ``__shard__``, ``__restore_key__``, ``__subflavors__`` and
    ``__sources__``.

    Attributes:
        stores: What a cooker may look up for the sample. It stays in the process that read the sample.
    """

    stores: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)
