"""The description of a dataset that states hold.

Hashes tell one dataset from another, and say which part differs::

    "fingerprint": {"data": shards and their counts, "order": shuffling, slices, blending without weights,
                    "weights": of all blends, "pipeline": operators without weights,
                    "content": of the samples, as far as it is known,
                    "loads": what a load function of planned packs returns, if there is one,
                    "draws": of the version of even draws, which the first one lacks}

States of earlier versions lack the content, and the identities of :mod:`energon_stream.state.identity`. Then
the numbers of shards, a column of :mod:`energon_stream.schedule.packed`, tell whether a dataset grew: the
hash of the data is made again from that many shards. If it differs, the marks name the leaf in the error: two
bytes of a hash for each leaf, where there are at most 64; else None. Each reader dataset has an entry::

    "leaves": [[number of leaves, number of shards of each, marks], ...]

The options, where they are few, only word errors as well::

    "options": {"pipeline": config() without reader datasets, "orders": fields of the different OrderSpecs,
                "packing": options of planned packs, if there are any}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from energon_stream.pipeline.dataset import SavableDataset
from energon_stream.pipeline.reader_dataset import ReaderDataset, find_readers, is_reader_config
from energon_stream.schedule import (
    ALONG_LINES,
    BY_SEGMENTS,
    IN_STAIRS,
    UNFORESEEN,
    BlendPlan,
    damaged,
    is_count,
    pack_columns,
    reading,
    shown,
    unpack_columns,
)
from energon_stream.state.identity import (
    IDENTITIES,
    Matching,
    SavedIdentities,
    hash_content,
    identities,
    match,
    read_identities,
)

_MOST_LEAVES = 1 << 18  # datasets of a mixture that a state may name: they are unpacked in some megabytes
_MOST_MARKED = 64
_MARK_BYTES = 2
_MOST_OPTIONS = 1000
"""Characters of JSON up to which a state holds the options: most pipelines take 100 to 300."""
_MOST_NAMED = 5
PARTS = {
    "data": "the data (shards, sample counts or split part)",
    "order": "the order (shuffling, slices, blending)",
    "weights": "the weights of a blend",
    "pipeline": "the pipeline (batch size, operators, functions)",
    "content": "the samples",
    "loads": "what the load function of planned packs returns",
    "draws": "the version of even draws",
}
_OPTIONAL = ("content", "loads", "draws")  # earlier versions lack them, and most pipelines the last two
_OF_WEIGHTS = ("weights", "foresees", "lines")
_PACK_OPTIONS = {"costs": "a hash of the costs", "step": "global_batch_size"}
_ORDER_OPTIONS = {
    "max_samples_per_sequence": "max_samples_per_sequence",
    "shuffle_window": "shuffle_buffer_size",
    "parallel_slices": "parallel_shard_iters",
    "shuffle_over_epochs": "shuffle_over_epochs_multiplier",
}
"""Fields of an OrderSpec, and the arguments that set them."""


@dataclass(frozen=True, slots=True)
class Description:
    """The description of a dataset."""

    prints: Mapping[str, str]  # the fingerprint
    leaves: list[Any]  # numbers of shards, and marks
    options: dict[str, Any] | None  # options by which errors name a difference; None where there are too many
    identities: list[SavedIdentities] | None  # of the leaves; None where there are too many
    readers: tuple[ReaderDataset, ...]
    # Versions of planned packs before this one, by the fingerprints of the order with them.
    earlier_packs: Mapping[str, int] = field(default_factory=dict)
    may_divide: bool = False  # whether batches may have become shorter, as Megatron-Energon allows

    def earlier_version(self, saved: Mapping[str, str]) -> int | None:
        """Return the version of plans that a fingerprint has; None for the present one, or another order."""
        if "draws" in self.prints and self.prints["draws"] != saved.get("draws"):
            known = (version for version, mark in _DRAWS.items() if mark == saved.get("draws"))
            return next(known, None) if "draws" in saved else UNFORESEEN
        return self.earlier_packs.get(saved.get("order", ""))

    def differences(self, state: Mapping[str, Any]) -> list[str]:
        """Return, in words, the parts of the fingerprint in which a state differs."""
        saved = state["fingerprint"]
        differing = [name for name in PARTS if saved.get(name) != self.prints.get(name)]
        differing = [name for name in differing if name in saved or name not in _OPTIONAL]
        if "pipeline" in differing and self.may_divide and self._has_divided(state):
            differing.remove("pipeline")
        matched = self.matched(state)
        if matched is None:
            return [self.difference(state, name) or f"{PARTS[name]} differs" for name in differing]
        changes = [change for each in matched for change in each.changes()]
        if changes and self.difference(state, "order"):
            changes = [self.difference(state, "order")]
        shown = changes[:_MOST_NAMED]
        if len(changes) > len(shown):
            shown.append(f"and {len(changes) - len(shown)} more")
        # The leaves say in which way these differ.
        implied = {"data", "order", "content"} if changes else set[str]()
        if any(each.unchecked for each in matched):
            implied.add("content")
        rest = [name for name in differing if name not in implied]
        return shown + [self.difference(state, name) or f"{PARTS[name]} differs" for name in rest]

    def _has_divided(self, state: Mapping[str, Any]) -> bool:
        """Return True if only the size of batches differs, and the saved one is a multiple."""
        kept = state["options"].get("pipeline") if isinstance(state.get("options"), Mapping) else None
        as_saved = _hash(kept).hex() == state["fingerprint"]["pipeline"]
        return self.options is not None and as_saved and _divides(kept, self.options["pipeline"])

    def matched(self, state: Mapping[str, Any]) -> list[Matching] | None:
        """Find the leaves of a state among the present leaves; None if the state does not identify them."""
        if self.identities is None or state.get(IDENTITIES) is None:
            return None
        saved = read_leaves(state.get("leaves"))
        found = read_identities(state[IDENTITIES], [len(each.shards) for each in saved])
        if len(saved) != len(self.readers):
            return None
        each = zip(self.readers, saved, found, self.identities, strict=True)
        return [match(reader, was.shards, then, now) for reader, was, then, now in each]

    def difference(self, state: Mapping[str, Any], part: str) -> str:
        """Return the saved options of ``"order"`` or ``"pipeline"`` that differ now."""
        kept, now = state.get("options"), self.options
        if not isinstance(kept, Mapping) or now is None:
            return ""
        try:
            if part == "order":
                packs = (kept.get("packing"), now.get("packing"))
                found = [] if None in packs else list(_changes(*packs, ""))
                found += _changes(_named(kept.get("orders")), _named(now["orders"]), "")
            else:
                found = list(_changes(kept.get(part), now.get(part), ""))
        except (AttributeError, RecursionError, TypeError, ValueError):  # damaged: the other error is raised
            return ""
        more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        return ", ".join(found[:_MOST_NAMED]) + more


@dataclass(frozen=True, slots=True)
class SavedLeaves:
    """The leaves of one reader dataset when a state was saved."""

    shards: tuple[int, ...]  # number of shards of each leaf
    marks: tuple[bytes, ...]  # a short hash of each leaf; empty where there were too many


def _hash(value: Any, size: int = 8) -> bytes:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=size).digest()


_DRAWS = {
    IN_STAIRS: _hash("foreseen").hex(),
    ALONG_LINES: _hash("along lines").hex(),
    BY_SEGMENTS: _hash("by segments").hex(),
}
"""Hashes of the versions of even draws; states of the first have none."""


def _readers(node: Any) -> list[Mapping[str, Any]]:
    """Find the descriptions of reader datasets in a pipeline's description."""
    if is_reader_config(node):
        return [node]
    values = node.values() if isinstance(node, Mapping) else node if isinstance(node, (list, tuple)) else ()
    return [found for value in values for found in _readers(value)]


