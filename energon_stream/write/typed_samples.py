"""Samples of a type: the parts that their fields become, and what ``dataset.yaml`` says of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from itertools import pairwise
from typing import Any

from energon_stream.config.fields import parse_field_map
from energon_stream.config.named_code import is_own_module
from energon_stream.config.sample_types import SampleType, declare, resolve_sample_type
from energon_stream.errors import ConfigError, SampleError
from energon_stream.read.part_ranges import find_part
from energon_stream.samples import METADATA_FIELDS, CrudeSample
from energon_stream.write.finish import CRUDE

FIELD_MAPS: Mapping[str, Mapping[str, str]] = {
    "CaptioningSample": {"image": "jpg", "caption": "txt"},
    "ImageClassificationSample": {"image": "jpg", "label": "cls"},
    "ImageSample": {"image": "jpg"},
    "TextSample": {"text": "txt"},
}
"""Parts of the fields of a type, if nothing else is said."""


class TypedSamples:
    """The sample type and field map of a writer. Raises what :func:`declare` raises, and ConfigError."""

    def __init__(self, sample_type: SampleType | None, field_map: Mapping[str, str] | None) -> None:
        where = "ShardWriter"
        name = sample_type if isinstance(sample_type, str) else getattr(sample_type, "__name__", "")
        declared = declare(sample_type, field_map or FIELD_MAPS.get(name), where)
        known = {} if declared is None else declared.document
        self.type: Any = resolve_sample_type(known.get("sample_type", CrudeSample), trust=None, where=where)
        self.document: Mapping[str, Any] = CRUDE
        self._fields = parse_field_map(known["field_map"], where) if "field_map" in known else ()
        places = sorted((each.alternatives[0].part, *each.alternatives[0].keys) for each in self._fields)
        if any(other[: len(place)] == place for place, other in pairwise(places)):
            raise ConfigError(
                f"field_map has two fields in the same place: {known['field_map']}", where=where
            )
        if "." in self.type.__qualname__:
            hint = "define it at the top of a module that the training imports"
            raise ConfigError(
                f"{self.type.__qualname__} cannot be imported by readers", where=where, hint=hint
            )
        if self._fields:
            module = self.type.__module__
            module = "megatron.energon" if is_own_module(module) else module
            named = {"__module__": module, "__class__": self.type.__name__}
            self.document = {"sample_type": named, "field_map": dict(known["field_map"])}

    def parts(self, sample: Any) -> dict[str, Any]:
        """Return the parts of an instance. Raises SampleError if a field with a value has no part."""
        parts: dict[str, Any] = {"__key__": sample.__key__}
        places = {each.field: each.alternatives[0] for each in self._fields}
        for entry in dataclasses.fields(sample):
            name, value, inner = entry.name, getattr(sample, entry.name), parts
            if name in places:
                *outer, last = (places[name].part, *places[name].keys)
                for key in outer:
                    inner = inner.setdefault(key, {})
                inner[last] = value
            elif name not in METADATA_FIELDS and value is not None and value is not entry.default:
                problem = f"sample {sample.__key__!r:.80}: field_map has no part for the field {name!r}"
                raise SampleError(problem, hint="name one, or leave the field at None")
        return parts

    def check(self, key: str, parts: Collection[str]) -> None:
        """Raise SampleError if readers would miss a field."""
        for each in self._fields:
            wanted = [access.part for access in each.alternatives]
            if not any(find_part(part, parts) for part in wanted):
                raise SampleError(
                    f"sample {key!r:.80} has the parts {', '.join(parts)}, and none for the field {each.field!r}",
                    hint=f"write {' or '.join(wanted)}, or a {self.type.__name__}",
                )
