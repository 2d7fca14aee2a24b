"""Loader objects: what a path names, to be opened later; and the flat list of what it names."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from energon_stream.recipe.arguments import (
    CacheOption,
    Shuffling,
    cache_layer,
    declared_samples,
    prepare,
    reading_options,
)
from energon_stream.recipe.leaves import DatasetLocation, isolated, read_items
from energon_stream.recipe.metadataset_files import MetadatasetFiles
from energon_stream.recipe.mixture import open_mixture
from energon_stream.recipe.sample_types import SampleType
from energon_stream.recipe.subset import parse_subset
from energon_stream.recipe.tree import JoinRef, LeafRef
from energon_stream.storage import Transport
from energon_stream.task import DatasetBlendMode, LoadedDataset, TaskEncoder
from energon_stream.worker import WorkerConfig

__all__ = [
    "DatasetLoader",
    "DatasetLoaderInterface",
    "LoadedDatasetList",
    "Metadataset",
    "MetadatasetV2",
    "load_dataset",
    "traverse_metadataset",
]


@dataclass(frozen=True, slots=True)
class LoadedDatasetList:
    """Datasets to be mixed.

    Attributes:
        datasets: One for each source, with its share.
        blend_mode: What the shares are.
    """

    datasets: list[LoadedDataset]
    blend_mode: DatasetBlendMode


class DatasetLoaderInterface(ABC):
    """Something that can be loaded for training or validation."""

    @abstractmethod
    def location(self, split_part: str, **options: Any) -> DatasetLocation:
        """What is loaded; ``options`` are fields of :class:`DatasetLocation`."""

    def get_datasets(
        self,
        *,
        training: bool,
        split_part: str | None = None,
        worker_config: WorkerConfig | None = None,
        shuffle_buffer_size: int | None = None,
        max_samples_per_sequence: int | None = None,
        shuffle_over_epochs_multiplier: int | None = 1,
        parallel_shard_iters: int | None = None,
        subset: Any = None,
        parts: Sequence[str] | None = None,
        task_encoder: TaskEncoder[Any, Any, Any, Any] | None = None,
        cache: CacheOption = None,
        trust_dataset_code: bool | None = None,
        **decoding: Any,
    ) -> LoadedDatasetList:
        """Open a dataset of samples for each source.

        Args:
            training: Whether samples are shuffled and repeated.
            split_part: Default: ``train`` or ``val``.
            worker_config: Ranks, workers and seed. Default: from ``torch.distributed``, with 4 workers.
            shuffle_buffer_size: As for ``get_train_dataset``, as the following ones.
            max_samples_per_sequence: See there.
            shuffle_over_epochs_multiplier: See there.
            parallel_shard_iters: See there.
            subset: See there.
            parts: See there.
            task_encoder: Says how parts are decoded; nothing else of it is used here.
            cache: See there.
            trust_dataset_code: See there.
            **decoding: See there.

        Raises:
            EnergonStreamError: What ``get_train_dataset`` raises.
        """
        config, _, samples = prepare(worker_config, task_encoder, trust_dataset_code, decoding, parts)
        location = self.location(
            split_part or ("train" if training else "val"),
            subset=parse_subset(subset, "subset"),
            multiplier=shuffle_over_epochs_multiplier,
            through=cache_layer(cache),
        )
        shuffling = Shuffling(max_samples_per_sequence, shuffle_buffer_size, parallel_shard_iters)
        mixture = open_mixture(
            location,
            config,
            replace(samples, cookers=()),  # the datasets may be for another task
            reading_options(None, None, None),
            shuffling.order if training else None,
        )
        datasets = mixture.train_datasets() if training else mixture.val_datasets()
        return LoadedDatasetList(datasets, mixture.blend_mode)


class DatasetLoader(DatasetLoaderInterface):
    """A folder, a ``.jsonl`` file, or tars.

    Args:
        path: Where it lies.
        split_config: File in ``.nv-meta`` that defines the parts.
        dataset_config: File in ``.nv-meta`` that says how samples are made.
        storage_options: Credentials and the like.
        transport: ``"auto"``, ``"obstore"`` or ``"fsspec"``.
        sample_type: What the samples are, where there is no such file; see ``get_train_dataset``.
        field_map: Which part becomes which field then.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        split_config: str = "split.yaml",
        dataset_config: str = "dataset.yaml",
        storage_options: Mapping[str, Any] | None = None,
        transport: Transport = "auto",
        sample_type: SampleType | None = None,
        field_map: Mapping[str, str] | None = None,
    ) -> None:
        self.path = os.fspath(path)
        self._options: dict[str, Any] = {
            "split_config": split_config,
            "dataset_config": dataset_config,
            "storage_options": storage_options,
            "transport": transport,
            "declared": declared_samples(sample_type, field_map),
        }

    def location(self, split_part: str, **options: Any) -> DatasetLocation:
        """The dataset."""
        return DatasetLocation(self.path, split_part, **self._options, **options)


