"""The diagnosis of a dataset's place: can it be read, how fast, and with which settings."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from energon_stream.arguments import DATASET_CONFIG, SPLIT_CONFIG
from energon_stream.cache import CacheConfig
from energon_stream.config.metadataset_files import MetadatasetFiles
from energon_stream.config.opening import open_all
from energon_stream.config.references import LeafRef
from energon_stream.errors import ConfigError, DatasetError, EnergonStreamError, NotPreparedError
from energon_stream.index.dataset import DatasetIndex, DatasetMetadata, WebDatasetIndex, dataset_kind
from energon_stream.index.file_format import find_format
from energon_stream.index.files_index import open_file
from energon_stream.index.plain import read_metadata_or_tars
from energon_stream.printable import counted, strip_credentials
from energon_stream.storage import ListEntry, Store, StoreSpec, default_counters
from energon_stream.tools.doctor.findings import Finding, check_machine, check_server, find_server
from energon_stream.tools.doctor.speed import SpeedOf, best_of, latency_of, sweep

_SHARDS = 8
"""Shards that the speed is measured with."""
_THROTTLED = 0.02
"""Share of repeated requests from which on a store is called throttling."""
_BUDGET = 256 << 20
_REQUEST_BYTES = 6 << 20
_FROM_FILES = " from local files (what is in memory, in the page cache, is faster than the disk)"
_AT_ONCE = 8
"""Datasets of a metadataset that are opened at one time."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Findings about the store, or the disk, that has a dataset.

    Attributes:
        url: Where the dataset is.
        findings: What was found, in the order of the checks.
        latency: Median time of a request for one byte, in seconds; None if nothing could be read.
        speeds: Rates by number of requests at one time.
        settings: Arguments of ``ReadOptions`` that suit the store.
        is_local: Whether the speed is that of local files.

    Example:
        >>> from energon_stream import Diagnosis, diagnose
        >>> found = diagnose("captions", seconds=0.01)
        >>> isinstance(found, Diagnosis), found.is_healthy, found.verdict.partition(",")[0]
        (True, True, 'Training works')
    """

    url: str
    findings: tuple[Finding, ...]
    latency: float | None
    speeds: tuple[SpeedOf, ...]
    settings: Mapping[str, int]
    is_local: bool = False

    @property
    def is_healthy(self) -> bool:
        """True if no finding is an error."""
        return all(finding.level != "error" for finding in self.findings)

    @property
    def verdict(self) -> str:
        """One sentence."""
        worst = [f for level in ("error", "warning") for f in self.findings if f.level == level]
        if worst and worst[0].level == "error":
            return f"Training cannot work: {worst[0].text}."
        best = best_of(list(self.speeds)) if self.speeds else None
        speed = "" if best is None else f", at {best.bytes_per_second / 1e6:,.0f} MB/s"
        speed += _FROM_FILES if self.is_local else ""
        return f"Training works{speed}" + (f", but {worst[0].text}." if worst else ".")

    def as_json(self) -> dict[str, Any]:
        """Return plain values for ``json.dumps``."""
        return {
            "url": self.url,
            "healthy": self.is_healthy,
            "verdict": self.verdict,
            "findings": [asdict(finding) for finding in self.findings],
            "latency": self.latency,
            "speeds": [asdict(speed) for speed in self.speeds],
            "settings": dict(self.settings),
        }


def diagnose(
    url: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    cache: CacheConfig | None = None,
    seconds: float = 2.0,
    on_finding: Callable[[Finding], None] | None = None,
) -> Diagnosis:
    """Find out whether a dataset can be read, how fast, and with which settings.

    Args:
        url: A dataset, metadataset, tars, or a folder of them; local, or any URL. Each dataset of a
            metadataset has a finding, and the speed is that of the first one with shards.
        storage_options: Credentials and other options of the store.
        cache: The node's cache; None for the one of the environment.
        seconds: Time of each of the four measurements of speed.
        on_finding: Called with each finding as soon as it is made.

    Raises:
        ConfigError: The environment names a cache that cannot be.

    Example:
        >>> from energon_stream import diagnose
        >>> found = diagnose("s3://data/captions", seconds=0.1)
        >>> found.is_healthy, [speed.in_flight for speed in found.speeds]
        (True, [1, 4, 16, 64])
    """
    url = os.fspath(url)
    findings: list[Finding] = []

    def note(finding: Finding) -> None:
        findings.append(finding)
        if on_finding is not None:
            on_finding(finding)

    spec = StoreSpec(url, storage_options)
    for finding in check_server(url, storage_options):
        note(finding)
    latency, speeds, settings, is_local = None, [], {}, False
    before = default_counters().snapshot()
    try:
        look = _look_at_mixture if dataset_kind(url) == "metadataset" else _look_at
        store, entries = look(spec, note)
        if entries:
            latency, speeds = latency_of(store, entries[0]), list(sweep(store, entries, seconds))
            is_local = store.is_local
    except EnergonStreamError as error:
        note(Finding.of("store", error))
    if speeds and latency is not None:
        best = best_of(speeds)
        settings = _settings(best, latency)
        rate = (
            f"{best.bytes_per_second / 1e6:,.0f} MB/s with {counted(best.in_flight, 'request')} at one time"
        )
        note(Finding("speed", "ok", f"{latency * 1000:.1f} ms a request, {rate}"))
        made = default_counters().snapshot() - before  # of all stores; none is for local files
        note(_throttling(*(0, 0) if is_local else (made.retries, made.total_requests)))
    for finding in check_machine(cache or CacheConfig.from_environment()):
        note(finding)
    return Diagnosis(url, tuple(findings), latency, tuple(speeds), settings, is_local)


def _look_at(spec: StoreSpec, note: Callable[[Finding], None]) -> tuple[Store, list[ListEntry]]:
    """Return the store, and some objects to measure with."""
    begin = time.monotonic()
    try:
        if (format := find_format(spec.url)) is not None:
            index = open_file(spec, format)
            note(Finding("store", "ok", _answered(begin)))
            note(Finding("dataset", "ok", f"{counted(index.num_samples, 'sample')} in 1 file"))
            return _shards(spec, [""])
        found = read_metadata_or_tars(spec, split_config=SPLIT_CONFIG, dataset_config=DATASET_CONFIG)
    except DatasetError as error:
        store = spec.open()
        listed = store.list() if isinstance(error, NotPreparedError) else ()
        entries = list(itertools.islice((each for each in listed if each.meta.size), _SHARDS))
        note(Finding("store", "ok", _answered(begin)))
        note(Finding.of("dataset", error))
        return store, entries
    note(Finding("store", "ok", _answered(begin)))
    if not isinstance(found, DatasetMetadata):
        spec, tars = found
        text = f"{counted(len(tars), 'tar')}, not prepared"
        note(Finding("dataset", "ok", text, "They are indexed by each node."))
        return spec.open(), tars[:_SHARDS]
    counts = found.shard_counts
    note(
        Finding(
            "dataset", "ok", f"{counted(sum(counts.values()), 'sample')} in {counted(len(counts), 'shard')}"
        )
    )
    return _shards(spec, list(counts))


def _shards(spec: StoreSpec, paths: Sequence[str]) -> tuple[Store, list[ListEntry]]:
    """Return a store, and those of its first shards that are not empty."""
    store = spec.open()
    entries = [ListEntry(path, store.head(path)) for path in paths[:_SHARDS]]
    return store, [entry for entry in entries if entry.meta.size]


def _look_at_mixture(spec: StoreSpec, note: Callable[[Finding], None]) -> tuple[Store, list[ListEntry]]:
    """Look at each dataset of a metadataset; return the first store with shards, and some of these."""
    begin = time.monotonic()
    try:
        datasets = _datasets_of(spec)
    except (DatasetError, ConfigError) as error:
        note(Finding.of("metadataset", error))
        return spec.open(), []
    note(Finding("store", "ok", _answered(begin)))
    seen = {find_server(spec.url, spec.storage_options)}
    for leaf, _ in datasets:
        url, options = leaf.spec.url, leaf.spec.storage_options
        if find_server(url, options) not in seen:
            seen.add(find_server(url, options))
            for finding in check_server(url, options):
                note(finding)
    measured: DatasetIndex | None = None
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for finding, index in pool.map(_open_leaf, datasets):
            note(finding)
            if measured is None and index is not None and index.shard_paths:
                measured = index
    return (spec.open(), []) if measured is None else _shards(measured.spec, measured.shard_paths)


def _datasets_of(spec: StoreSpec) -> list[tuple[LeafRef, list[str]]]:
    """Return the datasets of a metadataset, each once, with the names of the splits that use it.

    Raises what :meth:`MetadatasetFiles.document` and :meth:`MetadatasetFiles.items` raise.
    """
    files = MetadatasetFiles(spec.storage_options, spec.transport)
    found: dict[tuple[str, str, str], tuple[LeafRef, list[str]]] = {}
    for split, root in files.document(spec.url).splits.items():
        for item in files.items(root):
            for leaf in item.ref.leaves:
                key = leaf.spec.url, leaf.split_part, leaf.split_config
                splits = found.setdefault(key, (leaf, []))[1]
                if split not in splits:
                    splits.append(split)
    return list(found.values())


def _open_leaf(dataset: tuple[LeafRef, list[str]]) -> tuple[Finding, DatasetIndex | None]:
    leaf, splits = dataset
    name = f"{strip_credentials(leaf.path)} [{leaf.split_part}] of {', '.join(splits)}"
    try:
        (index,) = open_all([leaf])
    except EnergonStreamError as error:
        return Finding("dataset", "error", f"{name}: {error.what}", error.hint or ""), None
    shards = f" in {counted(len(index.shard_paths), 'shard')}" if isinstance(index, WebDatasetIndex) else ""
    return Finding("dataset", "ok", f"{name}: {counted(index.num_samples, 'sample')}{shards}"), index


def _answered(begin: float) -> str:
    return f"it answers; the metadata took {time.monotonic() - begin:.2f} s"


def _throttling(retries: int, requests: int) -> Finding:
    share = retries / requests if requests else 0.0
    if share < _THROTTLED:
        return Finding("throttling", "ok", f"{retries:,} of {counted(requests, 'request')} were repeated")
    return Finding(
        "throttling",
        "warning",
        f"{share:.0%} of the requests were refused or failed, and repeated",
        "Spread the data over more prefixes, use larger samples, or fill a cache.",
    )


def _settings(best: SpeedOf, latency: float) -> dict[str, int]:
    """Return settings: enough requests at one time, and memory for them and as many that wait."""
    ahead = 2 * best.in_flight * min(_REQUEST_BYTES, max(1 << 20, int(best.bytes_per_second * latency)))
    budget = _BUDGET
    while budget < ahead:
        budget *= 2
    return {"max_in_flight": best.in_flight, "byte_budget": budget}
