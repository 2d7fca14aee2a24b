"""``dataset.yaml``: which samples a dataset has, and options that it sets for whoever loads it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from energon_stream.errors import ConfigError, MetadataError, NotPreparedError
from energon_stream.index.dataset import WebDatasetIndex
from energon_stream.index.metadata import DATASET_CONFIG, META_FOLDER
from energon_stream.index.yaml_io import check_keys
from energon_stream.read.decode import FileStoreDecoder, SampleDecoder
from energon_stream.recipe.declared import CRUDE, DeclaredSamples
from energon_stream.recipe.fields import parse_field_map, parse_parts
from energon_stream.recipe.sample_classes import (
    TYPED_DATASET_CLASSES,
    check_fields,
    is_own_module,
    nearest,
    read_class,
    resolve_sample_type,
)
from energon_stream.recipe.sample_factory import SampleFactory
from energon_stream.recipe.user_code import UserFunction
from energon_stream.samples import Sample
from energon_stream.storage import StoreSpec, is_local, parent_url, run_isolated

__all__ = ["DatasetYamlOptions", "ForeignDescription", "make_sample_factory", "read_dataset_config"]

_SAMPLE_KEYS = ("sample_type", "field_map", "sample_loader", "part_filter", "parts")
_OPTION_TYPES: Mapping[str, tuple[type, ...]] = {
    "split_config": (str,),
    "split_part": (str,),
    "parallel_shard_iters": (int,),
    "max_samples_per_sequence": (int, type(None)),
    "shuffle_over_epochs": (int, type(None)),
    "subset": (Mapping, list),
}
_ORDER_FIELDS = {
    "parallel_shard_iters": "parallel_slices",
    "max_samples_per_sequence": "max_samples_per_sequence",
    "shuffle_over_epochs": "shuffle_over_epochs",
}
_KEYS = ("__module__", "__class__", *_SAMPLE_KEYS, "subflavors", "decoder", *_OPTION_TYPES)

_CRUDE = "CrudeWebdataset"
_GENERIC = ("StandardWebdatasetFactory", "DefaultDecoderWebdatasetFactory", "DefaultGenericWebdatasetFactory")
_FOREIGN_CLASSES = "energon_stream.compat.foreign"
"""Reads dataset classes of other packages. It builds on this package, so it is imported by name, when it is needed."""

_FACTORIES = {name: name for name in (_CRUDE, *_GENERIC, *TYPED_DATASET_CLASSES)}


@dataclass(frozen=True, slots=True)
class DatasetYamlOptions:
    """Options that a dataset sets for whoever loads it.

    Attributes:
        subflavors: Put on each sample; those of a metadataset go on top.
        overrides: The options that it names, by name; they replace the caller's.
    """

    subflavors: Mapping[str, Any] = field(default_factory=dict)
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def order_overrides(self) -> dict[str, Any]:
        """The overrides that are fields of ``OrderSpec``, by the names of these."""
        return {_ORDER_FIELDS[name]: value for name, value in self.overrides.items() if name in _ORDER_FIELDS}


@dataclass(frozen=True, slots=True)
class ForeignDescription:
    """What a dataset class of another package says about its samples.

    Attributes:
        sample_type: Their type; None for crude samples.
        decoder: How parts are decoded; None leaves bytes.
        document: The rest, by the keys of ``dataset.yaml``; functions stand for themselves.
    """

    sample_type: type[Sample] | None
    decoder: FileStoreDecoder | None
    document: Mapping[str, Any]


def make_sample_factory(
    index: WebDatasetIndex,
    *,
    decoder: FileStoreDecoder | None,
    trust: bool | None = None,
    dataset_config: str = DATASET_CONFIG,
    declared: DeclaredSamples | None = None,
) -> tuple[SampleFactory, DatasetYamlOptions]:
    """Find out from an opened dataset how its samples are made.

    Args:
        index: The dataset.
        decoder: Decodes parts, unless ``dataset.yaml`` names a decoder; None leaves them as bytes.
        trust: Whether classes and files that ``dataset.yaml`` names may be imported and run. None:
            whether the environment variable ``ENERGON_STREAM_TRUST_DATASET_CODE`` is 1.
        dataset_config: Name of the file, for messages.
        declared: What the user says the samples are; for datasets without such a file.

    Raises:
        NotPreparedError: The dataset has no such file, and nobody else says what its samples are.
        ConfigError: Both say so.
        MetadataError: See :func:`read_dataset_config`.
        UntrustedCodeError: See :func:`read_dataset_config`.
    """
    where = f"{index.spec.url}/{META_FOLDER}/{dataset_config}"
    document = index.dataset_yaml
    if document is None:
        declared = declared or (None if index.plain is None else CRUDE)
        if declared is None:
            raise NotPreparedError(
                "nothing says what the samples are",
                where=where,
                hint="run `energon-stream prepare` on the dataset, or pass sample_type= and field_map=",
            )
        document, where = declared.document, declared.where
    elif declared is not None:
        raise ConfigError(
            f"the dataset says itself what its samples are, and so does {declared.where}",
            where=where,
            hint="leave out sample_type and field_map, or name another file by dataset_config",
        )
    return read_dataset_config(
        document,
        where=where,
        decoder=decoder,
        read_text=partial(_read_beside, index.spec),
        trust=trust,
    )


def _read_beside(spec: StoreSpec, name: str) -> str:
    """Read a file of the metadata folder; in a child where that needs a client, which must not be forked."""

    def read() -> str:
        return bytes(spec.open().get(f"{META_FOLDER}/{name}").data).decode()

    return read() if is_local(spec.url) else run_isolated(read)


def read_dataset_config(
    document: Mapping[str, Any],
    *,
    where: str,
    decoder: FileStoreDecoder | None,
    read_text: Callable[[str], str],
    trust: bool | None = None,
) -> tuple[SampleFactory, DatasetYamlOptions]:
    """Understand a ``dataset.yaml``. Nothing in it is imported or run, unless the dataset is trusted.

    Args:
        document: The parsed file.
        where: Its URL, for messages.
        decoder: Decodes parts, unless the file names a decoder; None leaves them as bytes.
        read_text: Reads a file beside it, by name.
        trust: Whether code that it brings along or names may run; None asks the environment.

    Raises:
        MetadataError: An unknown key or class, a wrong type, a required field without a part.
        UntrustedCodeError: It wants to run code, and is not trusted.
    """
    if "decoder" in document:
        decoder = _decoder(document["decoder"], where)
    if _is_foreign(document):
        keys = {
            key: value for key, value in document.items() if key not in ("__module__", "__class__", "decoder")
        }
        names = str(document["__module__"]), str(document["__class__"])
        folder = parent_url(parent_url(where))
        describe = importlib.import_module(_FOREIGN_CLASSES).describe_foreign
        described: ForeignDescription = describe(
            *names, keys, path=folder, decoder=decoder, trust=trust, where=where
        )
        document, decoder, sample_type = described.document, described.decoder, described.sample_type
        check_keys(document, _KEYS, where)
    else:
        check_keys(document, _KEYS, where)
        sample_type = _sample_type(document, where, trust)

    def user_function(reference: str) -> UserFunction:
        return UserFunction(reference, read_text, trust=trust, where=where)

    part_filter = _part_filter(document.get("part_filter"), where, user_function)
    if sample_type is None:
        _refuse(document, ("field_map", "sample_loader"), f"{_CRUDE} makes samples without a type", where)
        factory = SampleFactory(decoder, part_filter=part_filter)
    elif "sample_loader" in document:
        _refuse(document, ("field_map",), "there is a sample_loader as well", where)
        given = document["sample_loader"]
        loader = given if callable(given) else user_function(str(given))
        factory = SampleFactory(decoder, sample_type, loader=loader, part_filter=part_filter)
    else:
        _refuse(document, ("part_filter",), "field_map says which parts are used", where)
        fields = parse_field_map(document.get("field_map"), where)
        check_fields(sample_type, document["field_map"], where)
        factory = SampleFactory(decoder, sample_type, fields, part_filter=part_filter)
    parts = parse_parts(document.get("parts"), where)
    return factory if parts is None else factory.within(parts, where), _options(document, where)


def _is_foreign(document: Mapping[str, Any]) -> bool:
    """Whether the dataset is of a class that another package has."""
    return isinstance(module := document.get("__module__"), str) and not is_own_module(module)


def _sample_type(document: Mapping[str, Any], where: str, trust: bool | None) -> type[Sample] | None:
    """The sample type; None for crude samples."""
    if "__class__" not in document and "__module__" not in document:
        if "sample_type" not in document:
            raise MetadataError("neither sample_type nor __class__ says what the samples are", where=where)
        return resolve_sample_type(document["sample_type"], trust=trust, where=where)
    module, name = read_class(
        {key: document[key] for key in ("__module__", "__class__") if key in document}, where
    )
    if name not in _FACTORIES:
        raise MetadataError(
            f"there is no dataset class {module}.{name}", where=where, hint=nearest(name, _FACTORIES)
        )
    if name in _GENERIC:
        if "sample_type" not in document:
            raise MetadataError(f"{name} needs a sample_type", where=where)
        return resolve_sample_type(document["sample_type"], trust=trust, where=where)
    _refuse(document, ("sample_type",), f"{name} has its own", where)
    return None if name == _CRUDE else TYPED_DATASET_CLASSES[name]


def _refuse(document: Mapping[str, Any], keys: tuple[str, ...], reason: str, where: str) -> None:
    for key in keys:
        if key in document:
            raise MetadataError(
                f"{key!r} has no place here: {reason}", where=where, hint="remove one of them"
            )


def _part_filter(
    value: Any, where: str, user_function: Callable[[str], UserFunction]
) -> frozenset[str] | Callable[[str], bool] | None:
    if value is None:
        return None
    if callable(value):  # of a dataset class; YAML has no functions
        function: Callable[[str], bool] = value
        return function
    if isinstance(value, str):
        return user_function(value)
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return frozenset(value)
    raise MetadataError(
        f"'part_filter' is {value!r:.80}", where=where, hint="use a list of parts, or file.py:function"
    )


def _decoder(value: Any, where: str) -> FileStoreDecoder | None:
    """A ``SampleDecoder`` with its options; never one that unpickles."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise MetadataError(f"'decoder' is {value!r:.80}", where=where, hint="name SampleDecoder and options")
    module, name = read_class({k: v for k, v in value.items() if k in ("__module__", "__class__")}, where)
    if not is_own_module(module) or name != "SampleDecoder":
        raise MetadataError(f"there is no decoder {module}.{name}", where=where, hint="use SampleDecoder")
    known = ("__module__", "__class__", "image_decode", "av_decode", "video_decode_audio", "guess_content")
    check_keys(value, known, where)
    return SampleDecoder(**{key: option for key, option in value.items() if not key.startswith("__")})


def _options(document: Mapping[str, Any], where: str) -> DatasetYamlOptions:
    subflavors = document.get("subflavors") or {}
    if not isinstance(subflavors, Mapping):
        raise MetadataError("'subflavors' must map names to values", where=where)
    overrides = {key: document[key] for key in _OPTION_TYPES if key in document}
    for key, value in overrides.items():
        if not isinstance(value, _OPTION_TYPES[key]) or isinstance(value, bool):
            raise MetadataError(f"{key!r} is {value!r:.80}", where=where)
    return DatasetYamlOptions(dict(subflavors), overrides)
