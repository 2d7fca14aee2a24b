"""Conversion between dataclasses, NamedTuples and dicts by the names of their fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from energon_stream.errors import ConfigError, SampleError
from energon_stream.pipeline.collate import batch_list, batch_values, generic_batch
from energon_stream.samples import METADATA_FIELDS
from energon_stream.samples.sample import fields_of, with_same_parts
from energon_stream.samples.tensors import is_namedtuple

_REQUIRED = object()


def _fields(value: Any) -> dict[str, Any] | None:
    """Return the fields of a value by name; None if it has no fields."""
    if isinstance(value, Mapping):
        return dict(value)
    if is_namedtuple(value):
        return dict(value._asdict())
    return fields_of(value) if dataclasses.is_dataclass(value) else None


def _parameters(result_type: type) -> dict[str, Any] | None:
    """Return the fields of a type with their defaults or ``_REQUIRED``; None for a dict, which takes any."""
    if issubclass(result_type, dict):
        return None
    if issubclass(result_type, tuple) and hasattr(result_type, "_fields"):
        defaults = result_type._field_defaults  # type: ignore[attr-defined]
        return {name: defaults.get(name, _REQUIRED) for name in result_type._fields}
    if dataclasses.is_dataclass(result_type):
        return {
            entry.name: _REQUIRED
            if entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING
            else entry.default
            for entry in dataclasses.fields(result_type)
            if entry.init
        }
    raise ConfigError(
        f"fields cannot be mapped to {result_type.__qualname__}",
        hint="use a dataclass, a NamedTuple or a dict, or override the hook",
    )


def _is_metadata(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")  # older user types have `__subflavor__`, too


def _construct(result_type: type, fields: Mapping[str, Any], source: Any) -> Any:
    """Make a value of a type; other fields are dropped, missing metadata is None."""
    parameters = _parameters(result_type)
    if parameters is None:
        return result_type(fields)
    arguments = {name: fields[name] for name in parameters if name in fields}
    given = type(source).__qualname__
    for name, default in parameters.items():
        if default is _REQUIRED and name not in arguments:
            if not _is_metadata(name):
                raise ConfigError(
                    f"{result_type.__qualname__} needs the field {name!r}, which {given} lacks",
                    where=f"its fields: {', '.join(fields)}",
                    hint="use the same name, give the field a default, or override the hook",
                )
            arguments[name] = None
    return result_type(**arguments)


def convert(value: Any, result_type: type | None) -> Any:
    """Map a sample or batch to another type by field names.

    Fields that the type lacks are dropped. Metadata (``__name__``) that the value lacks is None.
    """
    if result_type is None or type(value) is result_type:
        return value
    fields = _fields(value)
    if fields is None:
        raise ConfigError(
            f"{type(value).__qualname__} has no fields that could be mapped to {result_type.__qualname__}",
            hint="override the hook and make the type there",
        )
    return _construct(result_type, fields, value)


def batch_samples(
    samples: Sequence[Any],
    result_type: type | None,
    actions: Mapping[str, Callable[[list[Any]], Any]] | None = None,
) -> Any:
    """Batch one or more samples field by field.

    ``result_type`` is a dataclass, NamedTuple or dict, or None for the type of the samples. If it has
    ``from_samples``, that is called. ``actions`` batch a field, by its name; ``generic_batch`` the others.
    """
    if any(sample is None for sample in samples):
        raise SampleError("a sample is None", hint="return it from encode_sample, or raise SkipSample there")
    if result_type is None and not actions:
        return generic_batch(samples)
    samples = with_same_parts(samples)
    columns = _columns(samples)
    unknown = [name for name in actions or {} if name not in columns]
    if unknown:
        raise ConfigError(
            f"there are actions for {', '.join(map(repr, unknown))}, which the samples do not have",
            where=f"their fields: {', '.join(columns)}",
            hint="correct the names of the actions",
        )
    target = result_type or type(samples[0])
    parameters = _parameters(target)
    wanted = {name: column for name, column in columns.items() if parameters is None or name in parameters}
    acted = {name: action(wanted[name]) for name, action in (actions or {}).items() if name in wanted}
    if hasattr(target, "from_samples"):
        return target.from_samples(samples, **acted)
    fields = {
        name: acted[name] if name in acted else _batch_column(name, column) for name, column in wanted.items()
    }
    return _construct(target, fields, samples[0])


def _columns(samples: Sequence[Any]) -> dict[str, list[Any]]:
    rows = [_fields(sample) or {} for sample in samples]
    if not rows[0]:
        raise ConfigError(
            f"{type(samples[0]).__qualname__} has no fields that could be batched one by one",
            hint="override batch, or leave out batch types and actions",
        )
    if any(row.keys() != rows[0].keys() for row in rows):
        raise SampleError(
            f"samples with different fields cannot be batched: {sorted({n for row in rows for n in row})}",
            hint="give all samples the same fields in encode_sample",
        )
    return {name: [row[name] for row in rows] for name in rows[0]}


def _batch_column(name: str, column: list[Any]) -> Any:
    if _is_metadata(name) and name not in METADATA_FIELDS:
        return batch_list(column)
    return batch_values(name, column)
