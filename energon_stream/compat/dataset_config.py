"""Reads ``dataset.yaml`` to objects of dataset classes, and metadatasets to references with ``EPath``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import update_wrapper, wraps
from inspect import unwrap
from types import FunctionType
from typing import IO, Any

from energon_stream import config
from energon_stream.arguments import DATASET_CONFIG, names_checked
from energon_stream.compat import dataset_classes as factories
from energon_stream.compat.epath import EPath
from energon_stream.compat.metadataset_nodes import read_splits
from energon_stream.config.dataset_options import SharedOptions
from energon_stream.config.interface import Metadataset
from energon_stream.config.metadataset_files import MetadatasetFiles
from energon_stream.config.named_code import import_class, is_own_module, read_class
from energon_stream.config.sample_types import resolve_sample_type
from energon_stream.errors import ConfigError, MetadataError
from energon_stream.index import yaml_io
from energon_stream.index.file_format import find_format
from energon_stream.index.info_files import META_FOLDER
from energon_stream.limits import Limits
from energon_stream.pipeline import SavableDataset
from energon_stream.pipeline.reader_dataset import find_readers
from energon_stream.printable import nearest
from energon_stream.schedule.plan import leaves
from energon_stream.urls import join_url, parent_url
from energon_stream.worker import WorkerConfig


@dataclass(frozen=True)
class JsonParser:
    """A parser of ``dataset.yaml``. It is always strict, so ``strict=False`` raises ConfigError."""

    strict: bool = True
    allow_imports: bool = True  # False: the classes of dataset.yaml are this library's alone

    def __post_init__(self) -> None:
        if not self.strict:
            raise ConfigError("dataset.yaml is always read strictly", hint="leave strict out")


def load_yaml(stream: IO[bytes] | bytes) -> Any:
    """Parse YAML by the rules for dataset files."""
    return yaml_io.load_yaml(stream if isinstance(stream, bytes) else stream.read(), "YAML")


def load_config(
    path: EPath | Mapping[str, Any],
    *,
    default_type: type,
    default_kwargs: Mapping[str, Any] | None = None,
    parser: JsonParser | None = None,
) -> Any:
    """Create the object that a ``dataset.yaml``, or its parsed content, describes; the dataset is not opened.

    ``default_type`` is its class if the file names none, and ``default_kwargs`` are arguments that the file
    does not have. ``parser`` may forbid imports. Raises MetadataError if the class does not exist or does not
    take the arguments, and UntrustedCodeError if it is of another package and not trusted.

    Example:
        >>> from energon_stream.compat.epath import EPath
        >>> from energon_stream.compat.dataset_classes import StandardWebdatasetFactory
        >>> found = load_config(
        ...     EPath("captions/.nv-meta/dataset.yaml"),
        ...     default_type=StandardWebdatasetFactory,
        ...     default_kwargs={"path": "captions"},
        ... )
        >>> found.__sample_type__.__name__, found.field_map
        ('CaptioningSample', {'image': 'jpg', 'caption': 'txt'})
    """
    where = "dataset.yaml" if isinstance(path, Mapping) else str(path)
    document = path if isinstance(path, Mapping) else load_yaml(path.read_bytes())
    keys = {name: value for name, value in document.items() if name not in ("__module__", "__class__")}
    found, trust = default_type, None if parser is None or parser.allow_imports else False
    if len(keys) < len(document):
        found = _class({name: value for name, value in document.items() if name not in keys}, where, trust)
    if isinstance(keys.get("sample_type"), Mapping):
        keys["sample_type"] = resolve_sample_type(keys["sample_type"], trust=trust, where=where)
    try:
        return found(**{**(default_kwargs or {}), **keys})
    except TypeError as error:
        raise MetadataError(f"{found.__name__} does not take these keys: {error}", where=where) from error


def get_dataset_from_config(
    path: EPath | os.PathLike[str] | str,
    *,
    dataset_config: str | None = None,
    split_config: str | None = None,
    split_part: str | None = None,
    training: bool = True,
    subflavors: Mapping[str, Any] | None = None,
    worker_config: WorkerConfig | None = None,
    sample_type: type[Any] | None = None,
    **kwargs: Any,
) -> Any:
    """Create the object that the ``dataset.yaml`` of a prepared dataset describes; its ``build()`` opens it.

    The path is a folder, or a file such as ``x.jsonl``. ``sample_type`` is for type checkers only. For other
    arguments see ``BaseWebdatasetFactory``. Raises what :func:`load_config` raises.

    Example:
        >>> from energon_stream import WorkerConfig
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> made = get_dataset_from_config("captions", split_part="val", training=False, worker_config=config)
        >>> type(made).__name__, len(list(made.build()))
        ('StandardWebdatasetFactory', 8)
    """
    given = {
        "split_config": split_config,
        "split_part": split_part,
        "training": training,
        "subflavors": subflavors,
        "worker_config": worker_config,
        **kwargs,
    }
    arguments = {"path": EPath(path), **{name: value for name, value in given.items() if value is not None}}
    if find_format(str(path)) is not None:
        return factories.DefaultCrudeJsonlDatasetFactory(**arguments)
    file = EPath(path) / META_FOLDER / (dataset_config or DATASET_CONFIG)
    return load_config(file, default_type=factories.StandardWebdatasetFactory, default_kwargs=arguments)


@dataclass(frozen=True, slots=True)
class TraversedDatasetReference:
    """A dataset that a metadataset names."""

    path: EPath
    split_part: str
    aux: Mapping[str, EPath] = field(default_factory=dict)  # folders of auxiliary data by name
    subflavors: Mapping[str, Any] = field(default_factory=dict)
    shuffle_over_epochs_multiplier: int | None = field(default=1, repr=False, compare=False)

    @property
    def tags(self) -> Mapping[str, Any]:
        """Newer name of ``subflavors``."""
        return self.subflavors


def traverse_metadataset(
    path: EPath | os.PathLike[str] | str, *, split_part: str, **options: Any
) -> list[TraversedDatasetReference]:
    """List the datasets that a split of a metadataset names; see ``energon_stream.traverse_metadataset``."""
    return [
        TraversedDatasetReference(
            EPath(ref.path),
            ref.split_part,
            {name: EPath(aux.spec.url) for name, aux in ref.aux.items()},
            dict(ref.subflavors),
            ref.multiplier,
        )
        for ref in config.traverse_metadataset(path, split_part=split_part, **options)
    ]


def _class(document: Mapping[str, Any], where: str, trust: bool | None) -> Any:
    module, name = read_class(document, where)
    if not is_own_module(module):
        return import_class(module, name, trust=trust, where=where, base=factories.BaseCoreDatasetFactory)
    known = {key: getattr(factories, key) for key in factories.__all__}
    if name not in known:
        raise MetadataError(f"there is no dataset class {name!r}", where=where, hint=nearest(name, known))
    return known[name]


def _demanding(function: Any, *names: str) -> Any:
    """Return a function without the defaults of some parameters, which programs inspect."""
    made: Any = update_wrapper(FunctionType(function.__code__, function.__globals__), function)
    del made.__wrapped__
    made.__module__ = __name__  # by which it is pickled
    made.__kwdefaults__ = {
        name: value for name, value in function.__kwdefaults__.items() if name not in names
    }

    @wraps(made)
    def call(*args: Any, **options: Any) -> Any:
        if "part_filter" in options:
            options["parts"] = options.pop("part_filter")
        return made(*args, **options)

    return names_checked(*SharedOptions.__optional_keys__, "part_filter")(call)


_ORDER = ("shuffle_buffer_size", "max_samples_per_sequence")
get_train_dataset: Callable[..., SavableDataset[Any]] = _demanding(
    unwrap(config.get_train_dataset), "worker_config", *_ORDER
)
get_val_dataset: Callable[..., SavableDataset[Any]] = _demanding(
    unwrap(config.get_val_dataset), "worker_config"
)
_get_val_datasets = _demanding(unwrap(config.get_val_datasets), "worker_config")


class ValidationSource:
    """The reference of a dataset, whose length is its number of samples."""

    training = False

    def __init__(self, dataset: SavableDataset[Any], reference: Any) -> None:
        self.reference = reference
        self.paths: list[EPath] = [EPath(leaf.path) for leaf in reference.leaves]
        self.path: EPath = self.paths[0]
        ((_, self._reader),) = find_readers(dataset)

    @property
    def worker_config(self) -> WorkerConfig:
        return self._reader.worker_config

    def __len__(self) -> int:
        return sum(leaf.num_samples for leaf in leaves(self._reader.plan))

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["reference"], name)


@wraps(_get_val_datasets)
def get_val_datasets(*args: Any, **options: Any) -> Any:
    """Call the library's function; its references have a length."""
    return [(pair[0], ValidationSource(*pair)) for pair in _get_val_datasets(*args, **options)]


@wraps(config.load_dataset)
def load_dataset(path: Any, **options: Any) -> Any:
    """Call the library's function; paths are ``EPath``, and the splits of a metadataset nodes."""
    loader = config.load_dataset(path, **options)
    if isinstance(loader, Metadataset):
        files = MetadatasetFiles(
            loader.storage_options,
            loader.transport,
            limits=loader.limits or Limits.from_environment(),
            allow_urls=loader.allow_urls,
        )
        place: Any = loader.path
        document = files.document(place)
        loader.splits = read_splits(
            document.content, lambda name: EPath(join_url(parent_url(document.where), name))
        )
    if not isinstance(loader.path, Mapping):
        loader.path = EPath(loader.path)
    return loader
