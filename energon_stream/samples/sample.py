"""The base of all samples and its decorator, samples without a type, and where samples came from."""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast, dataclass_transform, overload

from energon_stream.errors import ConfigError
from energon_stream.fork import PerProcess
from energon_stream.logs import log_once
from energon_stream.printable import described, printable_line
from energon_stream.samples.tensors import map_tensors

_log = logging.getLogger(__name__)

T = TypeVar("T")
_ABSENT = "not all samples of a batch have %s: the batch has a list of such a part, with None for the others"
_HIDDEN = ("__restore_key__", "__subflavors__", "__sources__")
"""Fields that are not printed."""
_WIDTH, _COMMA = 79, ",\n  "
"""Characters of a printed line, and what is between lines."""


@overload
def edataclass(cls: type[T]) -> type[T]: ...
@overload
def edataclass(cls: None = None) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
def edataclass(cls: type[T] | None = None) -> type[T] | Callable[[type[T]], type[T]]:
    """Decorate a class with ``dataclasses.dataclass(slots=True, kw_only=True)``.

    Keyword-only, so that types with required fields can derive from types with defaults. Slots, so that
    samples are small. Samples and batches take other attributes as well; other classes refuse them. Their
    constructors take ``__tags__`` for ``__subflavors__``, unless the class has a ``__post_init__``.

    Example:
        >>> from energon_stream import Sample, edataclass
        >>> @edataclass
        ... class Label(Sample):
        ...     label: int
        >>> Label(__key__="a", __restore_key__=(), label=3).label
        3
    """
    return _decorated if cls is None else _decorated(cls)


def _decorated(cls: type[T]) -> type[T]:
    has_init = "__init__" in vars(cls)
    made: Any = dataclass(slots=True, kw_only=True)(cls)
    hook, known = getattr(made, "__post_init__", None), made.__dataclass_fields__
    if not has_init and hook is vars(Shown).get("__post_init__", made) and "__tags__" not in known:
        # The same constructor with __tags__ as well. A wrapper around it would double the time of a sample.
        fields: list[Any] = [(entry.name, entry.type, copy(entry)) for entry in dataclasses.fields(made)]
        fields.append(("__tags__", dataclasses.InitVar[Any], None))
        names = {"__post_init__": _take_tags, "__doc__": ""}  # without a text, one would be made
        twin: Any = dataclasses.make_dataclass(
            cls.__name__,
            fields,
            namespace=names,
            repr=False,
            eq=False,
            match_args=False,
            slots=True,
            kw_only=True,
        )
        made.__init__ = twin.__init__
    return cast("type[T]", made)


def _take_tags(value: Any, tags: Any = None) -> None:
    if tags is not None:
        if value.__subflavors__ is not None:
            raise ConfigError("__tags__ and __subflavors__ are both given", hint="__tags__ is the newer name")
        value.__subflavors__ = tags