_SINGLE = {str, int, float, bool, type(None)}


def _split(config: Mapping[str, Any], readers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Split a pipeline's description into the parts of the fingerprint."""
    weights: list[Any] = []
    met = 0

    def strip(node: Any) -> Any:
        nonlocal met
        if is_reader_config(node):
            met += 1
            return {"source": met}  # the name is a part of hashes in saved states
        if isinstance(node, (dict, Mapping)):
            # The contract of config(): weights beside these keys may differ when a run continues.
            if "weights" in node and ("blend" in node or "datasets" in node):
                weights.append(node["weights"])
                node = {key: value for key, value in node.items() if key not in _OF_WEIGHTS}
            # A call for each value would take most of the time.
            return {key: value if type(value) in _SINGLE else strip(value) for key, value in node.items()}
        return [strip(value) for value in node] if isinstance(node, (list, tuple)) else node

    pipeline = strip(config)  # first: its weights come before those of the plans
    order = [strip(node["plan"]) for node in readers]
    data = [node["leaves"] for node in readers]
    return {"data": data, "order": order, "weights": weights, "pipeline": pipeline}


def fingerprint(config: Mapping[str, Any], earlier: Sequence[Mapping[str, Any]] = ()) -> dict[str, str]:
    """Hash a dataset's description in parts."""
    parts = _split(config, earlier or _readers(config))
    return {name: _hash(part).hex() for name, part in parts.items()}


def plan_as(dataset: SavableDataset[Any], version: int | None) -> bool:
    """Plan packs and draws as a version did, None for the newest way; return whether any plan changed."""
    has_changed = False
    for _, reader in find_readers(dataset):
        before = reader.packing, reader.plan
        reader.plan_as(version)
        has_changed |= (reader.packing, reader.plan) != before
    return has_changed


def describe(dataset: SavableDataset[Any], *, again: bool = False) -> Description:
    """Make the description that states hold; ``again`` compares tars that are newer than their index."""
    config = dataset.config()
    readers, opened = _readers(config), [reader for _, reader in find_readers(dataset)]
    for reader in opened:
        reader.read_starts(again=again)
    leaves = []
    for node in readers:
        shards = np.array([leaf["shards"] for leaf in node["leaves"]], dtype=np.int64)
        # No empty bytes: torch.save writes them in a form that torch.load refuses by default.
        leaves.append([len(shards), pack_columns([shards]), b"".join(marks(node["leaves"])) or None])
    parts = _split(config, readers)
    orders: list[Any] = []
    for order in _orders(parts["order"]):
        if order not in orders:
            orders.append(order)
    options = {"pipeline": parts["pipeline"], "orders": orders}
    plans = [reader.packing for reader in opened if reader.packing is not None]
    if plans:
        options["packing"] = [
            {"type": "planned packs", **{_PACK_OPTIONS.get(key, key): value for key, value in each.items()}}
            for each in (plan.describe() for plan in plans)
        ]
    text = json.dumps(options, default=str)
    prints = {name: _hash(part).hex() for name, part in parts.items()}
    if loads := [plan.loads for plan in plans if plan.loads is not None]:
        prints["loads"] = _hash(loads).hex()
    if foresees := max((r.plan.foresees for r in opened if isinstance(r.plan, BlendPlan)), default=0):
        prints["draws"] = _DRAWS[foresees]
    if opened:
        prints["content"] = hash_content([(reader, reader.shards) for reader in opened])
    kept = json.loads(text) if len(text) <= _MOST_OPTIONS else None
    earlier = {
        _hash([_of_packs(order, version) for order in parts["order"]]).hex(): version
        for version in range(1, max((plan.describe()["algorithm"] for plan in plans), default=1))
    }
    may_divide = dataset.worker_config.conventions == "energon"
    return Description(prints, leaves, kept, identities(opened), tuple(opened), earlier, may_divide)


def _of_packs(order: Any, version: int) -> Any:
    """Return the description of an order as of a version of planned packs; the first had no number."""
    if not isinstance(order, Mapping) or "packing" not in order:
        return order
    unnamed = {name: value for name, value in order["packing"].items() if name != "algorithm"}
    return {**order, "packing": {**unnamed, **({"algorithm": version} if version > 1 else {})}}


def _named(orders: Any) -> list[dict[str, Any]]:
    """Return OrderSpecs by the names of arguments."""
    return [dict(zip(_ORDER_OPTIONS.values(), order, strict=True)) for order in orders]


def _orders(plan: Any) -> Iterator[list[Any]]:
    """Find the OrderSpecs in the description of a plan."""
    if isinstance(plan, Mapping) and "order" in plan:
        yield [plan["order"].get(name) for name in _ORDER_OPTIONS]
        return
    for value in plan.values() if isinstance(plan, Mapping) else plan if isinstance(plan, list) else ():
        yield from _orders(value)


def _changes(saved: Any, now: Any, name: str) -> Iterator[str]:
    """Yield the options that differ, with both values."""
    if isinstance(saved, Mapping) and isinstance(now, Mapping) and saved.get("type") == now.get("type"):
        of = f" of {now['type']}" if "type" in now else ""
        for key in {**saved, **now}:
            yield from _changes(saved.get(key), now.get(key), f"{key}{of}")
    elif isinstance(saved, list) and isinstance(now, list):
        for one, other in zip(saved, now, strict=False):
            yield from _changes(one, other, name)
        if len(saved) != len(now):
            yield f"there were {len(saved)} {name or 'different orders'}, there are {len(now)}"
    elif saved != now:
        yield f"{name or 'the pipeline'} was {_short(saved)}, is {_short(now)}"


def _divides(saved: Any, now: Any, name: str = "") -> bool:
    """Return True if two descriptions agree, except that a saved ``batch_size`` may be a multiple."""
    if isinstance(now, Mapping) and isinstance(saved, Mapping) and saved.keys() == now.keys():
        return all(_divides(saved[key], now[key], key) for key in now)
    if isinstance(now, list) and isinstance(saved, list) and len(saved) == len(now):
        return all(map(_divides, saved, now))
    is_multiple = name == "batch_size" and is_count(saved) and is_count(now) and now > 0 and saved % now == 0
    return bool(saved == now or is_multiple)


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a {value.get('type', 'ReaderDataset')}"
    return f"{value!r:.60}"


def marks(leaves: Sequence[Any]) -> tuple[bytes, ...]:
    """Return a short hash of each leaf's description; nothing where there are too many leaves."""
    return tuple(_hash([leaf], _MARK_BYTES) for leaf in leaves) if len(leaves) <= _MOST_MARKED else ()


def read_leaves(saved: Any) -> list[SavedLeaves]:
    """Read the leaves that a state was saved with. Raises StateError if they are damaged or missing."""
    with reading("the datasets with which it was saved"):
        found, total = [], 0
        for number, packed, marked in saved:
            marked = b"" if marked is None else marked
            total += number if is_count(number) else _MOST_LEAVES + 1
            if total > _MOST_LEAVES or not isinstance(packed, bytes) or not isinstance(marked, bytes):
                raise damaged(f"{shown(packed)} for the shards of {shown(number)} datasets")
            (shards,) = unpack_columns(packed, number, most=1).tolist()
            cut = [marked[at : at + _MARK_BYTES] for at in range(0, len(marked), _MARK_BYTES)]
            if len(cut) != (number if number <= _MOST_MARKED else 0) or not all(map(is_count, shards)):
                raise damaged(f"{len(cut)} marks of {number} datasets")
            found.append(SavedLeaves(tuple(shards), tuple(cut)))
    return found
