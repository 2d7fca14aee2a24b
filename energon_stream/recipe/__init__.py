"""Paths and YAML to datasets."""

from energon_stream.recipe.datasets import get_train_dataset, get_val_dataset

__all__ = ["get_train_dataset", "get_val_dataset"]