# Not frozen: a frozen dataclass takes three times as long to construct, and each sample has one.
@dataclass(slots=True, unsafe_hash=True)
class SourceInfo:
    """Place from which a sample was read. Treat it as immutable.

    Attributes:
        dataset_path: URL or path of the dataset.
        index: Number of the sample within its split part.
        shard_name: Path of the shard, relative to the dataset; None for datasets without shards.
        file_names: Full names of the members that were read.

    Example:
        >>> from energon_stream import SourceInfo
        >>> SourceInfo("s3://data/captions", 0, "data-000000.tar", ("00000000.jpg",)).shard_name
        'data-000000.tar'
    """

    dataset_path: str
    index: int | str
    shard_name: str | None
    file_names: tuple[str, ...]


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass instance by name, without copying them."""
    return {entry.name: getattr(value, entry.name) for entry in dataclasses.fields(value)}


def without_tags(fields: dict[str, Any]) -> dict[str, Any]:
    """Name ``__tags__`` by ``__subflavors__``. Raises ConfigError if both are given."""
    if "__tags__" in fields:
        if "__subflavors__" in fields:
            raise ConfigError("__tags__ and __subflavors__ are both given", hint="__tags__ is the newer name")
        fields["__subflavors__"] = fields.pop("__tags__")
    return fields


def _beginning(value: Any) -> str:
    return described(value, items=3, characters=40)


def _in_lines(begin: str, shown: list[str], end: str) -> str:
    text = f"{begin}{', '.join(shown)}{end}"
    if len(text) > _WIDTH:
        text = f"{begin}{_COMMA.join(shown)}{end}"
    return "\n".join(line if len(line) <= _WIDTH else f"{line[:_WIDTH]}…" for line in text.split("\n"))


class Shown:
    """Base of samples and batches, which print their key, forms of tensors, and beginnings of texts.

    Fields are in slots. What a program sets beside them, such as a tag, is in ``__dict__``.
    """

    __subflavors__: Any

    __slots__ = ("__dict__",)

    if not TYPE_CHECKING:  # which would compare those of users with it
        __post_init__ = _take_tags

    @property
    def __tags__(self) -> Any:
        """Newer name of ``__subflavors__``."""
        return self.__subflavors__

    @__tags__.setter
    def __tags__(self, tags: Any) -> None:
        self.__subflavors__ = tags

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        name = "__post_init__"
        own = [base for base in cls.__mro__ if name in vars(base) and base is not Shown]
        if own:  # also of a base after this one, which would not be found otherwise
            setattr(cls, name, vars(own[0])[name])
        cls.__repr__ = cls.__repr__  # type: ignore[method-assign] # else a dataclass gets one with all values

    def __repr__(self) -> str:
        kept = [entry.name for entry in dataclasses.fields(self) if entry.repr and entry.name not in _HIDDEN]  # type: ignore[arg-type]
        shown = [f"{name}={_beginning(getattr(self, name))}" for name in kept]
        return _in_lines(f"{type(self).__name__}(", shown, ")")


@edataclass
class Sample(Shown):
    """Base of all samples. Derive with ``@edataclass`` (or ``@dataclass``) and add fields.

    Attributes:
        __key__: Shard and name, unique within a dataset.
        __restore_key__: Key from which the sample can be made again; the library fills it in.
        __subflavors__: Labels from the dataset's metadata.
        __sources__: Places from which the sample's data was read.

    Example:
        >>> from energon_stream import Sample, edataclass
        >>> @edataclass
        ... class Caption(Sample):
        ...     text: str
        >>> Caption(__key__="a.tar/1", __restore_key__=(), text="a dog").text
        'a dog'
    """

    __key__: str
    __restore_key__: tuple[Any, ...]
    __subflavors__: dict[str, Any] | None = None
    __sources__: tuple[SourceInfo, ...] | None = None

    @classmethod
    def derive_from(cls, base_sample: Sample, **fields: Any) -> Self:
        """Make a sample of this type from the metadata of another sample and the given fields."""
        metadata = {entry.name: getattr(base_sample, entry.name) for entry in dataclasses.fields(Sample)}
        return cls(**{**metadata, **without_tags(fields)})

    @classmethod
    def extend(cls, src: Sample, **fields: Any) -> Self:
        """Make a sample of this type from all fields of another sample and the given fields, which win."""
        return cls(**{**fields_of(src), **without_tags(fields)})

    @classmethod
    def from_joined(cls, *samples: Sample | None, **named_samples: Sample | None) -> Self:
        """Join samples with the same key; None stands for a missing one.

        Key, restore key and subflavors come from the first sample, the sources from all in order. Of the
        other fields, this type's are taken; if several samples have one, the last wins.

        Raises:
            ConfigError: All samples are missing.
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

    def pin_memory(self) -> Self:
        """Return a copy with all tensors, also nested ones, in page-locked memory."""
        return map_tensors(lambda tensor: tensor.pin_memory(), self)


