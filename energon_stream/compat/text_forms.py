"""Small functions on names, YAML and JSON, under Megatron-Energon's names."""

from __future__ import annotations

import dataclasses
import functools
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from energon_stream.config.fields import parse_field_map
from energon_stream.errors import ConfigError, FieldError
from energon_stream.index import shard_names
from energon_stream.index.info_files import load_document

if TYPE_CHECKING:
    from energon_stream.compat.epath import EPath

F = TypeVar("F", bound=Callable[..., Any])

skip_meta_re: re.Pattern[str] = re.compile(r"__[^/]*__($|/)")
"""Finds names of members that are no parts of samples."""
split_name_re: re.Pattern[str] = re.compile(r"((?:.*/)?[^./]+)[.]([^/]*)")
"""Splits the name of a member into sample key and part name."""
url_regex: re.Pattern[str] = re.compile(r"(?P<protocol>[a-z][a-z0-9+.-]*)://(?P<path>.*)", re.IGNORECASE)
"""Splits a URL into scheme and the rest."""
float_pattern: re.Pattern[str] = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
"""Matches a number with or without a fraction."""

_NUMBERS = re.compile(r"([0-9]+)")


def collapse(strings: Sequence[str], keep_order: bool = False) -> list[str]:
    """Write runs of names that differ in one number as brace patterns.

    With ``keep_order``, only neighbours form a run. Otherwise patterns come first.
    """
    if keep_order:
        return shard_names.collapse(strings)
    patterns = shard_names.collapse(sorted(strings, key=_natural))
    single = set(patterns).intersection(strings)
    return [pattern for pattern in patterns if pattern not in single] + [s for s in strings if s in single]


def _natural(name: str) -> list[tuple[str, int]]:
    pieces = _NUMBERS.split(name)
    return [(text, int(number)) for text, number in zip(pieces[::2], [*pieces[1::2], "0"], strict=True)]


class FieldAccessError(FieldError):
    """A place of a field map does not exist in a value."""


def split_field_access(field_desc: str) -> list[list[str]]:
    """Split a place such as ``json[caption],txt`` into alternatives, and each into its keys."""
    (access,) = parse_field_map({"of fields": field_desc}, field_desc)
    return [[place.part, *place.keys] for place in access.alternatives]


def field_access(value: Any, field: Sequence[Sequence[str]]) -> Any:
    """Return what lies at the first place that exists, of those from :func:`split_field_access`.

    Raises FieldAccessError if no place exists.
    """
    for keys in field:
        try:
            return functools.reduce(_step, keys, value)
        except (KeyError, IndexError, TypeError, ValueError):
            continue
    wanted = " or ".join("".join(f"[{key}]" for key in keys) for keys in field)
    raise FieldAccessError(f"there is no {wanted} in {value!r:.80}")


def _step(value: Any, key: str) -> Any:
    if isinstance(value, Mapping):
        return value[key]
    if isinstance(value, (list, tuple)):
        return value[int(key)]
    raise TypeError(key)


def load_yaml_json(path: EPath) -> Any:
    """Read a mapping from a YAML file, or from a JSON file if the name ends in ``.json``."""
    return load_document(path.read_bytes(), str(path))


def to_json_object(obj: Any) -> Any:
    """Turn dataclasses, dicts, lists and scalars into what JSON can hold. Raises ConfigError for others."""
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        return {field.name: to_json_object(getattr(obj, field.name)) for field in dataclasses.fields(obj)}
    if isinstance(obj, Mapping):
        return {key: to_json_object(value) for key, value in obj.items()}
    if isinstance(obj, (list, tuple)):
        return [to_json_object(value) for value in obj]
    if obj is None or isinstance(obj, (str, int, float, bool)):
        return obj
    raise ConfigError(f"{obj!r:.80} has no form in JSON", hint="use dicts, lists, texts and numbers")


def warn_deprecated(reason: str, stacklevel: int = 2) -> None:
    """Warn that something will go away."""
    warnings.warn(reason, FutureWarning, stacklevel=stacklevel + 1)


def deprecated(reason: str) -> Callable[[F], F]:
    """Have a function warn at each call that it will go away."""

    def mark(function: F) -> F:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            warn_deprecated(f"{function.__qualname__} is deprecated: {reason}", stacklevel=2)
            return function(*args, **kwargs)

        return call  # type: ignore[return-value] # wraps() keeps the signature

    return mark
