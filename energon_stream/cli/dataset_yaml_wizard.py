"""Content of ``dataset.yaml``: sample types by name, and field maps checked against the tars."""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from energon_stream.config.fields import parse_field_map, parts_of
from energon_stream.config.sample_types import SAMPLE_TYPES, check_fields
from energon_stream.errors import ConfigError
from energon_stream.printable import nearest
from energon_stream.samples import METADATA_FIELDS, Sample

CRUDE = "CrudeWebdataset"
_MODULE = "megatron.energon"  # Megatron-Energon reads it as well
_TYPES: Mapping[str, type[Sample]] = {**SAMPLE_TYPES, Sample.__name__: Sample}
_NOT_OFFERED = frozenset({"VQAOCRSample"})  # Megatron-Energon does not export it

SAMPLE_LOADER = '''\
# Edit this file. Only loaders that trust the dataset's code execute it.


def sample_loader(raw: dict) -> dict:
    """Turn the parts of a sample into the fields of its type."""
    return dict(
{fields}
    )


def part_filter(part: str) -> bool:
    """Return whether a part is read."""
    return part in {parts!r}
'''


class Field(NamedTuple):
    """A field of a sample type."""

    name: str
    type: str  # as shown to the user
    required: bool  # it has no default


def sample_types() -> list[str]:
    """Return the sample types for ``dataset.yaml``, in the order of the wizard's numbers."""
    return sorted(_TYPES.keys() - _NOT_OFFERED)


def find_sample_type(name: str) -> str:
    """Return the sample type, or ``CrudeWebdataset``, for a name. ``…Webdataset`` is the older spelling."""
    known = {**_TYPES, CRUDE: None}
    for candidate in (name, name.removesuffix("Webdataset") + "Sample"):
        if candidate in known:
            return candidate
    if name in ("Crude", "CrudeSample"):
        return CRUDE
    raise ConfigError(f"no sample type {name!r}", hint=nearest(name, known))


def sample_fields(sample_type: str) -> list[Field]:
    """Return the fields of a sample type, except the fields that all samples have."""
    kind = _TYPES[sample_type]
    hints = typing.get_type_hints(kind)
    missing = dataclasses.MISSING
    return [
        Field(field.name, str(hints[field.name]), field.default is field.default_factory is missing)
        for field in dataclasses.fields(kind)
        if field.name not in METADATA_FIELDS
    ]


def check_parts(field_map: Mapping[str, Any], parts: Collection[str], where: str) -> None:
    """Check the grammar of a field map, and that each field can come from a part of the tars."""
    for field in parse_field_map(field_map, where):
        wanted = parts_of([field])
        if not wanted & set(parts):
            raise ConfigError(
                f"the tars have no part {' or '.join(map(repr, sorted(wanted)))}",
                where=where,
                hint=f"They have: {', '.join(parts)}.",
            )


def chosen_dataset_yaml(sample_type: str, field_map: str | None, parts: Collection[str]) -> dict[str, Any]:
    """Return the content of ``dataset.yaml`` for the values of ``--sample-type`` and ``--field-map``.

    Raises ConfigError if the field map is not JSON, has unknown fields or lacks some, or names parts that the
    tars do not have.
    """
    name = find_sample_type(sample_type)
    if field_map is None:
        return dataset_yaml(name, None)
    if name == CRUDE:
        raise ConfigError("a crude dataset has no fields", hint="Leave out --field-map.")
    try:
        mapping = json.loads(field_map)
    except ValueError as error:
        raise ConfigError(f"--field-map is not valid JSON: {error}") from error
    check_parts(mapping, parts, "--field-map")
    check_fields(_TYPES[name], mapping, "--field-map")
    return dataset_yaml(name, mapping)


def dataset_yaml(sample_type: str, field_map: Mapping[str, str] | None) -> dict[str, Any]:
    """Return the content of ``dataset.yaml``. Without a field map it refers to ``sample_loader.py``."""
    if sample_type == CRUDE:
        return {"__module__": _MODULE, "__class__": CRUDE}
    document: dict[str, Any] = {"sample_type": {"__module__": _MODULE, "__class__": sample_type}}
    if field_map is not None:
        return {**document, "field_map": dict(field_map)}
    return document | {name: f"sample_loader.py:{name}" for name in ("sample_loader", "part_filter")}
