"""The addresses of ``megatron.energon``: names of this library, by the module that defines them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

ENERGON_VERSION = "7.4.1"
"""The version of Megatron-Energon whose names and behaviour this library offers."""

_CORE = "energon_stream."
_FACTORIES = _CORE + "compat.factories"
_PLACEHOLDERS = _CORE + "compat.placeholders"
_DATASET_CONFIG = _CORE + "compat.dataset_config"

_ALL = None
"""Stands for all names that a module exports."""

_TARS = (
    "BaseWebdatasetFactory",
    "DefaultDecoderWebdatasetFactory",
    "DefaultGenericWebdatasetFactory",
    "StandardWebdatasetFactory",
)
_COLLATE = ("batch_list", "batch_pad_stack", "batch_stack", "generic_batch")
_FILE_NAMES = ("INFO_JSON_FILENAME", "INFO_YAML_FILENAME", "MAIN_FOLDER_NAME", "SPLIT_YAML_FILENAME")
_EPATH = {_CORE + "compat.epath": ("EPath",)}
_FLEX = {_PLACEHOLDERS: ("FlexState",)}
_HANDLERS = {_CORE + "pipeline": ("log_exception", "reraise_exception")}
_WORKER = {_CORE + "worker": ("WorkerConfig",)}

ADDRESSES: Mapping[str, Mapping[str, Sequence[str] | None]] = {
    "": {"energon_stream": _ALL, _FACTORIES: _ALL},
    "av": {_PLACEHOLDERS: ("AVData", "AVDecoder")},
    "cache": {_CORE + "media": _ALL, _CORE + "read.decode": ("FileStoreDecoder",)},
    "dataset_config": {_DATASET_CONFIG: ("load_config", "load_yaml"), **_EPATH},
    "edataclass": {_CORE + "samples": ("edataclass",)},
    "epathlib": _EPATH,
    "epathlib.epath": _EPATH,
    "errors": {_CORE + "errors": _ALL, **_HANDLERS},
    "flavors": {
        _CORE + "samples": _ALL,
        _FACTORIES: _ALL,
        _CORE + "read.decode": ("SampleDecoder",),
        _CORE + "pipeline": ("SavableDataset",),
        _CORE + "errors": ("EmptyDatasetError",),
        _PLACEHOLDERS: ("AVData", "AVDecoder"),
    },
    "flavors.base_dataset": {
        _CORE + "samples": ("Sample", "SourceInfo", "edataclass"),
        _CORE + "pipeline": ("SavableDataset",),
        _CORE + "media": ("FileStore",),
        _FACTORIES: ("BaseCoreDatasetFactory",),
        **_EPATH,
        **_FLEX,
        **_WORKER,
    },
    "flavors.crude": {
        _CORE + "samples": ("CrudeSample",),
        _FACTORIES: ("CrudeWebdataset", "DefaultDecoderWebdatasetFactory"),
        **_EPATH,
    },
    "flavors.jsonl": {_FACTORIES: ("CrudeJsonlDatasetFactory", "DefaultCrudeJsonlDatasetFactory")},
    "flavors.webdataset": {
        _FACTORIES: _TARS,
        _CORE + "read.decode": ("SampleDecoder",),
        _CORE + "errors": ("EmptyDatasetError",),
        _PLACEHOLDERS: ("AVData", "AVDecoder", "MAIN_FOLDER_NAME", "VideoData"),
    },
    "flavors.webdataset.base_webdataset": {
        _FACTORIES: ("BaseCoreDatasetFactory", "BaseWebdatasetFactory"),
        **_EPATH,
        **_WORKER,
    },
    "flavors.webdataset.config": {_PLACEHOLDERS: _FILE_NAMES},
    "flavors.webdataset.default_decoder_webdataset": {_FACTORIES: ("DefaultDecoderWebdatasetFactory",)},
    "flavors.webdataset.default_generic_webdataset": {_FACTORIES: ("DefaultGenericWebdatasetFactory",)},
    "flavors.webdataset.sample_loader": {_PLACEHOLDERS: ("FlexState", "SliceState")},
    "loader": {_CORE + "loader": _ALL, **_WORKER},
    "metadataset": {
        _CORE + "recipe": (
            "DatasetLoader",
            "DatasetLoaderInterface",
            "Metadataset",
            "MetadatasetV2",
            "load_dataset",
            "prepare_metadataset",
            "traverse_metadataset",
        )
    },
    "metadataset.loader_interface": {
        _CORE + "recipe": ("DatasetLoaderInterface", "LoadedDatasetList"),
        _CORE + "task": ("DatasetBlendMode", "LoadedDataset"),
        **_EPATH,
        **_WORKER,
    },
    "rng": {_PLACEHOLDERS: ("SystemRngState",)},
    "savable_loader": {
        _CORE + "loader": ("BasicDataLoader", "SavableDataLoader"),
        _PLACEHOLDERS: (
            "SavableCheckpoint",
            "SavableDataLoaderState",
            "SavableDatasetCheckpoint",
            "SavableDatasetState",
        ),
    },
    "source_info": {_CORE + "samples": ("SourceInfo",)},
    "state": _FLEX,
    "task_encoder": {
        _CORE + "task": _ALL,
        _CORE + "pipeline.collate": _COLLATE,
        _CORE + "samples": ("Batch",),
        _CORE + "recipe": ("get_train_dataset", "get_val_dataset", "get_val_datasets"),
    },
    "task_encoder.base": {
        _CORE + "task": _ALL,
        _CORE + "pipeline": _ALL,
        _CORE + "pipeline.collate": _COLLATE,
        _CORE + "samples": ("Batch", "CrudeSample", "Sample", "SourceInfo", "edataclass"),
        _CORE + "read.decode": ("SampleDecoder",),
        **_WORKER,
    },
    "task_encoder.cooking": {
        _CORE + "task": ("Cooker", "basic_sample_keys", "cooker"),
        _CORE + "samples": ("Sample", "SourceInfo"),
    },
    "typed_converter": {_DATASET_CONFIG: ("JsonParser",)},
    "worker": {**_WORKER, **_HANDLERS},
    "wrappers": {
        _CORE + "pipeline": _ALL,
        _CORE + "pipeline.collate": ("concat_pad", "generic_concat", "homogeneous_concat_mix"),
        _CORE + "errors": ("SkipSample",),
    },
}
"""Address below ``megatron.energon`` (the root is empty), to modules, to their names there (None for all)."""
