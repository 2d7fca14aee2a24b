"""Loaders: worker processes, channels to them, and states of ranks."""

from energon_stream.loader.factories import get_loader, get_savable_loader
from energon_stream.loader.loader import BasicDataLoader
from energon_stream.loader.savable import OnChange, SavableDataLoader
from energon_stream.loader.session import LoaderOptions

__all__ = [
    "BasicDataLoader",
    "LoaderOptions",
    "OnChange",
    "SavableDataLoader",
    "get_loader",
    "get_savable_loader",
]