_FROM_PRIMARY = ("__key__", "__restore_key__", "__subflavors__")


class _ShownDict(dict[str, Any]):
    """Base of crude samples and batches, which print in few lines, as others do."""

    def __repr__(self) -> str:
        shown = [f"{name!r}: {_beginning(value)}" for name, value in dict.items(self) if name not in _HIDDEN]
        return _in_lines("{", shown, "}")


class CrudeBatch(_ShownDict):
    """A batch of crude samples: a dict, also to functions of PyTorch that map trees of tensors.

    :func:`crude_batch` makes it. ``torch.compile`` takes no dicts whose class has a ``__new__``.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return crude_batch, (dict(self),)


def crude_batch(fields: Mapping[str, Any]) -> CrudeBatch:
    """Return a batch of crude samples, of which PyTorch knows if it is imported."""
    if "torch" in sys.modules:
        _told.get()
    return CrudeBatch(fields)


def _tell_torch() -> bool:
    from torch.utils import _pytree as tree

    if CrudeBatch not in tree.SUPPORTED_NODES:  # as in a fork of a process that has told it
        tree.register_pytree_node(
            CrudeBatch,
            lambda batch: ([*batch.values()], [*batch]),
            lambda values, names: CrudeBatch(zip(names, values, strict=True)),
            serialized_type_name=f"{CrudeBatch.__module__}.{CrudeBatch.__qualname__}",
            to_dumpable_context=list,
            from_dumpable_context=list,
            flatten_with_keys_fn=lambda batch: (
                [(tree.MappingKey(k), v) for k, v in batch.items()],
                [*batch],
            ),
        )
    return True


_told = PerProcess(_tell_torch)


class CrudeSample(_ShownDict):
    """A sample without a type: a dict of its decoded parts, with ``__key__``, ``__shard__``,
    ``__restore_key__``, ``__subflavors__`` and ``__sources__``.

    A pickled part of an untrusted dataset is in the dict, too. Looking it up raises an error that says how to
    trust the dataset.

    Attributes:
        refused: The error for each part that was not decoded, because the dataset is not trusted.
        stores: File stores that a cooker may use for the sample. They stay in the process that read the
            sample.

    Example:
        >>> from energon_stream import CrudeSample
        >>> sample = CrudeSample(__key__="a.tar/1", txt="a dog")
        >>> sample["txt"]
        'a dog'
    """

    stores: Any = None
    refused: Mapping[str, Exception] = MappingProxyType({})

    def __missing__(self, key: str) -> Any:
        if key == "__tags__":
            return self["__subflavors__"]
        raise self.refused.get(key) or KeyError(key)

    def __contains__(self, key: object) -> bool:
        return (
            super().__contains__(key)
            or key in self.refused
            or (key == "__tags__" and "__subflavors__" in self)
        )

    def get(self, key: str, default: Any = None) -> Any:
        """Return a part, or the default if there is none."""
        try:
            return self[key]
        except KeyError:
            return default

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),), {"refused": dict(self.refused)} if self.refused else None


def with_same_parts(samples: Sequence[T]) -> Sequence[T]:
    """Give crude samples None for parts that only others of them have. Samples of other kinds stay.

    Example:
        >>> with_same_parts([CrudeSample(txt="a"), CrudeSample(txt="b", jpg=1)])[0]
        {'txt': 'a', 'jpg': None}
    """
    if not all(isinstance(sample, CrudeSample) for sample in samples):
        return samples
    rows: Any = samples
    if all(row.keys() == rows[0].keys() for row in rows):
        return samples
    names = dict.fromkeys(name for row in rows for name in row)
    some = [name for name in names if not all(dict.__contains__(row, name) for row in rows)]
    log_once(_log, _ABSENT, ", ".join(map(printable_line, some)))
    filled: Any = [CrudeSample({name: dict.get(row, name) for name in names}) for row in rows]
    return filled  # type: ignore[no-any-return]
