"""Loaders: worker processes, channels to them, and states of ranks."""

from energon_stream.loader.factories import get_loader, get_savable_loader
from energon_stream.loader.loader import BasicDataLoader
from energon_stream.loader.options import LoaderOptions, OnWorkerDeath, OnWorkerHang
from energon_stream.loader.savable import OnChange, SavableDataLoader

__all__ = [
    "BasicDataLoader",
    "LoaderOptions",
    "OnChange",
    "OnWorkerDeath",
    "OnWorkerHang",
    "SavableDataLoader",
    "get_loader",
    "get_savable_loader",
]
