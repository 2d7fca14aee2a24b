"""``dataset.yaml``: the type of a dataset's samples, how they are made, and options for all who read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import NoneType
from typing import TYPE_CHECKING, Any

from energon_stream.arguments import DATASET_CONFIG
from energon_stream.config.document_keys import ANY, CLASS_KEYS, MAPPING, Key, of_type, read_keys
from energon_stream.config.fields import parse_field_map, parse_parts
from energon_stream.config.named_code import UserFunction, is_own_module, read_class
from energon_stream.config.sample_factory import CustomBuild, SampleFactory
from energon_stream.config.sample_types import (
    CRUDE,
    DATASET_CLASSES,
    DeclaredSamples,
    check_fields,
    resolve_sample_type,
)
from energon_stream.config.subset import Subset, parse_subset
from energon_stream.errors import ConfigError, MetadataError, NotPreparedError
from energon_stream.index.info_files import META_FOLDER
from energon_stream.index.yaml_io import check_keys, read_text
from energon_stream.plugins import load_plugin
from energon_stream.printable import nearest
from energon_stream.samples import CrudeSample, Sample
from energon_stream.storage.obstore_use import run_forkable
from energon_stream.urls import is_local, parent_url

if TYPE_CHECKING:
    from energon_stream.decode import FileStoreDecoder
    from energon_stream.index.dataset import WebDatasetIndex
    from energon_stream.index.files_index import FilesIndex
    from energon_stream.limits import Limits
    from energon_stream.storage import StoreSpec

_ORDER_FIELDS = {
    "parallel_shard_iters": "parallel_slices",
    "max_samples_per_sequence": "max_samples_per_sequence",
    "shuffle_over_epochs": "shuffle_over_epochs",
}
_KEYS = {
    **CLASS_KEYS,
    **dict.fromkeys(("sample_type", "field_map", "sample_loader", "parts", "decoder"), ANY),
    # A function is that of a dataset class; YAML has none.
    "part_filter": Key(
        lambda value: (
            isinstance(value, str)
            or callable(value)
            or (isinstance(value, list) and all(isinstance(part, str) for part in value))
        ),
        "use a list of parts, or file.py:function",
    ),
    "subflavors": MAPPING,
    "split_config": of_type(str),
    "split_part": of_type(str),
    "parallel_shard_iters": of_type(int),
    "max_samples_per_sequence": of_type(int, NoneType),
    "shuffle_over_epochs": of_type(int, NoneType),
    "subset": of_type(Mapping, list),
}
_FORMAT_KEYS = ("decode_map", "reader_cache_size")  # what FileFormat.decoder reads, or needs not to
_DECODER_OPTIONS = ("image_decode", "av_decode", "video_decode_audio", "guess_content")


_BARE_CRUDE = [
    {"__module__": module, "__class__": "CrudeWebdataset"}
    for module in ("megatron.energon", "energon_stream")
]


@dataclass(frozen=True, slots=True)
class DatasetYamlOptions:
    """Options in a ``dataset.yaml`` for all who read the dataset."""

    subflavors: Mapping[str, Any] = field(default_factory=dict)  # those of a metadataset override them
    order: Mapping[str, Any] = field(default_factory=dict)  # fields of ``OrderSpec``
    subset: Subset | None = None  # replaces the caller's


def make_sample_factory(
    index: WebDatasetIndex,
    *,
    decoder: FileStoreDecoder | None,
    trust: bool | None = None,
    dataset_config: str = DATASET_CONFIG,
    declared: DeclaredSamples | None = None,
    limits: Limits | None = None,
) -> tuple[SampleFactory, DatasetYamlOptions]:
    """Find out how samples of a dataset are made: by its ``dataset.yaml``, or as the user declares.

    A file that says no more than that samples are crude leaves the type to the user. Raises NotPreparedError
    if there is neither, ConfigError if there are both, and what :func:`read_dataset_config` raises.
    """
    where = f"{index.spec.url}/{META_FOLDER}/{dataset_config}"
    document = index.dataset_yaml
    if declared is not None and document in _BARE_CRUDE and not declared.typing_only:
        document = None
    if document is None:
        declared = declared or (None if index.plain is None else CRUDE)
        if declared is None:
            raise NotPreparedError(
                "the type of the samples is not known: there is no such file",
                where=where,
                hint="run `energon-stream prepare` on the dataset, or pass sample_type= and field_map=",
            )
        document, where = declared.document, declared.where
    elif declared is not None and not declared.typing_only:
        raise _twice(declared, where)
    read_beside = partial(_read_beside, index.spec)
    return read_dataset_config(
        document, where=where, decoder=decoder, read_text=read_beside, trust=trust, limits=limits
    )


def make_file_samples(
    index: FilesIndex, declared: DeclaredSamples | None, *, trust: bool | None = None
) -> tuple[SampleFactory, DatasetYamlOptions]:
    """Find out how samples of files are made: crude unless ``dataset.yaml`` or the user says more."""
    where = f"{index.spec.url}/{META_FOLDER}/{DATASET_CONFIG}"
    document = dict(index.dataset_yaml or CRUDE.document)
    decoder = index.format.decoder(document, index.limits)
    for key in _FORMAT_KEYS:
        document.pop(key, None)
    if str(document.get("__class__")).endswith("DatasetFactory") and is_own_module(
        str(document.get("__module__"))
    ):
        document |= CRUDE.document  # the factory of a format
    if declared is not None and not declared.typing_only:
        if any(document.get(key) != value for key, value in CRUDE.document.items() if key == "__class__"):
            raise _twice(declared, where)
        document, where = {**declared.document}, declared.where
    read_beside = partial(_read_beside, index.spec)
    return read_dataset_config(
        document, where=where, decoder=decoder, read_text=read_beside, trust=trust, limits=index.limits
    )


def _twice(declared: DeclaredSamples, where: str) -> ConfigError:
    return ConfigError(
        f"the type of the samples is declared twice: by this file, and by {declared.where}",
        where=where,
        hint="leave out sample_type and field_map, or name another file by dataset_config",
    )


def _read_beside(spec: StoreSpec, name: str) -> str:
    def read() -> str:
        return read_text(f"{META_FOLDER}/{name}", spec.open())

    # In a child process where that needs a client, because this process may fork workers later.
    return read() if is_local(spec.url) else run_forkable(read)


def read_dataset_config(
    document: Mapping[str, Any],
    *,
    where: str,
    decoder: FileStoreDecoder | None,
    read_text: Callable[[str], str],
    trust: bool | None = None,
    limits: Limits | None = None,
) -> tuple[SampleFactory, DatasetYamlOptions]:
    """Understand a ``dataset.yaml``. Code that it names is imported and run only if ``trust``, or else the
    environment, allows it.

    ``decoder`` decodes parts, unless the file names a decoder, which gets the ``limits``. ``read_text`` reads
    a file beside it, by name. Raises MetadataError if a key, class or type is wrong, and UntrustedCodeError
    if the file names code, and is not trusted.
    """
    is_foreign = isinstance(module := document.get("__module__"), str) and not is_own_module(module)
    if "decoder" in document:
        decoder = _decoder(document["decoder"], where, limits)
    custom = None
    if is_foreign:
        document, decoder, sample_type, custom = _describe_foreign(document, decoder, trust, where)
    given = read_keys(document, _KEYS, where)
    if not is_foreign:
        sample_type = _sample_type(document, where, trust)
    user_function = partial(UserFunction, read_text=read_text, trust=trust, where=where)
    wanted = given["part_filter"]
    if isinstance(wanted, str):
        wanted = user_function(wanted)
    elif isinstance(wanted, list):
        wanted = frozenset(wanted)
    make = partial(SampleFactory, decoder, sample_type, part_filter=wanted, custom=custom)
    if sample_type is None:
        _refuse(document, ("field_map", "sample_loader"), "crude samples have no fields", where)
        factory = make()
    elif "sample_loader" in document:
        _refuse(document, ("field_map",), "sample_loader makes the fields", where)
        loader = given["sample_loader"]
        factory = make(loader=loader if callable(loader) else user_function(str(loader)))
    else:
        _refuse(document, ("part_filter",), "field_map selects the parts", where)
        fields = parse_field_map(given["field_map"], where)
        check_fields(sample_type, given["field_map"], where)
        factory = make(fields=fields)
    parts = parse_parts(given["parts"], where)
    options = DatasetYamlOptions(
        dict(given["subflavors"] or {}),
        {field: document[key] for key, field in _ORDER_FIELDS.items() if key in document},
        parse_subset(document["subset"], where) if "subset" in document else None,
    )
    return factory if parts is None else factory.within(parts, where), options


def _describe_foreign(
    document: Mapping[str, Any], decoder: FileStoreDecoder | None, trust: bool | None, where: str
) -> tuple[Mapping[str, Any], FileStoreDecoder | None, type[Sample] | None, CustomBuild | None]:
    """Return keys, decoder, sample type and overridden methods of a dataset class of another package."""
    module, name = read_class({key: document[key] for key in CLASS_KEYS if key in document}, where)
    keys = {key: value for key, value in document.items() if key not in (*CLASS_KEYS, "decoder")}
    return load_plugin("dataset_class")(  # type: ignore[no-any-return]
        module,
        name,
        keys,
        path=parent_url(parent_url(where)),
        decoder=decoder,
        trust=trust,
        where=where,
    )


def _sample_type(document: Mapping[str, Any], where: str, trust: bool | None) -> type[Sample] | None:
    found: type[Sample] | type[CrudeSample] | None = None
    if "__class__" in document or "__module__" in document:
        module, name = read_class({key: document[key] for key in CLASS_KEYS if key in document}, where)
        if name not in DATASET_CLASSES:
            hint = nearest(name, DATASET_CLASSES)
            raise MetadataError(f"there is no dataset class {module}.{name}", where=where, hint=hint)
        found = DATASET_CLASSES[name]
        if found is not None:
            _refuse(document, ("sample_type",), f"{name} has a type of its own", where)
        elif "sample_type" not in document:
            hint = "add sample_type, such as {__module__: energon_stream, __class__: CaptioningSample}"
            raise MetadataError(f"{name} needs a sample_type", where=where, hint=hint)
    elif "sample_type" not in document:
        hint = "add sample_type and field_map, or prepare the dataset again, which asks for them"
        raise MetadataError("there is neither a sample_type nor a __class__", where=where, hint=hint)
    found = found or resolve_sample_type(document["sample_type"], trust=trust, where=where)
    return None if issubclass(found, CrudeSample) else found


def _refuse(document: Mapping[str, Any], keys: tuple[str, ...], reason: str, where: str) -> None:
    for key in keys:
        if key in document:
            raise MetadataError(f"{key!r} is not allowed here: {reason}", where=where, hint=f"remove {key!r}")


def _decoder(value: Any, where: str, limits: Limits | None) -> FileStoreDecoder | None:
    """Make the ``SampleDecoder`` that a file names. It never unpickles: that is for the user to allow."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise MetadataError(f"'decoder' is {value!r:.80}", where=where, hint="name SampleDecoder and options")
    module, name = read_class({key: value[key] for key in CLASS_KEYS if key in value}, where)
    if not is_own_module(module) or name != "SampleDecoder":
        raise MetadataError(f"unknown decoder {module}.{name}", where=where, hint="use SampleDecoder")
    check_keys(value, (*CLASS_KEYS, *_DECODER_OPTIONS), where)
    from energon_stream.decode import SampleDecoder  # imports PyTorch; metadata is read without it

    given = {key: option for key, option in value.items() if key in _DECODER_OPTIONS}
    return SampleDecoder(**given, limits=limits)