class Metadataset(DatasetLoaderInterface):
    """A metadataset file of version 1.

    Args:
        path: Where it lies, or its parsed content.
        storage_options: Credentials and the like.
        transport: ``"auto"``, ``"obstore"`` or ``"fsspec"``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Mapping[str, Any],
        *,
        storage_options: Mapping[str, Any] | None = None,
        transport: Transport = "auto",
    ) -> None:
        self.path = path if isinstance(path, Mapping) else os.fspath(path)
        self._options: dict[str, Any] = {"storage_options": storage_options, "transport": transport}

    def location(self, split_part: str, **options: Any) -> DatasetLocation:
        """A split of the metadataset."""
        return DatasetLocation(self.path, split_part, **self._options, **options)


class MetadatasetV2(Metadataset):
    """A metadataset file of version 2."""


def load_dataset(
    path: str | os.PathLike[str] | Mapping[str, Any],
    *,
    storage_options: Mapping[str, Any] | None = None,
    transport: Transport = "auto",
    **options: Any,
) -> DatasetLoaderInterface:
    """Find out what a path names.

    Args:
        path: Folder, ``.jsonl``, tars, or metadataset file (or its parsed content).
        storage_options: Credentials and the like.
        transport: ``"auto"``, ``"obstore"`` or ``"fsspec"``.
        **options: ``split_config``, ``dataset_config``, ``sample_type`` and ``field_map`` of a dataset.

    Returns:
        A :class:`DatasetLoader`, :class:`Metadataset` or :class:`MetadatasetV2`.

    Raises:
        StorageError: The metadataset file cannot be reached.
        MetadataError: It is wrong.
    """
    root = path if isinstance(path, Mapping) else os.fspath(path)
    location = DatasetLocation(root, "", storage_options, transport)
    if not location.is_metadataset:
        return DatasetLoader(str(root), storage_options=storage_options, transport=transport, **options)

    def read_version() -> int:
        return MetadatasetFiles(storage_options, transport).document(root).version

    kind = MetadatasetV2 if isolated(location, 1, read_version) == 2 else Metadataset
    return kind(root, storage_options=storage_options, transport=transport, **options)


def traverse_metadataset(
    path: str | os.PathLike[str] | Mapping[str, Any],
    *,
    split_part: str,
    storage_options: Mapping[str, Any] | None = None,
    transport: Transport = "auto",
) -> list[LeafRef]:
    """All datasets that a split of a metadataset names, without touching them; they need not exist.

    Args:
        path: The metadataset file, or its parsed content.
        split_part: Which split.
        storage_options: Credentials and the like.
        transport: ``"auto"``, ``"obstore"`` or ``"fsspec"``.

    Returns:
        References with ``path``, ``split_part``, ``subflavors`` and ``aux``; of a join, its members.

    Raises:
        StorageError: A metadataset file cannot be reached.
        ConfigError: There is no such split.
        MetadataError: A file is wrong.
    """
    root = path if isinstance(path, Mapping) else os.fspath(path)
    found: list[LeafRef] = []
    for item in read_items(DatasetLocation(root, split_part, storage_options, transport)):
        ref = item.ref
        found += [member.leaf for member in ref.members] if isinstance(ref, JoinRef) else [ref]
    return found
