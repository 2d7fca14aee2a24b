"""The places in this library of the names of ``megatron.energon``.

:mod:`~energon_stream.compat.address_names` has the names of each address. A name means the same object at
every address, unless :data:`PLACES` says otherwise; objects are imported when they are first asked for.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Mapping
from typing import Any

from energon_stream.compat.address_names import NAMES
from energon_stream.compat.missing import MISSING_MODULES, MISSING_NAMES
from energon_stream.errors import MissingNameError

ENERGON_VERSION = "7.4.1"
"""The version of Megatron-Energon whose names and behaviour this library offers."""

ROOT = "megatron.energon"

HOMES: Mapping[str, str] = {
    "compat.handling": "ErrorContext SYSTEM_EXCEPTIONS handle_restore_errors legacy_handler",
    "compat.sample_helpers": (
        "ExtendableDataclassMixin PinMemoryMixin State add_sample_restore_key add_source_info "
        "default_get_batch_keys format_sample_compact format_sample_detailed get_sample_restore_key "
        "get_cooker_need_cache get_cooker_need_primary get_source_info set_sample_restore_key"
    ),
    "compat.text_forms": (
        "FieldAccessError collapse deprecated field_access float_pattern load_yaml_json skip_meta_re "
        "split_field_access split_name_re to_json_object url_regex warn_deprecated"
    ),
    "compat.dataset_config": (
        "JsonParser TraversedDatasetReference get_dataset_from_config load_config load_yaml "
        "traverse_metadataset"
    ),
    "compat.dataset_info": (
        "DatasetSubset EnergonDatasetType FilteredSample ShardInfo WebdatasetInfo WebdatasetMeta "
        "WebdatasetSplits check_dataset_info_present get_dataset_info get_dataset_type get_info_shard_files"
    ),
    "compat.file_indices": (
        "CachedIJsonlOffsetReader CachedItarOffsetReader IJsonlFile IJsonlIndexReader IJsonlIndexWriter "
        "IJsonlSamplePointer ITarFile ITarRawSamplePartPointer ITarSamplePointer RetryReadStream "
        "SubFileReader TarIndexReader TarIndexWriter get_itar_byte_offset open_itar"
    ),
    "compat.local_copies": (
        "ConfigEntry LOCAL_COPY_TMP_DIR ensure_local_copy find_executable_path get_rclone_config_path "
        "read_rclone_config read_rclone_config_at_path"
    ),
    "compat.readers": (
        "IJsonlReader ITarReader JoinIndexFileITarReader JsonlFileStore ShardInfosITarReader "
        "SqliteITarEntryReader"
    ),
    "compat.sqlite_indices": (
        "IndexAggregatable IndexMediaMetadata IndexSample IndexSamplePart IndexShardInfo JoinIndexReader "
        "JoinIndexWriter SqliteIndexReader SqliteIndexWriter"
    ),
    "compat.draws": "Savable SystemRng WorkerRng",
    "compat.watch": "Watchdog WatchdogDataset repr_short",
    "pipeline.dataset": "BaseWrapperDataset=Operator",
    "compat.epath": "DEFAULT_PROFILE_NAME EPath NVDATASET_CACHE_DIR RESERVED_POSIX_PROFILE_NAME",
    "compat.dataset_classes": (
        "BaseCoreDatasetFactory BaseWebdatasetFactory CaptioningWebdataset CrudeJsonlDatasetFactory "
        "CrudeWebdataset DefaultCrudeJsonlDatasetFactory DefaultDecoderWebdatasetFactory "
        "DefaultGenericWebdatasetFactory ImageClassificationWebdataset ImageWebdataset "
        "InterleavedWebdataset JoinedWebdatasetFactory JsonlPreparator=CrudeJsonlDatasetFactory "
        "MultiChoiceVQAWebdataset OCRWebdataset SimilarityInterleavedWebdataset StandardWebdatasetFactory "
        "TextWebdataset VQAOCRWebdataset VQAWebdataset VidQAWebdataset "
        "WebdatasetPreparator=BaseWebdatasetFactory"
    ),
    "compat.media_filters": "MediaFilterConfig MediaFilterStrategy SourceData prepare_filesystem_dataset",
    "compat.placeholders": (
        "DEBUG_SHARD_PRINT DEFAULT_DECODER FlexState GC_DEFAULT_EVERY_N_ITER "
        "GcFreezeError IJSONL_SUFFIX INDEX_BATCH_SIZE INDEX_SQLITE_FILENAME INDEX_UUID_FILENAME "
        "INFO_JSON_FILENAME INFO_YAML_FILENAME ITAR_SUFFIX ImageDecoderType JOIN_INDEX_FILENAME "
        "MAIN_FOLDER_NAME PRINT_LOCAL_MAX_LENGTH SPLIT_YAML_FILENAME SavableCheckpoint "
        "SavableDataLoaderState SavableDatasetCheckpoint SavableDatasetState SliceState SystemRngState"
    ),
    "compat.type_variables": (
        "F FeatureBatcher P T TMetadata TType T_aggregation_data T_batch T_batch_in T_batch_sample "
        "T_encoded_sample T_index T_input_data T_raw_batch T_result T_sample T_sample_in T_sample_out V"
    ),
    "errors": "DuplicateSampleKeyError=DuplicateKeyError JsonValueError=MetadataError SampleException=SampleError",
    "media.av": (
        "AVData AVDecoder AVDecoderType AVWebdatasetDecoder VideoData get_clips_uniform "
        "get_single_frames_uniform"
    ),
    "media.file_pool": "CacheFileLazy=StoredLazy",
    "media.file_store": "FileStoreWrapper",
    "decode": "SampleDecoder",
    "auxiliary.stores": "WebdatasetFileStore",
    "samples": "VQAOCRSample",
    "task": "LoadedDataset",
    "transforms": (
        "CenterCropMapper CustomTransform MergeTransform RandomCropMapper RandomHorizontalFlipMapper "
        "RandomPerspectiveMapper RandomResizedCropMapper RandomRotationMapper RandomVerticalFlipMapper "
        "ResizeMapper TransformMapper"
    ),
    "transforms.common": "Sampling TTransform",
    "task.stateless": "get_failure_tolerance get_stateless",
}
"""Modules of this library, to names; ``theirs=ours`` where the names differ."""

PLACES: Mapping[str, Mapping[str, str]] = {
    "cli.main": {"main": "cli.main:energon"},
    "flavors.jsonl.ijsonl": {"CacheEntry": "compat.file_indices:IJsonlCacheEntry"},
    "flavors.webdataset.itar": {"CacheEntry": "compat.file_indices:TarCacheEntry"},
    "tools.analyze_debug": {"command": "cli.analyze:analyze_debug"},
    "tools.checkpoint": {
        "command": "cli.checkpoint:checkpoint",
        "command_info": "cli.checkpoint:info",
        "command_redist": "cli.checkpoint:redist",
    },
    "tools.info": {"command": "cli.info:info"},
    "tools.lint": {"command": "cli.lint:lint"},
    "tools.mount": {"command": "cli.mount:mount"},
    "tools.prepare": {"command": "cli.prepare:prepare"},
    "tools.prepare_media": {"command": "cli.prepare:prepare_media"},
    "tools.preview": {"command": "cli.preview:preview"},
}
"""Names that mean something else at one address: address, to name, to ``module:name`` in this library."""


_LOGGER = "logger"
_AMBIGUOUS = ("CacheEntry", "command", "main")


@functools.cache
def _homes() -> Mapping[str, tuple[str, str]]:
    found = {}
    for module, names in HOMES.items():
        for name in names.split():
            theirs, _, ours = name.partition("=")
            found[theirs] = (f"energon_stream.{module}", ours or theirs)
    return found


def home(address: str, name: str) -> tuple[str, str] | None:
    """Return the module and the name of the object that a name at an address means; None if it means none."""
    if name in PLACES.get(address, ()):
        module, _, ours = PLACES[address][name].partition(":")
        return f"energon_stream.{module}", ours
    if name in _AMBIGUOUS or missing_reason(address, name) is not None:
        return None
    if name in _homes():
        return _homes()[name]
    for module in ("energon_stream", "energon_stream.errors", "energon_stream.compat.dataset_classes"):
        if name in importlib.import_module(module).__all__:
            return module, name
    return None


def find(address: str, name: str) -> Any:
    """Return the object that a name at an address means.

    Raises:
        MissingNameError: Megatron-Energon has the name there, and this library does not.
        AttributeError: Neither has it.
    """
    place = home(address, name)
    if place is not None:
        return getattr(importlib.import_module(place[0]), place[1])
    where = f"{ROOT}.{address}".rstrip(".")
    if name == _LOGGER:
        return logging.getLogger(where)
    reason = missing_reason(address, name)
    if reason is not None or name in NAMES[address].split():
        raise MissingNameError(f"{name} of Megatron-Energon is not offered here", where=where, hint=reason)
    raise AttributeError(f"module {where!r} has no attribute {name!r}")


def missing_reason(address: str, name: str = "") -> str | None:
    """Return the reason why a name of an address, or a whole address, is missing; None if it is not."""
    reason = next((MISSING_MODULES[a] for a in _above(address) if a in MISSING_MODULES), None)
    if reason is None and name:
        names = MISSING_NAMES.get(address, {})
        reason = next((text for listed, text in names.items() if name in listed.split()), None)
    return reason


def _above(address: str) -> list[str]:
    """Return an address and all packages that it is in."""
    parts = address.split(".")
    return [".".join(parts[:count]) for count in range(len(parts), 0, -1)]


def offered(address: str) -> list[str]:
    """Return the names of an address, sorted. Nothing is imported."""
    names = set(NAMES[address].split())
    if not address:
        names.update(importlib.import_module("energon_stream").__all__)
    return sorted(name for name in names if name == _LOGGER or home(address, name) is not None)


def children(address: str) -> list[str]:
    """Return the addresses directly below an address."""
    return [other for other in NAMES if other and other.rpartition(".")[0] == address]
