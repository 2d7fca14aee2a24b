"""``get_train_dataset`` and its kin: a path and some options to a dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from energon_stream.errors import ConfigError
from energon_stream.pipeline import Ends, SavableDataset, with_ends
from energon_stream.read.options import ReadOptions
from energon_stream.recipe.arguments import (
    CacheOption,
    Shuffling,
    cache_layer,
    declared_samples,
    prepare,
    reading_options,
)
from energon_stream.recipe.leaves import DatasetLocation
from energon_stream.recipe.mixture import open_mixture
from energon_stream.recipe.sample_types import SampleType
from energon_stream.recipe.subset import parse_subset
from energon_stream.recipe.tree import AnyLeafRef
from energon_stream.storage import Transport
from energon_stream.task import TaskEncoder, call_with_accepted
from energon_stream.worker import WorkerConfig

__all__ = ["get_train_dataset", "get_val_dataset", "get_val_datasets"]

PathLike = str | os.PathLike[str]


def get_train_dataset(
    path: PathLike | Mapping[str, Any],
    *,
    batch_size: int | None,
    shuffle_buffer_size: int | None,
    max_samples_per_sequence: int | None,
    worker_config: WorkerConfig | None = None,
    split_part: str = "train",
    batch_drop_last: bool = False,
    packing_buffer_size: int | None = None,
    virtual_epoch_length: int = 0,
    shuffle_over_epochs_multiplier: int | None = 1,
    parallel_shard_iters: int | None = None,
    task_encoder: TaskEncoder[Any, Any, Any, Any] | None = None,
    repeat: bool = True,
    ends: Ends = "uneven",
    subset: Mapping[str, Any] | Sequence[Any] | None = None,
    parts: Sequence[str] | None = None,
    sample_type: SampleType | None = None,
    field_map: Mapping[str, str] | None = None,
    split_config: str = "split.yaml",
    dataset_config: str = "dataset.yaml",
    storage_options: Mapping[str, Any] | None = None,
    transport: Transport = "auto",
    read_options: ReadOptions | None = None,
    cache: CacheOption = None,
    trust_dataset_code: bool | None = None,
    **decoding: Any,
) -> SavableDataset[Any]:
    """Open a dataset for training: shuffled, and endless unless ``repeat=False``.

    Args:
        path: Folder with ``.nv-meta``, or metadataset ``.yaml`` (or its parsed content); a local path or
            any URL that fsspec knows. Also a ``.tar``, tars by braces (``train-{000..999}.tar``) or a folder of
            tars that are not prepared: see ``sample_type``.
        batch_size: Samples of a batch; None gives single samples.
        shuffle_buffer_size: Samples among which each is shuffled; None or 1 for none. It costs no memory:
            references are shuffled, not samples.
        max_samples_per_sequence: Samples that are read in sequence before another place is read; smaller
            is more random and costs more requests. None takes each shard's share whole.
        worker_config: Ranks, workers and seed. Default: from ``torch.distributed``, with 4 workers.
        split_part: Part of the dataset's split, or split of the metadataset. Of a dataset that is not prepared,
            ``train``, ``val`` and ``test`` are all of it.
        batch_drop_last: Whether a last batch that is not full is dropped.
        packing_buffer_size: Samples to select packs from; None for no packing.
        virtual_epoch_length: Batches of one epoch of one rank; 0 for none. Times the ranks it has to stay the same when
            a run is resumed.
        shuffle_over_epochs_multiplier: k permutes the slices of k passes together; -1 draws slices with
            replacement; None keeps the order of the dataset. Multiplies those of a metadataset.
        parallel_shard_iters: Slices that are read side by side; default 16.
        task_encoder: How samples become batches; None is a new ``DefaultTaskEncoder()``.
        repeat: Whether passes follow each other for ever. A blend by weights has no passes.
        ends: What a pass ends with, where there are passes, and ranks have unequal numbers of batches.
            ``"uneven"``: each gives what it has. ``"drop"``, ``"pad"``: all give the same number, see
            :class:`EvenDataset`. Virtual epochs are the same for all ranks anyway.
        subset: Part of the split part: ``{"range": ["10%", "50%"]}`` or ``{"range": [0, 1000]}``; for
            metadatasets a share of each source.
        parts: Parts that samples are made of, as ``["json", "txt"]``; others are not read where that saves
            bytes. None for all that ``dataset.yaml`` names.
        sample_type: What the samples of a dataset without ``dataset.yaml`` are: a class derived from ``Sample``, the
            name of one of the library's, or ``CrudeSample`` for parts by name, which cookers take. A folder that
            is not prepared is read only if this is given; tars that the path names are crude by default.
        field_map: Which part becomes which field, as in ``dataset.yaml``: ``{"image": "jpg"}``.
        split_config: File in ``.nv-meta`` that defines the split parts.
        dataset_config: File in ``.nv-meta`` that says how samples are made.
        storage_options: Credentials, endpoint and the like, as fsspec spells them; default: from the
            environment.
        transport: ``"auto"``, ``"obstore"`` or ``"fsspec"``.
        read_options: Limits of the look-ahead.
        cache: Where fetched bytes are kept on this node: a :class:`CacheConfig` or its directory; False for no
            cache. None: what ``ENERGON_STREAM_CACHE_DIR`` and ``ENERGON_STREAM_CACHE_SIZE`` say. Local paths are
            never cached.
        trust_dataset_code: Whether classes and files that the dataset names may be imported and run.
            None: whether ``ENERGON_STREAM_TRUST_DATASET_CODE`` is 1.
        **decoding: ``image_decode``, ``av_decode``, ``video_decode_audio``, ``guess_content``,
            ``auto_decode`` and ``handler``, which older code passes here.

    Raises:
        ConfigError: Some option cannot work.
        StorageError: The dataset cannot be reached.
        DatasetError: The dataset is not prepared, or its metadata is wrong.
    """
    config, encoder, samples = prepare(worker_config, task_encoder, trust_dataset_code, decoding, parts)
    shuffling = Shuffling(max_samples_per_sequence, shuffle_buffer_size, parallel_shard_iters)
    location = DatasetLocation(
        _root(path),
        split_part,
        storage_options,
        transport,
        split_config,
        dataset_config,
        parse_subset(subset, str(path)),
        shuffle_over_epochs_multiplier,
        cache_layer(cache),
        declared_samples(sample_type, field_map),
    )
    options = reading_options(read_options, batch_size, packing_buffer_size)
    mixture = open_mixture(location, config, samples, options, shuffling.order)
    blends_itself = encoder._hook_overridden("build_train_datasets")
    dataset: SavableDataset[Any] = call_with_accepted(
        encoder.build_train_datasets,
        datasets=mixture.train_datasets(repeat) if blends_itself else [mixture.train_dataset(repeat)],
        worker_config=config,
        batch_size=batch_size,
        batch_drop_last=batch_drop_last,
        packing_buffer_size=packing_buffer_size,
        virtual_epoch_length=virtual_epoch_length,
        shuffle_buffer_size=shuffle_buffer_size,
        blend_mode=mixture.blend_mode,
        repeat=repeat,
    )
    return with_ends(dataset, ends, even=bool(virtual_epoch_length))


def get_val_dataset(
    path: PathLike | Mapping[str, Any],
    *,
    batch_size: int | None,
    worker_config: WorkerConfig | None = None,
    split_part: str = "val",
    batch_drop_last: bool = False,
    packing_buffer_size: int | None = None,
    limit: int | None = None,
    ends: Ends = "uneven",
    task_encoder: TaskEncoder[Any, Any, Any, Any] | None = None,
    subset: Mapping[str, Any] | Sequence[Any] | None = None,
    parts: Sequence[str] | None = None,
    sample_type: SampleType | None = None,
    field_map: Mapping[str, str] | None = None,
    split_config: str = "split.yaml",
    dataset_config: str = "dataset.yaml",
    storage_options: Mapping[str, Any] | None = None,
    transport: Transport = "auto",
    read_options: ReadOptions | None = None,
    cache: CacheOption = None,
    trust_dataset_code: bool | None = None,
    **decoding: Any,
) -> SavableDataset[Any]:
    """Open a dataset for validation: in order, one pass; the sources of a metadataset one after the other.

    Args:
        path: Folder with ``.nv-meta``, or metadataset ``.yaml`` (or its parsed content); a local path or
            any URL that fsspec knows. Also a ``.tar``, tars by braces (``train-{000..999}.tar``) or a folder of
            tars that are not prepared: see ``sample_type``.
        batch_size: Samples of a batch; None gives single samples.
        worker_config: Ranks, workers and seed. Default: from ``torch.distributed``, with 4 workers.
        split_part: Part of the dataset's split, or split of the metadataset. Of a dataset that is not prepared,
            ``train``, ``val`` and ``test`` are all of it.
        batch_drop_last: Whether a last batch that is not full is dropped.
        packing_buffer_size: Samples to select packs from; None for no packing.
        limit: Batches of a pass of one rank; None for all.
        ends: What a pass ends with where ranks have unequal numbers of batches. ``"uneven"``: each gives what it
            has. ``"drop"``, ``"pad"``: all give the same number, see :class:`EvenDataset`.
        task_encoder: How samples become batches; None is a new ``DefaultTaskEncoder()``.
        subset: Part of the split part: ``{"range": ["10%", "50%"]}`` or ``{"range": [0, 1000]}``; for
            metadatasets a share of each source.
        parts: Parts that samples are made of, as ``["json", "txt"]``; others are not read where that saves
            bytes. None for all that ``dataset.yaml`` names.
        sample_type: What the samples of a dataset without ``dataset.yaml`` are: a class derived from ``Sample``, the
            name of one of the library's, or ``CrudeSample`` for parts by name, which cookers take. A folder that
            is not prepared is read only if this is given; tars that the path names are crude by default.
        field_map: Which part becomes which field, as in ``dataset.yaml``: ``{"image": "jpg"}``.
        split_config: File in ``.nv-meta`` that defines the split parts.
        dataset_config: File in ``.nv-meta`` that says how samples are made.
        storage_options: Credentials, endpoint and the like, as fsspec spells them.
        transport: ``"auto"``, ``"obstore"`` or ``"fsspec"``.
        read_options: Limits of the look-ahead.
        cache: Where fetched bytes are kept on this node; see :func:`get_train_dataset`.
        trust_dataset_code: Whether classes and files that the dataset names may be imported and run.
        **decoding: As in :func:`get_train_dataset`.

    Raises:
        ConfigError: Some option cannot work.
        StorageError: The dataset cannot be reached.
        DatasetError: The dataset is not prepared, or its metadata is wrong.
    """
    config, encoder, samples = prepare(worker_config, task_encoder, trust_dataset_code, decoding, parts)
    location = DatasetLocation(
        _root(path),
        split_part,
        storage_options,
        transport,
        split_config,
        dataset_config,
        parse_subset(subset, str(path)),
        through=cache_layer(cache),
        declared=declared_samples(sample_type, field_map),
    )
    options = reading_options(read_options, batch_size, packing_buffer_size)
    mixture = open_mixture(location, config, samples, options)
    concatenates_itself = encoder._hook_overridden("build_val_datasets")
    dataset: SavableDataset[Any] = call_with_accepted(
        encoder.build_val_datasets,
        datasets=mixture.val_datasets() if concatenates_itself else [mixture.val_dataset()],
        worker_config=config,
        batch_size=batch_size,
        batch_drop_last=batch_drop_last,
        packing_buffer_size=packing_buffer_size,
        limit=limit,
    )
    return with_ends(dataset, _without(ends, limit), even=False)


def get_val_datasets(
    path: PathLike | Mapping[str, Any],
    *,
    batch_size: int | None,
    worker_config: WorkerConfig | None = None,
    split_part: str = "val",
    batch_drop_last: bool = False,
    packing_buffer_size: int | None = None,
    limit: int | None = None,
    ends: Ends = "uneven",
    task_encoder: TaskEncoder[Any, Any, Any, Any] | None = None,
    subset: Mapping[str, Any] | Sequence[Any] | None = None,
    parts: Sequence[str] | None = None,
    sample_type: SampleType | None = None,
    field_map: Mapping[str, str] | None = None,
    split_config: str = "split.yaml",
    dataset_config: str = "dataset.yaml",
    storage_options: Mapping[str, Any] | None = None,
    transport: Transport = "auto",
    read_options: ReadOptions | None = None,
    cache: CacheOption = None,
    trust_dataset_code: bool | None = None,
    **decoding: Any,
) -> list[tuple[SavableDataset[Any], AnyLeafRef]]:
    """Open each source of a validation split as a dataset of its own.

    Takes and raises what :func:`get_val_dataset` does; ``limit`` holds for each dataset.

    Returns:
        Pairs of a dataset and the reference of its source.
    """
    config, encoder, samples = prepare(worker_config, task_encoder, trust_dataset_code, decoding, parts)
    location = DatasetLocation(
        _root(path),
        split_part,
        storage_options,
        transport,
        split_config,
        dataset_config,
        parse_subset(subset, str(path)),
        through=cache_layer(cache),
        declared=declared_samples(sample_type, field_map),
    )
    options = reading_options(read_options, batch_size, packing_buffer_size)
    mixture = open_mixture(location, config, samples, options)
    return [
        (
            with_ends(
                call_with_accepted(
                    encoder.build_val_datasets,
                    datasets=[dataset],
                    worker_config=config,
                    batch_size=batch_size,
                    batch_drop_last=batch_drop_last,
                    packing_buffer_size=packing_buffer_size,
                    limit=limit,
                ),
                _without(ends, limit),
                even=False,
            ),
            item.ref,
        )
        for dataset, item in zip(mixture.val_datasets(), mixture.items, strict=True)
    ]


def _without(ends: Ends, limit: int | None) -> Ends:
    """How passes end, where there is no limit that says so."""
    if limit is not None and ends != "uneven":
        raise ConfigError(
            f"limit={limit} and ends={ends!r} exclude each other",
            hint="a limit is the same for all ranks: leave ends out, if all of them have so many batches",
        )
    return ends


def _root(path: PathLike | Mapping[str, Any]) -> str | Mapping[str, Any]:
    return path if isinstance(path, Mapping) else os.fspath(path)
