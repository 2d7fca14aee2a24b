"""Names of Megatron-Energon that this library does not offer, and why."""

from __future__ import annotations

from collections.abc import Mapping

_AV = "a part of how Megatron-Energon reads video and audio; use AVDecoder"
_PROCESSES = "a part of Megatron-Energon's worker processes; here nothing crosses a fork"
_PREPARING = "a part of how Megatron-Energon prepares; call BaseWebdatasetFactory.prepare_dataset"
_READING = "a part of how Megatron-Energon reads its indices; use WebdatasetFileStore or SqliteIndexReader"
_ORDER = "the order of samples, and their dealing to workers, is this library's own"
_OUTPUT = "a helper of the command's own output"
_DOCUMENT = "a node of a parsed metadataset; write the metadataset as YAML, or pass it as a dict"
_JOINS = "a part of how Megatron-Energon joins; run `energon prepare` on the metadataset"
_WRAPPERS = "a part of wrapper datasets of one's own; derive from energon_stream.pipeline.dataset.Wrapper"
_CODE = "code that lies beside data runs only from dataset.yaml, and only if the data is trusted"

MISSING_MODULES: Mapping[str, str] = {
    "av.av_init": _AV,
    "av.av_reader": _AV,
    "flavors.webdataset.aggregator_pool": _PREPARING,
    "flavors.webdataset.tar_patcher": "a part of --fix-duplicates, which `energon prepare` has",
    "flavors.webdataset.thread_local_sqlite": _READING,
    "fork_hook": _PROCESSES,
    "metadataset.join_dataset_loader": _JOINS,
    "module_loader": _CODE,
}
"""Address, to the reason why it and all below it is missing."""

MISSING_NAMES: Mapping[str, Mapping[str, str]] = {
    "av.av_decoder": {"AVIndexMode AV_DECODE_AVAILABLE MISSING_DEPENDENCY": _AV},
    "flavors.webdataset.prepare": {"SqliteIndexWriterAggregator": _PREPARING},
    "flavors.webdataset.sample_decoder": {
        "GuessingHandlerWrapper": "SampleDecoder(guess_content=True) guesses; derive other decoders from it"
    },
    "flavors.webdataset.sample_loader": {"RawSampleData WebdatasetSampleLoaderDataset": _ORDER},
    "flavors.webdataset.sharder": {"Sharder": _ORDER},
    "metadataset.loader": {"MockJsonParser": _JOINS},
    "metadataset.metadataset": {"DatasetReference MetadatasetBlender": _DOCUMENT},
    "metadataset.metadataset_v2": {
        "AuxDatasetReference AuxFilesystemReference BlendDatasetReference BlendEpochizedDatasetReference "
        "BlendEpochizedJoinDatasetReference BlendJoinDatasetReference BlendRepetitionsMixin "
        "BlendWeightMixin DatasetReference JoinDatasetReference MetadatasetBlend MetadatasetBlendEpochized "
        "MetadatasetJoin Subset SubsetRatioMixin": _DOCUMENT
    },
    "savable_loader": {"SavableDatasetWrapper SimpleSavableDatasetWrapper": _PROCESSES},
    "cli.main": {"print_version": _OUTPUT},
    "tools.analyze_debug": {
        "AutosizingHeatmapWriter LOADER_LOG_LINE_TYPES_T LoaderInfo LoaderInitLogLine LoaderIterLogLine "
        "LoaderLines LoaderLogIter LoaderStopLogLine LoaderYieldLogLine SampleLoaderYieldLogLine "
        "YieldBatchLogLine cpal": _OUTPUT
    },
    "tools.checkpoint": {"RankStateIterable detect_and_replicate_pattern natural_sort_key": _OUTPUT},
    "tools.info": {"fmt fmt_size split_fmt": _OUTPUT},
    "tools.lint": {"check_index": _OUTPUT},
    "tools.mount": {"EnergonFS MULTI_WARN": _OUTPUT},
    "tools.prepare": {"printify_json sample_loader_template type_str": _OUTPUT},
    "tools.preview": {"pprint to_str": _OUTPUT},
    "wrappers.base": {"SampleIndex": _WRAPPERS},
    "wrappers.buffer": {"SavableSampleBuffer": _WRAPPERS},
    "wrappers.gc_dataset": {"gc_init_worker": _PROCESSES},
    "wrappers.group_batch_dataset": {"Bucket": _WRAPPERS},
}
"""Address, to names, to the reason why they are missing there."""
