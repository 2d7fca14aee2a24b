"""Loader objects, which open a dataset or metadataset later; and the list of a metadataset's datasets."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Generic, Unpack, cast

from energon_stream.config.dataset_options import DatasetOptions, DatasetRequest, Shuffling
from energon_stream.config.join_indices import prepare_metadataset
from energon_stream.config.metadataset_files import MetadatasetFiles, PlacedDocument
from energon_stream.config.mixture import open_mixture
from energon_stream.config.opening import DatasetLocation, PathOption
from energon_stream.config.references import LeafRef, multiplied
from energon_stream.errors import ConfigError
from energon_stream.limits import Limits
from energon_stream.pipeline import SavableDataset
from energon_stream.storage import Transport
from energon_stream.task import DatasetBlendMode, LoadedDataset
from energon_stream.task.encoder import T_sample


@dataclass(frozen=True, slots=True)
class LoadedDatasetList:
    """Datasets to be mixed.

    Attributes:
        datasets: One dataset of samples for each dataset of the mixture, with its share.
        blend_mode: Meaning of the shares.

    Example:
        >>> loaded = load_dataset("mix.yaml").get_datasets(training=True)
        >>> loaded.blend_mode.name, [entry.weight for entry in loaded.datasets]
        ('DATASET_WEIGHT', [0.75, 0.25])
    """

    datasets: list[LoadedDataset]
    blend_mode: DatasetBlendMode


@dataclass
class DatasetLoaderInterface:
    """Base of the loader objects that :func:`load_dataset` returns: dataclasses of shared options.

    Example:
        >>> isinstance(load_dataset("captions"), DatasetLoaderInterface)
        True
    """

    path: PathOption
    _: KW_ONLY
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    transport: Transport = "auto"
    limits: Limits | None = None
    allow_urls: Sequence[str] | None = None

    def get_datasets(  # noqa: D417 # get_train_dataset describes the other arguments
        self,
        *,
        training: bool,
        split_part: str | None = None,
        shuffle_buffer_size: int | None = None,
        max_samples_per_sequence: int | None = None,
        shuffle_over_epochs_multiplier: int | None = 1,
        parallel_shard_iters: int | None = None,
        **options: Unpack[DatasetOptions],
    ) -> LoadedDatasetList:
        """Open each dataset as a dataset of single samples.

        :func:`get_train_dataset` describes the arguments, except for these.

        Args:
            training: Whether samples are shuffled and repeated.
            split_part: Default: that of this object, else ``train`` or ``val``.
            **options: See :class:`~energon_stream.config.dataset_options.DatasetOptions`; they override
                those of this object. Of the task encoder the decoder is used, and nothing else.

        """
        own: dict[str, Any] = {**vars(self), **options}
        own.pop("splits", None)
        own_part, own_multiplier = own.pop("split_part", None), own.pop("shuffle_over_epochs_multiplier", 1)
        request = DatasetRequest.of(
            own.pop("path"),
            split_part or own_part or ("train" if training else "val"),
            cast("DatasetOptions", own),
            multiplier=multiplied(shuffle_over_epochs_multiplier, own_multiplier),
            with_cookers=False,  # the datasets may be for another task
        )
        shuffling = Shuffling(shuffle_buffer_size, max_samples_per_sequence, parallel_shard_iters)
        mixture = open_mixture(request, shuffling if training else None)
        datasets = mixture.train_datasets() if training else mixture.val_datasets()
        return LoadedDatasetList(datasets, mixture.blend_mode)

    def post_initialize(self, mds_path: PathOption | None = None) -> None:
        """Do nothing. Programs for Megatron-Energon call it; here an object is whole when it is made."""

    def prepare(self, split_part: str | None = None) -> list[str]:
        """Build the join indices of a metadataset, of all splits, and return the URLs of the new ones."""
        if not DatasetLocation(self.path, "").is_metadataset:
            return []
        if isinstance(self.path, Mapping):
            raise ConfigError(
                "a metadataset that is a dict has no place for indices", hint="write it to a file"
            )
        return [report.url for report in prepare_metadataset(self.path, **self._access())]

    def traverse(self, *, split_part: str) -> list[LeafRef]:
        """List all datasets that a split names; see :func:`traverse_metadataset`."""
        return traverse_metadataset(self.path, split_part=split_part, **self._access())

    def _access(self) -> dict[str, Any]:
        names = ("storage_options", "transport", "limits", "allow_urls")
        return {name: getattr(self, name) for name in names}


@dataclass(kw_only=True)
class DatasetLoader(DatasetLoaderInterface, Generic[T_sample]):
    """A single dataset: a folder, a ``.jsonl`` file, or tars.

    :class:`~energon_stream.config.dataset_options.DatasetOptions` describes the other attributes.

    Attributes:
        split_part: Split part that :meth:`get_datasets` opens unless it gets a ``split_part``.
        shuffle_over_epochs_multiplier: Multiplies that of :meth:`get_datasets`.

    Example:
        >>> loaded = DatasetLoader("captions", split_part="train").get_datasets(training=False)
        >>> len(loaded.datasets)
        1
    """

    split_part: str | None = None
    shuffle_over_epochs_multiplier: int | None = 1
    split_config: str = "split.yaml"
    dataset_config: str = "dataset.yaml"
    sample_type: type[T_sample] | str | Mapping[str, Any] | None = None
    field_map: Mapping[str, str] | None = None
    subflavors: Mapping[str, Any] | None = None

    def get_dataset(
        self, *, training: bool, split_part: str | None = None, **options: Any
    ) -> SavableDataset[T_sample]:
        """Open the dataset; the arguments are as for :meth:`get_datasets`."""
        return self.get_datasets(training=training, split_part=split_part, **options).datasets[0].dataset


@dataclass
class Metadataset(DatasetLoaderInterface):
    """A metadataset of version 1: a file, or its parsed content.

    :class:`~energon_stream.config.dataset_options.DatasetOptions` describes the other attributes.

    Attributes:
        splits: The splits of a file that need not be there; paths are relative to its place, ``path``.

    Example:
        >>> document = {"splits": {"train": {"datasets": [{"path": "captions", "weight": 1}]}}}
        >>> len(Metadataset(document).get_datasets(training=True).datasets)
        1
    """

    splits: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.splits is not None:
            document = {"__class__": type(self).__name__, "splits": self.splits}
            self.path = PlacedDocument(os.fspath(cast("str", self.path)), document)


class MetadatasetV2(Metadataset):
    """A metadataset of version 2: a file, or its parsed content.

    Example:
        >>> len(MetadatasetV2("mix.yaml").get_datasets(training=True).datasets)
        2
    """


def load_dataset(
    path: PathOption,
    *,
    storage_options: Mapping[str, Any] | None = None,
    transport: Transport = "auto",
    limits: Limits | None = None,
    allow_urls: Sequence[str] | None = None,
    **options: Any,
) -> DatasetLoaderInterface:
    """Find out whether a path names a dataset or a metadataset, and return an object that opens it.

    Args:
        path: Dataset or metadataset; see :class:`~energon_stream.config.dataset_options.DatasetOptions`.
        storage_options: Credentials and other options of the store.
        transport: ``"auto"``, ``"obstore"`` or ``"fsspec"``.
        limits: Bounds on what the dataset may cost; None for those of the environment.
        allow_urls: Prefixes of URLs that a metadataset in a store may name beside its own store; None for
            those of the environment.
        **options: Other arguments of :class:`DatasetLoader`.

    Returns:
        A :class:`DatasetLoader`, :class:`Metadataset` or :class:`MetadatasetV2`.

    Raises:
        StorageError: The metadataset file cannot be reached.
        MetadataError: The metadataset file is wrong.

    Example:
        >>> from energon_stream import load_dataset
        >>> type(load_dataset("mix.yaml")).__name__, type(load_dataset("captions")).__name__
        ('MetadatasetV2', 'DatasetLoader')
    """
    bounds = limits or Limits.from_environment()
    files = MetadatasetFiles(storage_options, transport, limits=bounds, allow_urls=allow_urls)
    location = DatasetLocation(path, "", files)
    kind: type[DatasetLoaderInterface] = DatasetLoader
    if location.is_metadataset:
        version = location.read(lambda: files.document(location.root).version, forks=True)
        kind = MetadatasetV2 if version == 2 else Metadataset
    options.update(storage_options=storage_options, transport=transport, limits=limits, allow_urls=allow_urls)
    return kind(location.root, **options)


def traverse_metadataset(
    path: PathOption,
    *,
    split_part: str,
    storage_options: Mapping[str, Any] | None = None,
    transport: Transport = "auto",
    limits: Limits | None = None,
    allow_urls: Sequence[str] | None = None,
) -> list[LeafRef]:
    """List all datasets that a split of a metadataset names. The datasets need not exist.

    Args:
        path: The metadataset file, or its parsed content.
        split_part: The split.
        storage_options: See :func:`load_dataset`, also for the next three.
        transport: Client for remote data.
        limits: Bounds on what the dataset may cost.
        allow_urls: Prefixes of URLs that a metadataset in a store may name.

    Returns:
        References with ``path``, ``split_part``, ``subflavors`` and ``aux``; of a join, those of its members.

    Raises:
        StorageError: A metadataset file cannot be reached.
        ConfigError: The split does not exist.
        MetadataError: A metadataset file is wrong.

    Example:
        >>> from energon_stream import traverse_metadataset
        >>> [(ref.path, ref.split_part) for ref in traverse_metadataset("mix.yaml", split_part="train")]
        [('.../captions', 'train'), ('.../texts', 'train')]
    """
    bounds = limits or Limits.from_environment()
    files = MetadatasetFiles(storage_options, transport, limits=bounds, allow_urls=allow_urls)
    location = DatasetLocation(path, split_part, files)
    return [leaf for item in location.read(location.items, forks=True) for leaf in item.ref.leaves]
