"""Stream Energon/WebDataset training data straight from object storage, with exact resume.

Names are imported when they are first used, so that commands and servers that need no PyTorch start fast.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from energon_stream.cache import (
        CacheConfig as CacheConfig,
    )
    from energon_stream.errors import (
        FatalSampleError as FatalSampleError,
    )
    from energon_stream.errors import (
        IgnoreSample as IgnoreSample,
    )
    from energon_stream.errors import (
        SkipSample as SkipSample,
    )
    from energon_stream.index.media import (
        ImageMetadata as ImageMetadata,
    )
    from energon_stream.loader import (
        BasicDataLoader as BasicDataLoader,
    )
    from energon_stream.loader import (
        SavableDataLoader as SavableDataLoader,
    )
    from energon_stream.loader import (
        get_loader as get_loader,
    )
    from energon_stream.loader import (
        get_savable_loader as get_savable_loader,
    )
    from energon_stream.media import (
        CachePool as CachePool,
    )
    from energon_stream.media import (
        DecodeFileStore as DecodeFileStore,
    )
    from energon_stream.media import (
        DirectLazy as DirectLazy,
    )
    from energon_stream.media import (
        FileCacheLazy as FileCacheLazy,
    )
    from energon_stream.media import (
        FileStore as FileStore,
    )
    from energon_stream.media import (
        FileStoreCachePool as FileStoreCachePool,
    )
    from energon_stream.media import (
        Lazy as Lazy,
    )
    from energon_stream.media import (
        MockLazy as MockLazy,
    )
    from energon_stream.media import (
        NoCachePool as NoCachePool,
    )
    from energon_stream.media import (
        PrimaryFileStore as PrimaryFileStore,
    )
    from energon_stream.media import (
        SystemFileStore as SystemFileStore,
    )
    from energon_stream.pipeline import (
        BatchDataset as BatchDataset,
    )
    from energon_stream.pipeline import (
        BlendDataset as BlendDataset,
    )
    from energon_stream.pipeline import (
        ConcatDataset as ConcatDataset,
    )
    from energon_stream.pipeline import (
        EpochizeDataset as EpochizeDataset,
    )
    from energon_stream.pipeline import (
        EvenDataset as EvenDataset,
    )
    from energon_stream.pipeline import (
        FilterDataset as FilterDataset,
    )
    from energon_stream.pipeline import (
        GcDataset as GcDataset,
    )
    from energon_stream.pipeline import (
        GroupBatchDataset as GroupBatchDataset,
    )
    from energon_stream.pipeline import (
        IterMapDataset as IterMapDataset,
    )
    from energon_stream.pipeline import (
        LimitDataset as LimitDataset,
    )
    from energon_stream.pipeline import (
        LogSampleDataset as LogSampleDataset,
    )
    from energon_stream.pipeline import (
        MapDataset as MapDataset,
    )
    from energon_stream.pipeline import (
        MixBatchDataset as MixBatchDataset,
    )
    from energon_stream.pipeline import (
        PackingDataset as PackingDataset,
    )
    from energon_stream.pipeline import (
        RepeatDataset as RepeatDataset,
    )
    from energon_stream.pipeline import (
        SavableDataset as SavableDataset,
    )
    from energon_stream.pipeline import (
        ShuffleBufferDataset as ShuffleBufferDataset,
    )
    from energon_stream.pipeline import (
        log_exception as log_exception,
    )
    from energon_stream.pipeline import (
        reraise_exception as reraise_exception,
    )
    from energon_stream.pipeline.collate import (
        batch_list as batch_list,
    )
    from energon_stream.pipeline.collate import (
        batch_pad_stack as batch_pad_stack,
    )
    from energon_stream.pipeline.collate import (
        batch_stack as batch_stack,
    )
    from energon_stream.pipeline.collate import (
        concat_pad as concat_pad,
    )
    from energon_stream.pipeline.collate import (
        generic_batch as generic_batch,
    )
    from energon_stream.pipeline.collate import (
        generic_concat as generic_concat,
    )
    from energon_stream.pipeline.collate import (
        homogeneous_concat_mix as homogeneous_concat_mix,
    )
    from energon_stream.prewarming import (
        PrewarmPlan as PrewarmPlan,
    )
    from energon_stream.prewarming import (
        PrewarmResult as PrewarmResult,
    )
    from energon_stream.prewarming import (
        prewarm as prewarm,
    )
    from energon_stream.read.decode import (
        FileStoreDecoder as FileStoreDecoder,
    )
    from energon_stream.read.decode import (
        SampleDecoder as SampleDecoder,
    )
    from energon_stream.read.options import (
        ReadOptions as ReadOptions,
    )
    from energon_stream.recipe import (
        DatasetLoader as DatasetLoader,
    )
    from energon_stream.recipe import (
        DatasetLoaderInterface as DatasetLoaderInterface,
    )
    from energon_stream.recipe import (
        LoadedDatasetList as LoadedDatasetList,
    )
    from energon_stream.recipe import (
        Metadataset as Metadataset,
    )
    from energon_stream.recipe import (
        MetadatasetV2 as MetadatasetV2,
    )
    from energon_stream.recipe import (
        get_train_dataset as get_train_dataset,
    )
    from energon_stream.recipe import (
        get_val_dataset as get_val_dataset,
    )
    from energon_stream.recipe import (
        get_val_datasets as get_val_datasets,
    )
    from energon_stream.recipe import (
        load_dataset as load_dataset,
    )
    from energon_stream.recipe import (
        prepare_metadataset as prepare_metadataset,
    )
    from energon_stream.recipe import (
        traverse_metadataset as traverse_metadataset,
    )
    from energon_stream.samples import (
        Batch as Batch,
    )
    from energon_stream.samples import (
        CaptioningSample as CaptioningSample,
    )
    from energon_stream.samples import (
        CrudeSample as CrudeSample,
    )
    from energon_stream.samples import (
        ImageClassificationSample as ImageClassificationSample,
    )
    from energon_stream.samples import (
        ImageSample as ImageSample,
    )
    from energon_stream.samples import (
        InterleavedSample as InterleavedSample,
    )
    from energon_stream.samples import (
        MultiChoiceVQASample as MultiChoiceVQASample,
    )
    from energon_stream.samples import (
        OCRSample as OCRSample,
    )
    from energon_stream.samples import (
        Sample as Sample,
    )
    from energon_stream.samples import (
        SimilarityInterleavedSample as SimilarityInterleavedSample,
    )
    from energon_stream.samples import (
        SourceInfo as SourceInfo,
    )
    from energon_stream.samples import (
        TextSample as TextSample,
    )
    from energon_stream.samples import (
        VidQASample as VidQASample,
    )
    from energon_stream.samples import (
        VQAOCRSample as VQAOCRSample,
    )
    from energon_stream.samples import (
        VQASample as VQASample,
    )
    from energon_stream.samples import (
        edataclass as edataclass,
    )
    from energon_stream.storage import (
        CounterSnapshot as CounterSnapshot,
    )
    from energon_stream.task import (
        AugmentTaskEncoder as AugmentTaskEncoder,
    )
    from energon_stream.task import (
        Cooker as Cooker,
    )
    from energon_stream.task import (
        DatasetBlendMode as DatasetBlendMode,
    )
    from energon_stream.task import (
        DefaultTaskEncoder as DefaultTaskEncoder,
    )
    from energon_stream.task import (
        TaskEncoder as TaskEncoder,
    )
    from energon_stream.task import (
        basic_sample_keys as basic_sample_keys,
    )
    from energon_stream.task import (
        cooker as cooker,
    )
    from energon_stream.task import (
        stateless as stateless,
    )
    from energon_stream.task.packers import (
        best_fit_decreasing as best_fit_decreasing,
    )
    from energon_stream.task.packers import (
        first_fit as first_fit,
    )
    from energon_stream.task.packers import (
        histogram_pack as histogram_pack,
    )
    from energon_stream.task.packers import (
        pack_by_size as pack_by_size,
    )
    from energon_stream.worker import (
        WorkerConfig as WorkerConfig,
    )

__version__ = "0.1.0"

_EXPORTS = {
    "energon_stream.media": [
        "CachePool",
        "DecodeFileStore",
        "DirectLazy",
        "FileCacheLazy",
        "FileStore",
        "FileStoreCachePool",
        "Lazy",
        "MockLazy",
        "NoCachePool",
        "PrimaryFileStore",
        "SystemFileStore",
    ],
    "energon_stream.cache": ["CacheConfig"],
    "energon_stream.errors": ["FatalSampleError", "IgnoreSample", "SkipSample"],
    "energon_stream.index.media": ["ImageMetadata"],
    "energon_stream.loader": ["BasicDataLoader", "SavableDataLoader", "get_loader", "get_savable_loader"],
    "energon_stream.pipeline": [
        "BatchDataset",
        "BlendDataset",
        "ConcatDataset",
        "EpochizeDataset",
        "EvenDataset",
        "FilterDataset",
        "GcDataset",
        "GroupBatchDataset",
        "IterMapDataset",
        "LimitDataset",
        "LogSampleDataset",
        "MapDataset",
        "MixBatchDataset",
        "PackingDataset",
        "RepeatDataset",
        "SavableDataset",
        "ShuffleBufferDataset",
        "log_exception",
        "reraise_exception",
    ],
    "energon_stream.pipeline.collate": [
        "batch_list",
        "batch_pad_stack",
        "batch_stack",
        "concat_pad",
        "generic_batch",
        "generic_concat",
        "homogeneous_concat_mix",
    ],
    "energon_stream.prewarming": ["PrewarmPlan", "PrewarmResult", "prewarm"],
    "energon_stream.read.decode": ["FileStoreDecoder", "SampleDecoder"],
    "energon_stream.read.options": ["ReadOptions"],
    "energon_stream.recipe": [
        "DatasetLoader",
        "DatasetLoaderInterface",
        "LoadedDatasetList",
        "Metadataset",
        "MetadatasetV2",
        "get_train_dataset",
        "get_val_dataset",
        "get_val_datasets",
        "load_dataset",
        "prepare_metadataset",
        "traverse_metadataset",
    ],
    "energon_stream.samples": [
        "Batch",
        "CaptioningSample",
        "CrudeSample",
        "ImageClassificationSample",
        "ImageSample",
        "InterleavedSample",
        "MultiChoiceVQASample",
        "OCRSample",
        "Sample",
        "SimilarityInterleavedSample",
        "SourceInfo",
        "TextSample",
        "VQAOCRSample",
        "VQASample",
        "VidQASample",
        "edataclass",
    ],
    "energon_stream.storage": ["CounterSnapshot"],
    "energon_stream.task": [
        "AugmentTaskEncoder",
        "Cooker",
        "DatasetBlendMode",
        "DefaultTaskEncoder",
        "TaskEncoder",
        "basic_sample_keys",
        "cooker",
        "stateless",
    ],
    "energon_stream.task.packers": ["best_fit_decreasing", "first_fit", "histogram_pack", "pack_by_size"],
    "energon_stream.worker": ["WorkerConfig"],
}
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if os.environ.get("ENERGON_STREAM_ALIAS", "0") not in ("", "0"):
    # The one thing that the library knows of what lies to its right, and only where the user asks for it.
    importlib.import_module("energon_stream.compat.alias").install_from_environment()
