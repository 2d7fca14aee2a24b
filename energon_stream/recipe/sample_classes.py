"""Which class a ``dataset.yaml`` means. Our own are found by name, without importing anything."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from energon_stream.errors import MetadataError
from energon_stream.recipe.user_code import import_class
from energon_stream.samples import METADATA_FIELDS, Sample, types

__all__ = [
    "SAMPLE_TYPES",
    "TYPED_DATASET_CLASSES",
    "check_fields",
    "is_own_module",
    "nearest",
    "read_class",
    "resolve_sample_type",
]

SAMPLE_TYPES: Mapping[str, type[Sample]] = {
    "Sample": Sample,
    **{name: getattr(types, name) for name in types.__all__},
}
"""The library's sample types by name."""

TYPED_DATASET_CLASSES: Mapping[str, type[Sample]] = {
    f"{name.removesuffix('Sample')}Webdataset": getattr(types, name) for name in types.__all__
}
"""The sample type of each dataset class that has one of its own, by the name of the class."""


def is_own_module(module: str) -> bool:
    """Whether a module name of a metadata file means this library."""
    return module.split(".")[0] == "energon_stream" or module.split(".")[:2] == ["megatron", "energon"]


def nearest(name: str, known: Mapping[str, Any]) -> str:
    """A hint that names what was probably meant."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(sorted(known))}"


def read_class(document: Any, where: str) -> tuple[str, str]:
    """Read ``{__module__: …, __class__: …}``.

    Raises:
        MetadataError: Another form.
    """
    if isinstance(document, Mapping) and set(document) == {"__module__", "__class__"}:
        module, name = document["__module__"], document["__class__"]
        if isinstance(module, str) and isinstance(name, str):
            return module, name
    raise MetadataError(
        f"a class is written as __module__ and __class__, not as {document!r:.80}",
        where=where,
        hint="for example {__module__: megatron.energon, __class__: CaptioningSample}",
    )


def resolve_sample_type(document: Any, *, trust: bool | None, where: str) -> type[Sample]:
    """Find the class of a ``sample_type``.

    Args:
        document: ``{__module__: …, __class__: …}``, or the class itself.
        trust: Whether classes of other packages may be imported; None asks the environment, and takes those
            that the user's program has imported.
        where: The metadata file, for messages.

    Raises:
        MetadataError: No such class, or not a sample type.
        UntrustedCodeError: A class of another package, and the dataset is not trusted.
    """
    if isinstance(document, type):
        found, shown = document, document.__qualname__
    else:
        module, name = read_class(document, where)
        if is_own_module(module):
            if name not in SAMPLE_TYPES:
                raise MetadataError(
                    f"there is no sample type {name!r}", where=where, hint=nearest(name, SAMPLE_TYPES)
                )
            return SAMPLE_TYPES[name]
        found, shown = import_class(module, name, trust=trust, where=where, base=Sample), f"{module}.{name}"
    if not (isinstance(found, type) and issubclass(found, Sample)):
        raise MetadataError(
            f"{shown} is no sample type",
            where=where,
            hint="derive it from energon_stream.Sample and decorate it with @edataclass",
        )
    return found


def check_fields(sample_type: type[Sample], given: Mapping[str, Any], where: str) -> None:
    """Check that a field map gives all required fields, and no other ones.

    Raises:
        MetadataError: It does not.
    """
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
            hint="say which part each comes from",
        )
