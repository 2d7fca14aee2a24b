"""Worker processes, queues, save and restore per rank."""

from energon_stream.loader.loader import BasicDataLoader, SavableDataLoader, get_loader, get_savable_loader
from energon_stream.loader.session import LoaderOptions

__all__ = ["BasicDataLoader", "LoaderOptions", "SavableDataLoader", "get_loader", "get_savable_loader"]
