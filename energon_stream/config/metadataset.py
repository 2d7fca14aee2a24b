"""Parses metadataset documents of both versions. Nothing is read, imported or run."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from energon_stream.cache import CacheConfig, CacheLayer
from energon_stream.config.fields import parse_parts
from energon_stream.config.named_code import is_own_module, nearest
from energon_stream.config.references import (
    AuxRef,
    BlendRef,
    Draws,
    JoinerRef,
    JoinMemberRef,
    JoinRef,
    LeafRef,
    MetadatasetRef,
    Reference,
    inherit,
)
from energon_stream.config.sample_types import declare
from energon_stream.config.subset import Subset, parse_subset
from energon_stream.config.view import VIEW_KEYS, parse_view
from energon_stream.config.weight_schedule import parse_schedule
from energon_stream.errors import ConfigError, MetadataError
from energon_stream.index.dataset import dataset_kind
from energon_stream.index.info_files import DATASET_CONFIG, SPLIT_CONFIG
from energon_stream.index.yaml_io import check_keys

if TYPE_CHECKING:
    from energon_stream.storage import StoreSpec

_OUTER = ("split_part", "subflavors", "shuffle_over_epochs_multiplier")
_FILES = ("split_config", "dataset_config")
_SAMPLES = ("sample_type", "field_map")
_KEYS: Mapping[str, tuple[str, ...]] = {
    "path": ("path", *_OUTER, *_FILES, "subflavor", "subset", "aux", "parts", "cache", *_SAMPLES, *VIEW_KEYS),
    "blend": ("blend", "subset", "draws"),
    "blend_epochized": ("blend_epochized", "subset"),
    "join": ("join", "joiner", "nonmatch", *_OUTER, "subset"),
}
"""Keys of each kind of node. A node has the key that names its kind."""
_V1_KEYS = ("path", *_OUTER, *_FILES, "subflavor")
_CACHE_KEYS = tuple(field.name for field in fields(CacheConfig))
_MEMBER_KEYS = ("path", "split_part", "subflavors", *_FILES, "nonmatch", "aux", "parts", "cache")


@dataclass(frozen=True, slots=True)
class MetadatasetDocument:
    """A parsed metadataset file."""

    where: str  # URL of the file
    version: Literal[1, 2]  # 2, or 1 for the older form
    splits: Mapping[str, Reference]  # tree of references of each split

    def split(self, name: str) -> Reference:
        """Return the tree of a split. Raises ConfigError if the split does not exist."""
        if name not in self.splits:
            raise ConfigError(
                f"the metadataset has no split {name!r}", where=self.where, hint=nearest(name, self.splits)
            )
        return self.splits[name]


def parse_metadataset(
    document: Mapping[str, Any],
    *,
    where: str,
    spec_of: Callable[[str], StoreSpec],
    file: StoreSpec | None,
) -> MetadatasetDocument:
    """Parse a metadataset of version 1 or 2.

    ``spec_of`` returns the location of a path in the document. ``file`` is the location of the document; None
    if it was given as a dict.

    Raises:
        MetadataError: A key, type or value is wrong; the message names the place in the file.
        ConfigError: A subset is wrong.
    """
    check_keys(document, ("__module__", "__class__", "splits"), where)
    name = document.get("__class__", "Metadataset")
    module = document.get("__module__", "energon_stream")
    if name not in ("Metadataset", "MetadatasetV2") or not is_own_module(str(module)):
        raise MetadataError(
            f"{module}.{name} is not a metadataset",
            where=where,
            hint="use {__module__: megatron.energon, __class__: MetadatasetV2}",
        )
    splits = _Node(document.get("splits"), "splits", "", where, spec_of, file)
    nodes = {split: replace(splits.child(split), split=split) for split in splits.mapping()}
    if name == "MetadatasetV2":
        return MetadatasetDocument(where, 2, {split: node.reference() for split, node in nodes.items()})
    return MetadatasetDocument(where, 1, {split: node.v1_split() for split, node in nodes.items()})


@dataclass(frozen=True, slots=True)
class _Node:
    """A value in a document, and its path there (``place``). Its parsers are named after what they return.

    ``split`` is the default of ``split_part``; ``where``, ``spec_of`` and ``file`` are those of the document.
    """

    value: Any
    place: str
    split: str
    where: str
    spec_of: Callable[[str], StoreSpec]
    file: StoreSpec | None

    @property
    def at(self) -> str:
        return f"{self.where}: {self.place}"

    def fail(self, what: str, hint: str | None = None) -> MetadataError:
        return MetadataError(what, where=self.at, hint=hint)

    def child(self, key: str) -> _Node:
        return replace(self, value=self.value.get(key), place=f"{self.place}.{key}")

    def mapping(self, *, optional: bool = False) -> Mapping[str, Any]:
        value = self.value
        if optional and not value:
            return {}
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise self.fail(f"a mapping is needed here, not {value!r:.80}")
        return value

    def entries(self) -> list[_Node]:
        if not isinstance(self.value, (list, tuple)) or not self.value:
            raise self.fail(f"a list of datasets is needed here, not {self.value!r:.80}")
        return [
            replace(self, value=value, place=f"{self.place}[{number}]")
            for number, value in enumerate(self.value)
        ]

    def text(self, key: str, default: str | None = None) -> str:
        found = self.value.get(key)
        if found is None:
            found = default
        if not isinstance(found, str) or not found:
            raise self.fail(f"{key!r} must be a string, not {found!r:.80}")
        return found

    def v1_split(self) -> BlendRef:
        """Parse a split of version 1: ``{datasets: [...]}``."""
        value = self.mapping()
        if "datasets" not in value and any(kind in value for kind in _KEYS):
            raise self.fail(
                "this split is of version 2, but the file is of version 1",
                "add __module__: megatron.energon and __class__: MetadatasetV2 at the top of the file",
            )
        check_keys(value, ("datasets",), self.at)
        for entry in self.child("datasets").entries():
            check_keys(entry.mapping(), (*_V1_KEYS, "weight"), entry.at)
        return self.blend("datasets", "weight", ("path",))

    def reference(self, kinds: Collection[str] = tuple(_KEYS), *extra: str) -> Reference:
        """Parse a node of version 2; ``extra`` are keys that the parent node reads."""
        value = self.mapping()
        present = [kind for kind in _KEYS if kind in value]
        if not present:
            check_keys(value, {*extra, *(key for kind in kinds for key in _KEYS[kind])}, self.at)
        if len(present) != 1 or present[0] not in kinds:
            found = " and ".join(present) or "none"
            raise self.fail(f"a node needs exactly one of the keys {', '.join(kinds)}, and has {found}")
        kind = present[0]
        if "repetitions" in extra and "weight" in value:  # weight_by would be the nearest key
            raise self.fail("unknown key 'weight'", "blend_epochized has repetitions")
        check_keys(value, (*_KEYS[kind], *extra), self.at)
        if kind == "path":
            return self.leaf()
        if kind == "join":
            return self.join()
        return self.blend(kind, "weight" if kind == "blend" else "repetitions", ("path", "join"))

    def blend(self, key: str, by: Literal["weight", "repetitions"], kinds: Collection[str]) -> BlendRef:
        subset = self.subset(in_samples=False)
        entries = self.child(key).entries()
        children = tuple(inherit(entry.reference(kinds, by), {}, subset, 1) for entry in entries)
        shares = [entry.share(by) for entry in entries]
        where = self.child(key).at
        if not any(isinstance(share, tuple) for share in shares):
            return BlendRef(children, tuple(shares), by, where, draws=self.draws())
        schedules = tuple(share if isinstance(share, tuple) else ((0, share),) for share in shares)
        return BlendRef(
            children, tuple(schedule[0][1] for schedule in schedules), by, where, schedules, self.draws()
        )

    def draws(self) -> Draws | None:
        found: Draws | None = self.value.get("draws")
        if found in (None, *get_args(Draws)):
            return found
        raise self.fail(f"'draws' is {found!r:.80}", f"use one of {', '.join(get_args(Draws))}")

    def share(self, key: Literal["weight", "repetitions"]) -> Any:
        """Parse a share: a number, or a schedule of weights by batch."""
        value = self.value.get(key, 1.0)
        if isinstance(value, Mapping) and key == "weight":
            place = self.child(key)
            return parse_schedule(value, place.at, place.fail)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if number and value == 0 and key == "weight":
            return ((0, 0.0),)  # a source to which set_weights gives a weight later
        if not number or not (value > 0 and math.isfinite(value)):
            raise self.fail(f"{key!r} is {value!r:.80}", "use a positive number, or leave the dataset out")
        return float(value)

    def leaf(self) -> LeafRef | MetadatasetRef:
        """Parse a dataset, or a split of another metadataset."""
        value = self.value
        spec = self.spec_of(self.text("path"))
        part = self.text("split_part", self.split)
        subflavors, multiplier = self.subflavors(), self.multiplier()
        if dataset_kind(spec.url) == "metadataset":
            for key in (*_FILES, "aux", "parts", "cache", *_SAMPLES, *VIEW_KEYS):
                if key in value:
                    raise self.fail(f"{key!r} has no meaning for a metadataset", f"set it in {spec.url}")
            subset = self.subset(in_samples=False)
            return MetadatasetRef(spec, part, subflavors=subflavors, subset=subset, multiplier=multiplier)
        aux = self.child("aux")
        return LeafRef(
            self.cached(spec),
            part,
            self.text("split_config", SPLIT_CONFIG),
            self.text("dataset_config", DATASET_CONFIG),
            {name: aux.child(name).aux_ref() for name in aux.mapping(optional=True)},
            parse_parts(value.get("parts"), self.at),
            declare(value.get("sample_type"), value.get("field_map"), self.at),
            parse_view(value, self.at, self.spec_of),
            subflavors=subflavors,
            subset=self.subset(),
            multiplier=multiplier,
        )

    def cached(self, spec: StoreSpec) -> StoreSpec:
        """Apply the ``cache`` of a dataset to its location."""
        cache = self.value.get("cache")
        if cache is None:
            return spec
        if isinstance(cache, Mapping):
            check_keys(cache, _CACHE_KEYS, f"{self.at}.cache")
            if isinstance(directory := cache.get("directory"), str):
                self.spec_of(os.path.abspath(directory))  # may a file of this store name the local disk?
            return replace(spec, through=CacheLayer(CacheConfig(**cache)))
        if cache is False:
            return replace(spec, through=None)
        raise self.fail(f"'cache' is {cache!r:.80}", "use false for none, or {directory: …, max_bytes: …}")

    def subflavors(self) -> dict[str, Any]:
        old = self.value.get("subflavor")
        found = self.child("subflavors").mapping(optional=True)
        return {**({} if old is None else {"__subflavor__": old}), **found}

    def multiplier(self) -> int | None:
        key = "shuffle_over_epochs_multiplier"
        found = self.value.get(key, 1)
        if found is None or (type(found) is int and (found == -1 or found > 0)):
            return found
        raise self.fail(f"{key!r} is {found!r:.80}", "use null, -1, or a positive number of passes")

    def subset(self, *, in_samples: bool = True) -> Subset:
        subset = parse_subset(self.value.get("subset"), self.at)
        if subset.in_samples and not in_samples:
            raise self.fail(
                f"the subset {subset} has sample numbers, which only single datasets can have",
                "use percentages here",
            )
        return subset

    def aux_ref(self) -> AuxRef:
        """Parse ``path``, ``filesystem://…``, ``filesystem+scheme://…``, ``{path: …}``, ``{fs_path: …}``."""
        path, files = self.value, False
        if isinstance(path, Mapping):
            check_keys(path, ("path", "fs_path"), self.at)
        if isinstance(path, Mapping) and len(path) == 1:
            kind, path = next(iter(path.items()))
            files = kind == "fs_path"
        elif isinstance(path, str) and path.startswith(("filesystem://", "filesystem+")):
            path, files = path.removeprefix("filesystem://").removeprefix("filesystem+"), True
        if not isinstance(path, str) or not path:
            raise self.fail(
                f"{self.value!r:.80} does not name auxiliary data", "use a path, or {fs_path: folder}"
            )
        if not files and dataset_kind(path) != "webdataset":
            raise self.fail(f"{path!r} is not a folder", "auxiliary data is looked up in prepared folders")
        return AuxRef(self.spec_of(path), "filesystem" if files else "webdataset")

    def join(self) -> JoinRef:
        """Parse a join of datasets by position (list) or by keyword (mapping)."""
        inner = replace(self.child("join"), split=self.text("split_part", self.split))
        nonmatch = self.value.get("nonmatch", "error")
        if isinstance(inner.value, Mapping):
            members = [inner.child(name).member(nonmatch, name) for name in inner.mapping()]
        else:
            members = [entry.member(nonmatch) for entry in inner.entries()]
        if len(members) < 2:
            raise self.fail("a join needs two or more datasets")
        subflavors = {key: item for one in members for key, item in one.leaf.subflavors.items()}
        return JoinRef(
            tuple(members),
            self.child("joiner").joiner(),
            self.file,
            self.at,
            subflavors={**subflavors, **self.subflavors()},
            subset=self.subset(),
            multiplier=self.multiplier(),
        )

    def member(self, nonmatch: str, name: str | None = None) -> JoinMemberRef:
        check_keys(self.mapping(), _MEMBER_KEYS, self.at)
        leaf = self.leaf()
        if isinstance(leaf, MetadatasetRef):
            raise self.fail("a metadataset cannot be joined")
        found = self.value.get("nonmatch", nonmatch)
        if found not in ("error", "skip", "none"):
            raise self.fail(f"'nonmatch' is {found!r:.80}", "use error, skip or none")
        return JoinMemberRef(leaf, found, name)

    def joiner(self) -> JoinerRef:
        value = self.mapping()
        check_keys(value, ("__module__", "__class__", "__function__"), self.at)
        kind: Literal["class", "function"] = "class" if "__class__" in value else "function"
        if len(value) != 2:
            raise self.fail("a joiner needs __module__, and __class__ or __function__")
        return JoinerRef(self.text("__module__"), self.text(f"__{kind}__"), kind, self.at)
