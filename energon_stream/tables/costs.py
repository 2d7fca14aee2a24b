"""Costs of samples, such as numbers of tokens, in ``.nv-meta/costs``.

``NAME.npy`` has one number a sample, in the order of ``.info.json``. ``NAME.json`` says what made them, and
which shards they belong to: path, number of samples, size and version of each. Versions are compared where
the dataset lies as it lay then; a copy elsewhere has other ones, so that sizes tell.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_stream.errors import ConfigError, CostsError, MissingCostsError, ObjectNotFoundError
from energon_stream.index.checksums import digest
from energon_stream.index.dataset import DatasetIndex, WebDatasetIndex
from energon_stream.index.info_files import META_FOLDER, load_document, read_info
from energon_stream.index.plain import find_shards
from energon_stream.storage import ListEntry, Store, StoreSpec

Costs = npt.NDArray[Any]

MOST = 1 << 53
"""Costs are below: from there on, numbers are not exact."""
_FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True)
class ShardMark:
    """The shard that some costs belong to."""

    path: str
    count: int  # number of samples
    size: int  # bytes of the tar
    version: str | None  # of the tar, as the store spells it


def mark_shards(store: Store, counts: Mapping[str, int]) -> list[tuple[ShardMark, ListEntry]]:
    """Return the shards of a dataset as they are now. This lists the dataset."""
    entries = {entry.path: entry for entry in find_shards(store)}
    missing = [path for path in counts if path not in entries]
    if missing:
        raise ObjectNotFoundError(f"the shard {missing[0]} does not exist", where=store.url)
    return [
        (ShardMark(path, count, entries[path].meta.size, entries[path].meta.etag), entries[path])
        for path, count in counts.items()
    ]


def check_name(name: str) -> str:
    """Return a name of costs. Raises ConfigError if it is no plain word."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r:.80} is no name for costs", hint="use letters, digits, _ and -")
    return name


def paths_of(name: str) -> tuple[str, str]:
    """Return the paths of the numbers and of the record."""
    return f"{META_FOLDER}/costs/{check_name(name)}.npy", f"{META_FOLDER}/costs/{name}.json"


def check_values(values: Costs, where: str) -> Costs:
    """Check that costs are numbers from 0 on, below ``MOST``. Raises CostsError."""
    if values.ndim != 1 or values.dtype.kind not in "iufb":
        raise CostsError(f"costs are an array of {values.dtype} with shape {values.shape}", where=where)
    wrong = np.flatnonzero(~((values >= 0) & (values < MOST)))
    if len(wrong):
        raise CostsError(
            f"the cost of sample {wrong[0]} is {values[wrong[0]]}, and of {len(wrong)} samples no number from 0 on "
            "below 2**53",
            where=where,
            hint="correct the function or array, and compute the costs again",
        )
    return values


def write_costs(
    store: Store, name: str, values: Costs, marks: list[ShardMark], made_by: str, library: str
) -> None:
    """Write costs and their record. Readers find the old costs or the new ones, at any moment.

    The record decides: the numbers that it names are in a file beside it until they are in their place.
    """
    numbers, record = paths_of(name)
    file = io.BytesIO()
    np.save(file, values, allow_pickle=False)
    document = {
        "format": _FORMAT,
        "made_by": made_by,
        "library": library,
        "place": digest(store.url.encode()),
        "content": digest(file.getvalue()),
        "mean": float(values.mean()) if len(values) else 0.0,
        "shards": [[mark.path, mark.count, mark.size, mark.version] for mark in marks],
    }
    store.put(_next(numbers), file.getvalue())
    store.put(record, json.dumps(document, indent=1).encode())
    store.put(numbers, file.getvalue())
    store.delete(_next(numbers))


def _next(numbers: str) -> str:
    return numbers.replace(".npy", ".next.npy")


def _read_pair(store: Store, name: str) -> tuple[dict[str, Any], bytes]:
    """Return a record and its numbers. They do not fit where somebody writes, or the costs are damaged."""
    numbers, record = paths_of(name)
    found: dict[str, Any] = {}
    data = b""
    for path in (numbers, _next(numbers), numbers):
        found = load_document(store.get(record).data, f"{store.url}/{record}")
        with suppress(ObjectNotFoundError):
            data = bytes(store.get(path).data)
            if digest(data) == found.get("content"):
                return found, data
    if not data:
        raise ObjectNotFoundError("there are no numbers", where=f"{store.url}/{numbers}")
    return found, data


