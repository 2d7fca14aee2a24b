"""Stores: objects and byte ranges from local paths and URLs, without knowledge of tars or samples."""

from energon_stream.storage.base import Body, ByteRange, ListEntry, ObjectMeta, Store
from energon_stream.storage.counters import CounterSnapshot, StorageCounters, default_counters
from energon_stream.storage.fetcher import Fetcher, abandon, shared_fetcher
from energon_stream.storage.fork import run_isolated
from energon_stream.storage.local import LocalStore
from energon_stream.storage.planner import FetchPlan, plan_fetches
from energon_stream.storage.retry import RetryPolicy, retry_deadline
from energon_stream.storage.transports import StoreFactory, StoreLayer, StoreSpec, Transport, register_store
from energon_stream.storage.url import (
    is_local,
    is_url,
    join_url,
    local_path,
    parent_url,
    plain_or_dataset,
    shown_url,
    strip_credentials,
)

__all__ = [
    "Body",
    "ByteRange",
    "CounterSnapshot",
    "StorageCounters",
    "FetchPlan",
    "Fetcher",
    "ListEntry",
    "LocalStore",
    "ObjectMeta",
    "RetryPolicy",
    "Store",
    "StoreFactory",
    "StoreLayer",
    "StoreSpec",
    "Transport",
    "abandon",
    "default_counters",
    "is_local",
    "is_url",
    "join_url",
    "local_path",
    "parent_url",
    "plain_or_dataset",
    "plan_fetches",
    "register_store",
    "retry_deadline",
    "run_isolated",
    "shared_fetcher",
    "shown_url",
    "strip_credentials",
]
