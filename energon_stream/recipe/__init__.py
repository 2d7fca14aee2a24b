"""Paths and YAML to datasets."""

from energon_stream.recipe.datasets import get_train_dataset, get_val_dataset, get_val_datasets
from energon_stream.recipe.interface import (
    DatasetLoader,
    DatasetLoaderInterface,
    LoadedDatasetList,
    Metadataset,
    MetadatasetV2,
    load_dataset,
    traverse_metadataset,
)
from energon_stream.recipe.prepare import prepare_metadataset

__all__ = [
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
]
