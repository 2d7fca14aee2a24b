"""Stores: objects and byte ranges from local paths and URLs, without knowledge of tars or samples."""

from energon_stream.fork import run_isolated
from energon_stream.storage._obstore_config import server_of
from energon_stream.storage.coalesce import plan_fetches
from energon_stream.storage.counters import CounterSnapshot, StorageCounters, default_counters
from energon_stream.storage.fetcher import Fetcher, abandon, shared_fetcher
from energon_stream.storage.local import LocalStore
from energon_stream.storage.retry import RetryPolicy, retry_deadline
from energon_stream.storage.store import Body, ByteRange, ListEntry, ObjectMeta, Store
from energon_stream.storage.transports import StoreLayer, StoreSpec, Transport, register_store

__all__ = [
    "Body",
    "ByteRange",
    "CounterSnapshot",
    "StorageCounters",
    "Fetcher",
    "ListEntry",
    "LocalStore",
    "ObjectMeta",
    "RetryPolicy",
    "Store",
    "StoreLayer",
    "StoreSpec",
    "Transport",
    "abandon",
    "default_counters",
    "plan_fetches",
    "register_store",
    "retry_deadline",
    "run_isolated",
    "server_of",
    "shared_fetcher",
]
