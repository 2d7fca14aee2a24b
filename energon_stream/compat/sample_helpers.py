"""Functions and base classes for samples of any form: keys, sources, and text for messages."""

from __future__ import annotations

import dataclasses
from abc import ABC
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar

import yaml

from energon_stream.errors import ConfigError
from energon_stream.imports import LazyModule
from energon_stream.media.file_store import add_source
from energon_stream.samples import Batch, Sample, SourceInfo
from energon_stream.samples.sample import fields_of
from energon_stream.samples.tensors import map_tensors
from energon_stream.task import Cooker

torch: Any = LazyModule("torch")
T = TypeVar("T")


def add_source_info(sample: T, *source_infos: SourceInfo) -> T:
    """Add sources to a sample or dict, and return it."""
    for source in source_infos:
        add_source(sample, source)
    return sample


def get_cooker_need_cache(fn: Callable[..., Any]) -> bool:
    """Return True if a cooker function is called with the loader's cache pool.

    Example:
        >>> from energon_stream import cooker
        >>> get_cooker_need_cache(cooker(need_cache=True)(lambda crude, cache: crude))
        True
    """
    return Cooker(fn).need_cache


def get_cooker_need_primary(fn: Callable[..., Any]) -> bool:
    """Return True if a cooker function is called with the sample's own dataset.

    Example:
        >>> get_cooker_need_primary(lambda crude: crude)
        False
    """
    return Cooker(fn).need_primary


def get_source_info(sample: Any) -> list[SourceInfo] | None:
    """Return the sources of a sample, a dict or a list of them; None if it has no sources."""
    if isinstance(sample, list):
        found = [source for item in sample for source in get_source_info(item) or ()]
    else:
        found = list(_attribute(sample, "__sources__") or ())
    return found or None


def _attribute(sample: Any, name: str) -> Any:
    return sample.get(name) if isinstance(sample, Mapping) else getattr(sample, name, None)


def get_sample_restore_key(sample: Any) -> Any:
    """Return the restore key of a sample or dict; None if it has no key."""
    return _attribute(sample, "__restore_key__")


def add_sample_restore_key(sample: T, *key: int | str, src: Any, fail_otherwise: bool = False) -> T:
    """Put the class of ``src`` and a key before the restore key of a sample or dict, and return it.

    Anything without a restore key stays as it is; with ``fail_otherwise``, it raises ConfigError.
    """
    return _with_key(sample, (type(src).__name__, *key), get_sample_restore_key(sample), fail_otherwise)


def set_sample_restore_key(sample: T, *key: int | str, src: Any, fail_otherwise: bool = False) -> T:
    """Replace the restore key of a sample or dict; see :func:`add_sample_restore_key`."""
    return _with_key(sample, (type(src).__name__, *key), (), fail_otherwise)


def _with_key(sample: T, first: tuple[Any, ...], rest: Any, fail_otherwise: bool) -> T:
    if isinstance(sample, dict) and "__restore_key__" in sample:
        sample["__restore_key__"] = (*first, *rest)
    elif hasattr(sample, "__restore_key__"):
        sample.__restore_key__ = (*first, *rest)
    elif fail_otherwise:
        raise ConfigError(
            f"a stateless function returned {sample!r:.80}, which has no restore key",
            hint="return a sample, or leave out @stateless",
        )
    return sample


def default_get_batch_keys(batch: Any) -> list[str] | None:
    """Return the keys of a batch; None if it has no keys."""
    keys: list[str] | None = _attribute(batch, "__key__")
    return keys


def format_sample_compact(sample: Any, depth: int = 3, max_items: int = 10, max_str_len: int = 50) -> str:
    """Write anything on one line, with long values shortened."""
    options = (depth - 1, max_items, max_str_len)
    if dataclasses.is_dataclass(sample) and not isinstance(sample, type):
        fields = fields_of(sample).items()
        if depth < 1:
            return f"{type(sample).__name__}(...)"
        inner = ", ".join(f"{name}={format_sample_compact(value, *options)}" for name, value in fields)
        return f"{type(sample).__name__}({inner})"
    if isinstance(sample, Mapping):
        if depth < 1:
            return "{...}"
        pairs = list(sample.items())[:max_items]
        return (
            f"{{{', '.join(f'{name}: {format_sample_compact(value, *options)}' for name, value in pairs)}}}"
        )
    if isinstance(sample, (list, tuple)):
        begin, end = "[]" if isinstance(sample, list) else "()"
        if depth < 1:
            return f"{begin}...{end}"
        return begin + ", ".join(format_sample_compact(item, *options) for item in sample[:max_items]) + end
    if isinstance(sample, torch.Tensor):
        return f"Tensor(shape={sample.shape}, dtype={sample.dtype}, device={sample.device})"
    text = str(sample)
    return repr(text if len(text) <= max_str_len else f"{text[:max_str_len]}...")


_SHOWN, _WIDTH = 10, 120


def format_sample_detailed(sample: Any, indent: str = "") -> str:
    """Write anything as YAML, with the range and some values of tensors; ``indent`` begins each line."""
    text = yaml.safe_dump(_plain(sample), sort_keys=False, width=_WIDTH, allow_unicode=True)
    return "\n".join(f"{indent}{line}" for line in text.splitlines())


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {type(value).__name__: {name: _plain(item) for name, item in fields_of(value).items()}}
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        more = [f"... and {len(value) - _SHOWN} more items"] if len(value) > _SHOWN else []
        return [_plain(item) for item in value[:_SHOWN]] + more
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _tensor(value: Any) -> str:
    text = f"Tensor(shape={value.shape}, dtype={value.dtype}, device={value.device}"
    if not value.numel():
        return f"{text})"
    flat = value.flatten().tolist()
    shown = [str(item) for item in flat]
    if len(flat) > 2 * 3:
        shown = [*shown[:3], "...", *shown[-3:]]
    return f"{text}, min={min(flat)}, max={max(flat)}, values=[{', '.join(shown)}])"


class ExtendableDataclassMixin:
    """Gives a dataclass the method ``extend``.

    Example:
        >>> @dataclasses.dataclass
        ... class Point(ExtendableDataclassMixin):
        ...     x: int
        ...     y: int
        >>> Point.extend(Point(1, 2), y=3)
        Point(x=1, y=3)
    """

    __slots__ = ()

    @classmethod
    def extend(cls, src: Any, **kwargs: Any) -> Self:
        """Make an object of this class from the fields of ``src``; ``kwargs`` replace them."""
        return cls(**{**fields_of(src), **kwargs})


class PinMemoryMixin(ABC):  # noqa: B024 # a name to derive from
    """Gives a dataclass the method ``pin_memory``. Samples and batches have it."""

    __slots__ = ()

    def pin_memory(self) -> Self:
        """Return a copy with all tensors in page-locked memory."""
        return map_tensors(lambda tensor: tensor.pin_memory(), self)


PinMemoryMixin.register(Sample)
PinMemoryMixin.register(Batch)


class State(ABC, ExtendableDataclassMixin):  # a name to derive from
    """Base of dataclasses that are a part of a state."""

    __slots__ = ()
