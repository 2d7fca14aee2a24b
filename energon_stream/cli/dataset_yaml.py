"""What goes into ``dataset.yaml``: sample types by name and field maps, checked against the tars."""

from __future__ import annotations

import dataclasses
import difflib
import re
import typing
from collections.abc import Collection, Mapping
from typing import Any

from energon_stream import samples
from energon_stream.errors import ConfigError
from energon_stream.samples import Sample

__all__ = [
    "CRUDE",
    "SAMPLE_LOADER",
    "Field",
    "check_access",
    "check_field_map",
    "dataset_yaml",
    "find_sample_type",
    "sample_fields",
    "sample_types",
]

CRUDE = "CrudeWebdataset"
_MODULE = "megatron.energon"  # what Megatron-Energon reads as well
_NOT_OFFERED = frozenset({"VQAOCRSample"})  # not exported by Megatron-Energon
_ACCESS = re.compile(r"([^\[\],]+)((?:\[[^\[\]]+\])*)")

SAMPLE_LOADER = '''\
# Edit this file. It is executed only by loaders that were told to trust the dataset's code.


def sample_loader(raw: dict) -> dict:
    """Turn the parts of a sample into the fields of its type."""
    return dict(
{fields}
    )


def part_filter(part: str) -> bool:
    """Say which parts are to be read."""
    return part in {parts!r}
'''


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """A field of a sample type.

    Attributes:
        name: Its name.
        type: Its type, as shown to the user.
        required: Whether it has no default.
    """

    name: str
    type: str
    required: bool


def sample_types() -> list[str]:
    """Names of the sample types that ``dataset.yaml`` can name, in the order of the wizard's numbers."""
    found = [
        name
        for name in samples.__all__
        if isinstance(kind := getattr(samples, name), type)
        and issubclass(kind, Sample)
        and name not in _NOT_OFFERED
    ]
    return sorted(found)


def find_sample_type(name: str) -> str:
    """The sample type, or ``CrudeWebdataset``, that a name means; ``…Webdataset`` is the older spelling.

    Raises:
        ConfigError: There is none.
    """
    known = [*sample_types(), CRUDE]
    for candidate in (name, name.removesuffix("Webdataset") + "Sample"):
        if candidate in known:
            return candidate
    if name in ("Crude", "CrudeSample"):
        return CRUDE
    near = difflib.get_close_matches(name, known, n=1)
    raise ConfigError(
        f"no sample type {name!r}",
        hint=f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(known)}.",
    )


def sample_fields(sample_type: str) -> list[Field]:
    """Fields of a sample type, without those that all samples have."""
    kind = getattr(samples, sample_type)
    hints = typing.get_type_hints(kind)
    return [
        Field(
            field.name,
            str(hints[field.name]),
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
        )
        for field in dataclasses.fields(kind)
        if not field.name.startswith("__")
    ]


def check_access(access: str, parts: Collection[str]) -> None:
    """Check one entry of a field map, such as ``jpg,png`` or ``json[a][0]``.

    Raises:
        ConfigError: Not of that form, or none of the parts exists.
    """
    names = []
    for alternative in access.split(","):
        match = _ACCESS.fullmatch(alternative.strip())
        if match is None:
            raise ConfigError(
                f"{alternative.strip()!r} is no part", hint="Write jpg, jpg,png or json[field][0]."
            )
        names.append(match[1])
    if not any(name in parts for name in names):
        raise ConfigError(
            f"the tars have no part {' or '.join(map(repr, names))}", hint=f"They have: {', '.join(parts)}."
        )


def check_field_map(sample_type: str, field_map: Mapping[str, str], parts: Collection[str]) -> None:
    """Check a whole field map.

    Raises:
        ConfigError: An unknown or a missing field, or a part that the tars do not have.
    """
    fields = {field.name: field for field in sample_fields(sample_type)}
    for name, access in field_map.items():
        if name not in fields:
            raise ConfigError(
                f"{sample_type} has no field {name!r}", hint=f"Its fields are: {', '.join(fields)}."
            )
        if not isinstance(access, str):
            raise ConfigError(f"the part of field {name!r} is {access!r}, not a text")
        check_access(access, parts)
    for name, field in fields.items():
        if field.required and name not in field_map:
            raise ConfigError(f"the field map lacks {name!r}, which {sample_type} needs")


def dataset_yaml(sample_type: str, field_map: Mapping[str, str] | None) -> dict[str, Any]:
    """Content of ``dataset.yaml``; without a field map it refers to ``sample_loader.py``."""
    if sample_type == CRUDE:
        return {"__module__": _MODULE, "__class__": CRUDE}
    document: dict[str, Any] = {"sample_type": {"__module__": _MODULE, "__class__": sample_type}}
    if field_map is not None:
        return {**document, "field_map": dict(field_map)}
    return {
        **document,
        "sample_loader": "sample_loader.py:sample_loader",
        "part_filter": "sample_loader.py:part_filter",
    }