@dataclass(frozen=True, slots=True, eq=False)
class SavedCosts:
    """Costs as they were written."""

    values: Costs
    marks: tuple[ShardMark, ...]
    made_by: str
    is_here: bool  # whether the dataset lies where it lay then

    def fits(self, old: ShardMark, new: ShardMark) -> bool:
        """Return True if a shard has not changed."""
        if self.is_here and old.version is not None and new.version is not None:
            return old == new
        return (old.path, old.count, old.size) == (new.path, new.count, new.size)


def load_costs(store: Store, name: str) -> SavedCosts:
    """Read costs, whatever shards there are now. Raises CostsError if there are none, or they are damaged."""
    where = f"{store.url}/{paths_of(name)[0]}"
    again = f"run `energon-stream cost {store.url} --name {name}` with the function that counts"
    try:
        found, data = _read_pair(store, name)
    except ObjectNotFoundError as error:
        raise MissingCostsError(f"the dataset has no costs {name!r}", where=where, hint=again) from error
    try:
        if found["format"] != _FORMAT or digest(data) != found["content"]:
            raise ValueError("the numbers are not those of their record")
        values = np.load(io.BytesIO(data), allow_pickle=False)
        marks = tuple(ShardMark(*mark) for mark in found["shards"])
        if len(values) != sum(mark.count for mark in marks):
            raise ValueError(f"{len(values)} numbers for {sum(mark.count for mark in marks)} samples")
        is_here = found["place"] == digest(store.url.encode())
        return SavedCosts(check_values(values, where), marks, str(found["made_by"]), is_here)
    except (KeyError, TypeError, ValueError, EOFError) as error:
        if isinstance(error, CostsError):
            raise
        raise CostsError(f"the costs {name!r} are damaged: {error}", where=where, hint=again) from error


def read_costs(
    url_or_path: str | os.PathLike[str], name: str, *, storage_options: Mapping[str, Any] | None = None
) -> Costs:
    """Read the costs of all samples of a dataset, in the order of ``.info.json``.

    Args:
        url_or_path: The dataset, local or any fsspec URL.
        name: Name of the costs.
        storage_options: Options of the URL's file system, such as credentials.

    Raises:
        CostsError: There are no costs of that name, shards were added or changed since, or they are damaged.

    Example:
        >>> from energon_stream import compute_costs, read_costs
        >>> compute_costs("texts", "bytes", lambda sample: len(sample["txt"])).samples
        64
        >>> len(read_costs("texts", "bytes"))
        64
    """
    store = StoreSpec(os.fspath(url_or_path), storage_options).open()
    return _fresh(store, name, read_info(store))


def _fresh(store: Store, name: str, counts: Mapping[str, int]) -> Costs:
    saved = load_costs(store, name)
    present = [mark for mark, _ in mark_shards(store, counts)]
    changed = [new.path for old, new in zip(saved.marks, present, strict=False) if not saved.fits(old, new)]
    if changed or len(saved.marks) != len(present):
        what = f"there were {len(saved.marks)} shards and are {len(present)}"
        if changed:
            what = f"{changed[0]} and {len(changed) - 1} others changed"
        raise CostsError(
            f"the costs {name!r} are older than the shards: {what}",
            where=f"{store.url}/{paths_of(name)[0]}",
            hint="run `energon-stream cost` again; only new and changed shards are read",
        )
    return saved.values


def mean_costs(store: Store) -> dict[str, float]:
    """Return the mean of each costs by name, whatever shards there are now. Raises CostsError for damage."""
    names = [entry.path.rpartition("/")[2] for entry in store.list(f"{META_FOLDER}/costs")]
    found: dict[str, float] = {}
    for name in sorted(name.removesuffix(".json") for name in names if name.endswith(".json")):
        record = f"{META_FOLDER}/costs/{name}.json"
        about = load_document(store.get(record).data, f"{store.url}/{record}")
        if not isinstance(about.get("mean"), float):
            raise CostsError(
                f"the costs {name!r} have no mean", where=f"{store.url}/{record}", hint="Compute them again."
            )
        found[name] = about["mean"]
    return found


def costs_of(index: DatasetIndex, name: str) -> Costs:
    """Return the costs of the samples of a split part; raises what :func:`read_costs` does."""
    if not isinstance(index, WebDatasetIndex) or index.every is None or index.plain is not None:
        raise MissingCostsError("only prepared folders of tars have costs", where=index.name)
    store = index.spec.open()
    values = _fresh(store, name, read_info(store))
    parts = zip(index.every.first.tolist(), index.shard_counts.tolist(), strict=True)
    return np.concatenate([values[first : first + count] for first, count in parts])
