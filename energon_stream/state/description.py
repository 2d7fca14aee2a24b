"""What a state says of the dataset that it was saved with.

Hashes, so that a mismatch can say what differs::

    "fingerprint": {"data": shards and their counts, "order": shuffling, slices, blending but for the weights,
                    "weights": of all blends, "pipeline": operators but for weights}

and how many shards there were, so that a dataset that grew can be told from another one::

    "sources": [[number of sources, how many shards each had, marks], ...]

with an entry for each dataset of sources in the pipeline. Numbers of shards are a column of :mod:`energon_stream.schedule.packed`.
They prove nothing by themselves: the hash of the data, made again of the first so many shards, does. Marks are two bytes
of a hash for each of at most 64 runs of neighbouring sources, and say where to look when that hash differs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from energon_stream.errors import StateError
from energon_stream.pipeline.reader_dataset import ReaderConfig, is_reader_config
from energon_stream.schedule import pack_columns, unpack_columns
from energon_stream.schedule.packed_v2 import is_packed_v2, unpack_columns_v2

__all__ = ["Description", "SavedLeaves", "describe", "fingerprint", "marks", "read_sources", "runs"]

_RUNS = 64
_MARK = 2


@dataclass(frozen=True, slots=True)
class Description:
    """What is written into states of a dataset.

    Attributes:
        prints: The fingerprint.
        sources: Shards of its sources.
    """

    prints: Mapping[str, str]
    sources: list[Any]


@dataclass(frozen=True, slots=True)
class SavedLeaves:
    """What a state says of one dataset of sources.

    Attributes:
        shards: How many shards each source had.
        marks: Hashes of the runs of sources.
    """

    shards: tuple[int, ...]
    marks: tuple[bytes, ...]


def _hash(value: Any, size: int = 8) -> bytes:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=size).digest()


def _source_nodes(node: Any) -> list[ReaderConfig]:
    if is_reader_config(node):
        return [node]
    values = node.values() if isinstance(node, Mapping) else node if isinstance(node, (list, tuple)) else ()
    return [found for value in values for found in _source_nodes(value)]


def fingerprint(config: Mapping[str, Any], earlier: Sequence[Mapping[str, Any]] = ()) -> dict[str, str]:
    """Hash a dataset's description in parts.

    Args:
        config: What ``dataset.config()`` returns.
        earlier: What to take in the place of its datasets of sources, in order; by default what they are.
    """
    sources = earlier or _source_nodes(config)
    data = [node["leaves"] for node in sources]
    weights: list[Any] = []
    met = 0

    def strip(node: Any) -> Any:
        nonlocal met
        if is_reader_config(node):
            met += 1
            return {"source": met}
        if isinstance(node, Mapping):
            # The contract of config(): weights beside these keys may be others when a run continues.
            if "weights" in node and ("blend" in node or "datasets" in node):
                weights.append(node["weights"])
                node = {key: value for key, value in node.items() if key != "weights"}
            return {key: strip(value) for key, value in node.items()}
        return [strip(value) for value in node] if isinstance(node, (list, tuple)) else node

    pipeline = strip(config)
    order = [strip(node["plan"]) for node in sources]
    parts = {"data": data, "order": order, "weights": weights, "pipeline": pipeline}
    return {name: _hash(part).hex() for name, part in parts.items()}


def describe(config: Mapping[str, Any]) -> Description:
    """What is written into states of a dataset.

    Args:
        config: What ``dataset.config()`` returns.
    """
    sources = []
    for node in _source_nodes(config):
        shards = np.array([leaf["shards"] for leaf in node["leaves"]], dtype=np.int64)
        sources.append([len(shards), pack_columns([shards]), b"".join(marks(node["leaves"]))])
    return Description(fingerprint(config), sources)


def runs(sources: int) -> list[range]:
    """Numbers of the sources that share a mark."""
    number = min(sources, _RUNS)
    return [range(run * sources // number, (run + 1) * sources // number) for run in range(number)]


def marks(leaves: Sequence[Any]) -> tuple[bytes, ...]:
    """Short hashes of runs of sources.

    Args:
        leaves: The sources as in a dataset's description.
    """
    found = [[leaves[number] for number in run] for run in runs(len(leaves))]
    return tuple(_hash(run, _MARK) for run in found)


def read_sources(saved: Any) -> list[SavedLeaves]:
    """What a state says of the sources.

    Raises:
        StateError: It says nothing, or is damaged.
    """
    try:
        found = []
        for number, shards, marked in saved:
            counts = (unpack_columns_v2 if is_packed_v2(bytes(shards)) else unpack_columns)(
                bytes(shards), int(number)
            )[0].tolist()
            cut = [bytes(marked[place : place + _MARK]) for place in range(0, len(marked), _MARK)]
            if len(cut) != len(runs(len(counts))):
                raise ValueError(f"{len(cut)} marks of {len(counts)} sources")
            found.append(SavedLeaves(tuple(counts), tuple(cut)))
    except (TypeError, ValueError, IndexError) as error:
        raise StateError(f"the state is damaged: it does not say what its sources were ({error})") from error
    return found
