"""What the samples of a dataset are, said by whoever names the dataset, where it does not say so itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from energon_stream.errors import MetadataError
from energon_stream.recipe.fields import parse_field_map
from energon_stream.recipe.sample_classes import (
    SAMPLE_TYPES,
    check_fields,
    is_own_module,
    nearest,
    read_class,
    resolve_sample_type,
)
from energon_stream.samples import CrudeSample, Sample

__all__ = ["CRUDE", "DeclaredSamples", "SampleType", "declare"]

SampleType = type[Sample] | type[CrudeSample] | str | Mapping[str, Any]
"""A class, the name of one of the library's, or ``{"__module__": …, "__class__": …}`` as in ``dataset.yaml``."""

_CRUDE = CrudeSample.__name__


@dataclass(frozen=True, slots=True)
class DeclaredSamples:
    """What samples are.

    Attributes:
        document: The same in the keys of ``dataset.yaml``.
        where: Who says so, for messages.
    """

    document: Mapping[str, Any]
    where: str


CRUDE = DeclaredSamples({"__module__": "energon_stream", "__class__": "CrudeWebdataset"}, "no sample_type")
"""Parts by name, for cookers; what samples are where nobody says anything."""


def declare(
    sample_type: SampleType | None, field_map: Mapping[str, str] | None, where: str
) -> DeclaredSamples | None:
    """Check what was said, as far as that takes no import.

    Args:
        sample_type: The type; ``CrudeSample`` for parts by name.
        field_map: As in ``dataset.yaml``; None for crude samples.
        where: Who says so, for messages.

    Returns:
        None if nothing was said.

    Raises:
        MetadataError: No such type, or the field map does not fit it.
    """
    if sample_type is None:
        if field_map is not None:
            raise MetadataError("field_map says nothing without sample_type", where=where)
        return None
    found = _find(sample_type, where)
    if found is CrudeSample:
        if field_map is not None:
            raise MetadataError(f"{_CRUDE} has parts and no fields, so field_map has no place", where=where)
        return DeclaredSamples(CRUDE.document, where)
    fields = parse_field_map(field_map, where)
    if isinstance(found, type):
        check_fields(found, {access.field: access for access in fields}, where)
    return DeclaredSamples({"sample_type": found, "field_map": field_map}, where)


def _find(sample_type: Any, where: str) -> Any:
    """The class; of a class that has to be imported, still its name."""
    if isinstance(sample_type, str):
        sample_type = {"__module__": "energon_stream", "__class__": sample_type}
    if isinstance(sample_type, Mapping):
        module, name = read_class(sample_type, where)
        if not is_own_module(module):
            return sample_type
        if name == _CRUDE:
            return CrudeSample
        if name not in SAMPLE_TYPES:
            known = {**SAMPLE_TYPES, _CRUDE: CrudeSample}
            raise MetadataError(f"there is no sample type {name!r}", where=where, hint=nearest(name, known))
    elif isinstance(sample_type, type) and issubclass(sample_type, CrudeSample):
        return CrudeSample
    return resolve_sample_type(sample_type, trust=None, where=where)
