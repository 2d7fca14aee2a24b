"""Sample types: the library's own by name, and types that users declare or metadata files name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from energon_stream.config.fields import parse_field_map
from energon_stream.config.named_code import import_class, is_own_module, read_class
from energon_stream.errors import MetadataError
from energon_stream.printable import nearest
from energon_stream.samples import METADATA_FIELDS, CrudeSample, Sample, types

SampleType = type[Sample] | type[CrudeSample] | str | Mapping[str, Any]
"""A class, the name of one of the library's, or ``{"__module__": …, "__class__": …}``."""

SAMPLE_TYPES: Mapping[str, type[Sample]] = {
    "Sample": Sample,
    **{name: getattr(types, name) for name in types.__all__},
}

DATASET_CLASSES: Mapping[str, type[Sample] | type[CrudeSample] | None] = {
    "CrudeWebdataset": CrudeSample,
    "StandardWebdatasetFactory": None,
    "DefaultDecoderWebdatasetFactory": None,
    "DefaultGenericWebdatasetFactory": None,
    **{f"{name.removesuffix('Sample')}Webdataset": getattr(types, name) for name in types.__all__},
}
"""Sample type of each dataset class that a file may name; None where the file names the type itself."""


@dataclass(frozen=True, slots=True)
class DeclaredSamples:
    """The samples of a dataset, as the user who names the dataset declares them."""

    document: Mapping[str, Any]  # in the keys of ``dataset.yaml``
    where: str  # place of the declaration, for messages
    typing_only: bool = False  # True if it stands back where the dataset says what its samples are


CRUDE = DeclaredSamples({"__module__": "energon_stream", "__class__": "CrudeWebdataset"}, "no sample_type")
"""Parts by name, for cookers: the samples of tars without any declaration."""


def resolve_sample_type(document: Any, *, trust: bool | None, where: str) -> type[Sample] | type[CrudeSample]:
    """Find the class of a ``sample_type``: ``{__module__: …, __class__: …}``, or the class itself."""
    if isinstance(document, type):
        found: Any = document
        shown = document.__qualname__
    else:
        module, name = read_class(document, where)
        shown = f"{module}.{name}"
        if is_own_module(module):
            known = {**SAMPLE_TYPES, CrudeSample.__name__: CrudeSample}
            if name not in known:
                hint = nearest(name, known)
                raise MetadataError(f"there is no sample type {name!r}", where=where, hint=hint)
            found = known[name]
        else:
            found = import_class(module, name, trust=trust, where=where, base=Sample)
    if isinstance(found, type) and issubclass(found, (Sample, CrudeSample)):
        return found
    raise MetadataError(
        f"{shown} is no sample type",
        where=where,
        hint="derive it from energon_stream.Sample and decorate it with @edataclass",
    )


def check_fields(sample_type: type[Sample], given: Mapping[str, Any], where: str) -> None:
    """Raise MetadataError if a field map names an unknown field of a type, or lacks a required one."""
    own = {e.name: e for e in dataclasses.fields(sample_type) if e.name not in METADATA_FIELDS}
    for name in given:
        if name not in own:
            raise MetadataError(
                f"field_map has {name!r}, which is no field of {sample_type.__name__}",
                where=where,
                hint=nearest(name, own),
            )
    missing = [
        name
        for name, entry in own.items()
        if name not in given
        and entry.init
        and entry.default is dataclasses.MISSING
        and entry.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise MetadataError(
            f"field_map lacks {', '.join(missing)}, which {sample_type.__name__} needs",
            where=where,
            hint="name the part that each of them comes from",
        )


def declare(
    sample_type: SampleType | None, field_map: Mapping[str, str] | None, where: str
) -> DeclaredSamples | None:
    """Check a declaration, as far as that needs no import of another package; None without a declaration."""
    if sample_type is None:
        if field_map is not None:
            raise MetadataError(
                "field_map needs a sample_type", where=where, hint="name the type whose fields it fills"
            )
        return None
    found: Any = sample_type
    if isinstance(sample_type, str):
        found = {"__module__": "energon_stream", "__class__": sample_type}
    if isinstance(found, type) or is_own_module(read_class(found, where)[0]):
        found = resolve_sample_type(found, trust=None, where=where)
        if issubclass(found, CrudeSample):
            if field_map is not None:
                raise MetadataError("CrudeSample has parts and no fields: leave out field_map", where=where)
            return DeclaredSamples(CRUDE.document, where)
        check_fields(found, {access.field: access for access in parse_field_map(field_map, where)}, where)
    else:
        parse_field_map(field_map, where)
    return DeclaredSamples({"sample_type": found, "field_map": field_map}, where)
