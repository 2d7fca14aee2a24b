"""``get_train_dataset`` and its kin: a path and some options to a dataset."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from energon_stream.errors import ConfigError
from energon_stream.pipeline import SavableDataset
from energon_stream.pipeline.source import SourceDataset
from energon_stream.read.decode import FileStoreDecoder, SampleDecoder
from energon_stream.read.options import ReadOptions
from energon_stream.recipe.sources import SampleOptions, open_leaf, open_sources
from energon_stream.recipe.subset import parse_subset
from energon_stream.recipe.tree import LeafRef
from energon_stream.schedule import LeafPlan, OrderSpec, RepeatPlan
from energon_stream.storage import StoreSpec, Transport
from energon_stream.task import DefaultTaskEncoder, LoadedDataset, TaskEncoder, call_with_accepted
from energon_stream.worker import WorkerConfig

__all__ = ["get_train_dataset", "get_val_dataset"]

PathLike = str | os.PathLike[str]
_FIRST_SAMPLES = 8
_PARALLEL_SLICES = 16


def get_train_dataset(
    path: PathLike,
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
    subset: Mapping[str, Any] | Sequence[Any] | None = None,
    split_config: str = "split.yaml",
    dataset_config: str = "dataset.yaml",
    storage_options: Mapping[str, Any] | None = None,
    transport: Transport = "auto",
    read_options: ReadOptions | None = None,
    trust_dataset_code: bool | None = None,
    **decoding: Any,
) -> SavableDataset[Any]:
    """Open a dataset for training: shuffled, and endless unless ``repeat=False``.

    Args:
        path: Folder with ``.nv-meta``; a local path or any URL that fsspec knows.
        batch_size: Samples of a batch; None gives single samples.
        shuffle_buffer_size: Samples among which each is shuffled; None or 1 for none. It costs no memory:
            references are shuffled, not samples.
        max_samples_per_sequence: Samples that are read in sequence before another place is read; smaller
            is more random and costs more requests. None takes each shard's share whole.
        worker_config: Ranks, workers and seed. Default: from ``torch.distributed``, with 4 workers.
        split_part: Part of the split.
        batch_drop_last: Whether a last batch that is not full is dropped.
        packing_buffer_size: Samples to select packs from; None for no packing.
        virtual_epoch_length: Batches of one epoch of one rank; 0 for none.
        shuffle_over_epochs_multiplier: k permutes the slices of k passes together; -1 draws slices with
            replacement; None keeps the order of the dataset.
        parallel_shard_iters: Slices that are read side by side; default 16.
        task_encoder: How samples become batches; None is a new ``DefaultTaskEncoder()``.
        repeat: Whether passes follow each other for ever.
        subset: Part of the split part: ``{"range": ["10%", "50%"]}`` or ``{"range": [0, 1000]}``.
        split_config: File in ``.nv-meta`` that defines the split parts.
        dataset_config: File in ``.nv-meta`` that says how samples are made.
        storage_options: Credentials, endpoint and the like, as fsspec spells them; default: from the
            environment.
        transport: ``"auto"``, ``"obstore"`` or ``"fsspec"``.
        read_options: Limits of the look-ahead.
        trust_dataset_code: Whether classes and files that the dataset names may be imported and run.
            None: whether ``ENERGON_STREAM_TRUST_DATASET_CODE`` is 1.
        **decoding: ``image_decode``, ``av_decode``, ``video_decode_audio``, ``guess_content``,
            ``auto_decode`` and ``handler``, which older code passes here.

    Raises:
        ConfigError: Some option cannot work.
        StorageError: The dataset cannot be reached.
        DatasetError: The dataset is not prepared, or its metadata is wrong.
    """
    config, encoder, samples = _prepare(worker_config, task_encoder, trust_dataset_code, decoding)
    parallel = parallel_shard_iters
    if parallel is None:
        parallel = 1 if shuffle_over_epochs_multiplier is None else _PARALLEL_SLICES
    order = OrderSpec(
        max_samples_per_sequence, shuffle_buffer_size or 0, parallel, shuffle_over_epochs_multiplier
    )
    ref = LeafRef(
        StoreSpec(os.fspath(path), storage_options, transport),
        split_part,
        split_config,
        dataset_config,
        subset=parse_subset(subset, os.fspath(path)),
    )
    source = _open(
        ref, config, order, samples, _options(read_options, batch_size, packing_buffer_size), repeat
    )
    source.require_samples_in_every_stream()
    dataset: SavableDataset[Any] = call_with_accepted(
        encoder.build_train_datasets,
        datasets=[LoadedDataset(source, 1.0, subflavors=source.leaves[0].subflavors)],
        worker_config=config,
        batch_size=batch_size,
        batch_drop_last=batch_drop_last,
        packing_buffer_size=packing_buffer_size,
        virtual_epoch_length=virtual_epoch_length,
        shuffle_buffer_size=shuffle_buffer_size,
        repeat=repeat,
    )
    return dataset


def get_val_dataset(
    path: PathLike,
    *,
    batch_size: int | None,
    worker_config: WorkerConfig | None = None,
    split_part: str = "val",
    batch_drop_last: bool = False,
    packing_buffer_size: int | None = None,
    limit: int | None = None,
    task_encoder: TaskEncoder[Any, Any, Any, Any] | None = None,
    subset: Mapping[str, Any] | Sequence[Any] | None = None,
    split_config: str = "split.yaml",
    dataset_config: str = "dataset.yaml",
    storage_options: Mapping[str, Any] | None = None,
    transport: Transport = "auto",
    read_options: ReadOptions | None = None,
    trust_dataset_code: bool | None = None,
    **decoding: Any,
) -> SavableDataset[Any]:
    """Open a dataset for validation: in order, one pass.

    Args:
        path: Folder with ``.nv-meta``; a local path or any URL that fsspec knows.
        batch_size: Samples of a batch; None gives single samples.
        worker_config: Ranks, workers and seed. Default: from ``torch.distributed``, with 4 workers.
        split_part: Part of the split.
        batch_drop_last: Whether a last batch that is not full is dropped.
        packing_buffer_size: Samples to select packs from; None for no packing.
        limit: Batches of a pass of one rank; None for all.
        task_encoder: How samples become batches; None is a new ``DefaultTaskEncoder()``.
        subset: Part of the split part: ``{"range": ["10%", "50%"]}`` or ``{"range": [0, 1000]}``.
        split_config: File in ``.nv-meta`` that defines the split parts.
        dataset_config: File in ``.nv-meta`` that says how samples are made.
        storage_options: Credentials, endpoint and the like, as fsspec spells them.
        transport: ``"auto"``, ``"obstore"`` or ``"fsspec"``.
        read_options: Limits of the look-ahead.
        trust_dataset_code: Whether classes and files that the dataset names may be imported and run.
        **decoding: As in :func:`get_train_dataset`.

    Raises:
        ConfigError: Some option cannot work.
        StorageError: The dataset cannot be reached.
        DatasetError: The dataset is not prepared, or its metadata is wrong.
    """
    config, encoder, samples = _prepare(worker_config, task_encoder, trust_dataset_code, decoding)
    ref = LeafRef(
        StoreSpec(os.fspath(path), storage_options, transport),
        split_part,
        split_config,
        dataset_config,
        subset=parse_subset(subset, os.fspath(path)),
    )
    options = _options(read_options, batch_size, packing_buffer_size)
    source = _open(ref, config, OrderSpec(), samples, options, repeat=False)
    dataset: SavableDataset[Any] = call_with_accepted(
        encoder.build_val_datasets,
        datasets=[LoadedDataset(source, 1.0, subflavors=source.leaves[0].subflavors)],
        worker_config=config,
        batch_size=batch_size,
        batch_drop_last=batch_drop_last,
        packing_buffer_size=packing_buffer_size,
        limit=limit,
    )
    return dataset


def _open(
    ref: LeafRef,
    config: WorkerConfig,
    order: OrderSpec,
    samples: SampleOptions,
    options: ReadOptions,
    repeat: bool,
) -> SourceDataset:
    index = open_sources([ref], config)[0]
    leaf, plan = open_leaf(0, ref, index, order, samples)
    whole: LeafPlan | RepeatPlan = RepeatPlan(plan) if repeat else plan
    return SourceDataset([leaf], whole, worker_config=config, options=options)


def _options(given: ReadOptions | None, batch_size: int | None, packing: int | None) -> ReadOptions:
    """The first batch is fetched exactly; packing needs a full buffer before it."""
    for name, value in (("batch_size", batch_size), ("packing_buffer_size", packing)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} is {value}", hint="use 1 or more, or None")
    if given is not None:
        return given
    return ReadOptions(first_samples=packing or batch_size or _FIRST_SAMPLES)


def _prepare(
    config: WorkerConfig | None,
    encoder: TaskEncoder[Any, Any, Any, Any] | None,
    trust: bool | None,
    decoding: dict[str, Any],
) -> tuple[WorkerConfig, TaskEncoder[Any, Any, Any, Any], SampleOptions]:
    config = config or WorkerConfig.default_worker_config()
    encoder = encoder or DefaultTaskEncoder()
    handler = decoding.pop("handler", None)
    if handler is not None:
        warnings.warn(
            "handler= is deprecated: use WorkerConfig(global_error_handler=…)", FutureWarning, stacklevel=3
        )
        config = replace(config, global_error_handler=_legacy_handler(handler))
    return config, encoder, SampleOptions(_decoder(encoder.decoder, decoding), trust)


def _legacy_handler(handler: Callable[[Exception, Any], Any]) -> Callable[..., None]:
    def call(error: Exception, sample: Any, sources: Any = None) -> None:
        key = sample.get("__key__") if isinstance(sample, dict) else getattr(sample, "__key__", None)
        handler(error, key)

    return call


_DECODING = ("image_decode", "av_decode", "video_decode_audio", "guess_content", "allow_pickle")


def _decoder(own: FileStoreDecoder | None, decoding: dict[str, Any]) -> FileStoreDecoder | None:
    """The encoder's decoder, or another one made of the arguments; the encoder itself is not touched."""
    unknown = sorted(set(decoding) - {*_DECODING, "auto_decode"})
    if unknown:
        raise ConfigError(
            f"unknown arguments {unknown}", hint=f"known here are {[*_DECODING, 'auto_decode', 'handler']}"
        )
    auto: Literal[True, False] | None = decoding.pop("auto_decode", None)
    if auto is False:
        if decoding:
            raise ConfigError(f"auto_decode=False leaves bytes, so {sorted(decoding)} cannot be honoured")
        return None
    return SampleDecoder(**decoding) if decoding else own
