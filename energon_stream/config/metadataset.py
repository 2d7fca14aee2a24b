"""Parses metadataset documents of both versions, and recipes. Nothing is read, imported or run.

A recipe, of Megatron-Energon 8, is a metadataset of version 2 under another name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import repeat
from typing import Any, Literal, get_args

from energon_stream.arguments import DATASET_CONFIG, SPLIT_CONFIG
from energon_stream.auxiliary import is_registered
from energon_stream.cache import CacheConfig, CacheLayer
from energon_stream.config.document_keys import (
    ANY,
    MAPPING,
    TEXT,
    Key,
    check_mapping,
    is_number,
    one_of,
    read_keys,
)
from energon_stream.config.fields import parse_parts
from energon_stream.config.named_code import is_own_module
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
from energon_stream.index.join_index import NonMatch
from energon_stream.index.yaml_io import check_keys
from energon_stream.printable import nearest
from energon_stream.schedule import Course, Knot
from energon_stream.storage import StoreSpec
from energon_stream.urls import absolute_path

_LABELS = replace(MAPPING, default=None)
_SHARED = {
    "subflavors": _LABELS,
    "shuffle_over_epochs_multiplier": Key(
        lambda value: value is None or (type(value) is int and (value == -1 or value > 0)),
        "use null, -1, or a positive number of passes",
        1,
        optional=False,
    ),
}
_OUTER = {"split_part": TEXT, **_SHARED}
_V1 = {
    "path": replace(TEXT, optional=False),
    **_OUTER,
    "split_config": replace(TEXT, default=SPLIT_CONFIG),
    "dataset_config": replace(TEXT, default=DATASET_CONFIG),
    "subflavor": ANY,
}
_CACHE = Key(lambda value: value is False or isinstance(value, Mapping), "use false, or {directory: …}")
_V2 = {**_V1, "tags": _LABELS, "aux": MAPPING, "parts": ANY, "cache": _CACHE}
_BLEND = {**_SHARED, "tags": _LABELS, "subset": ANY}
_NONMATCH = one_of(get_args(NonMatch), "error", optional=False)
_KINDS: Mapping[str, Mapping[str, Key]] = {
    "path": {**_V2, "subset": ANY, **dict.fromkeys(("sample_type", "field_map", *VIEW_KEYS), ANY)},
    "blend": {"blend": ANY, **_BLEND, "draws": one_of(get_args(Draws)), "blend_weight_unit": TEXT},
    "blend_epochized": {"blend_epochized": ANY, **_BLEND},
    "join": {"join": ANY, "joiner": ANY, "nonmatch": _NONMATCH, **_BLEND, **_OUTER},
}
"""Keys of each kind of node. A node has the key that names its kind."""
_INHERITED = {*_OUTER, *_BLEND, "path", "subflavor"}  # of a leaf, also where it names another metadataset
_MEMBER = dict.fromkeys({*_V2} - {"subflavor", "shuffle_over_epochs_multiplier"}, ANY)
_JOINER = dict.fromkeys(("__module__", "__class__", "__function__"), TEXT)
_VERSIONS: Mapping[str, Literal[1, 2]] = {"Metadataset": 1, "MetadatasetV2": 2, "Recipe": 2}
_CACHE_KEYS = dict.fromkeys((field.name for field in fields(CacheConfig)), ANY)


@dataclass(frozen=True, slots=True)
class MetadatasetDocument:
    """A parsed metadataset file."""

    where: str  # URL of the file
    version: Literal[1, 2]
    splits: Mapping[str, Reference]
    content: Mapping[str, Any] = field(default_factory=dict, repr=False)  # of the file, as it is written

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
    ranks: int = 1,
) -> MetadatasetDocument:
    """Parse a metadataset of version 1 or 2; the splits say which it is if no class does.

    ``spec_of`` returns the location of a path in the document. ``file`` is the location of the document; None
    for a dict. ``ranks`` is the number of ranks, whose batches some schedules count. Raises MetadataError or
    ConfigError, which name the place in the file.
    """
    check_keys(document, ("__module__", "__class__", "splits"), where)
    module, name = document.get("__module__", "energon_stream"), document.get("__class__")
    if not is_own_module(str(module)) or (name is not None and name not in tuple(_VERSIONS)):
        raise MetadataError(
            f"{module}.{name} is not a metadataset",
            where=where,
            hint="use {__module__: megatron.energon, __class__: MetadatasetV2}",
        )
    parser, at = _Parser(spec_of, file, ranks), f"{where}: splits"
    splits = check_mapping(document.get("splits"), at)
    version = _version(splits, at) if name is None else _VERSIONS[name]
    parse = parser.reference if version == 2 else parser.v1_split
    trees = {split: parse(value, f"{at}.{split}", split) for split, value in splits.items()}
    return MetadatasetDocument(where, version, trees, document)


def _version(splits: Mapping[str, Any], at: str) -> Literal[1, 2]:
    """Return the version of splits in a document that names no class."""
    found: dict[Literal[1, 2], str] = {}
    for name, value in splits.items():
        if any(key in check_mapping(value, f"{at}.{name}") for key in _KINDS):
            found[2] = name
        elif "datasets" in value:
            found[1] = name
    if len(found) > 1:
        raise MetadataError(
            f"{found[1]!r} has datasets:, of version 1, and {found[2]!r} is of version 2, or a recipe",
            where=at,
            hint="write blend: for datasets:, and tags: for subflavors:",
        )
    return 2 if 2 in found else 1


@dataclass(frozen=True, slots=True)
class _Parser:
    """Parses the values of a document. ``at`` is the place of a value, ``split`` the default of its
    ``split_part``.
    """

    spec_of: Callable[[str], StoreSpec]
    file: StoreSpec | None
    ranks: int

    def v1_split(self, value: Any, at: str, split: str) -> BlendRef:
        """Parse a split of version 1: ``{datasets: [...]}``."""
        if "datasets" not in check_mapping(value, at) and any(kind in value for kind in _KINDS):
            raise MetadataError(
                "this split is of version 2, but the file is of version 1",
                where=at,
                hint="add __module__: megatron.energon and __class__: MetadatasetV2 at the top of the file",
            )
        read_keys(value, {"datasets": ANY}, at)
        for place, entry in _entries(value.get("datasets"), f"{at}.datasets"):
            read_keys(entry, _V1, place, extra=("weight",))
        return self.blend(value, "datasets", "weight", ("path",), at, split)

    def reference(
        self, value: Any, at: str, split: str, kinds: Collection[str] = tuple(_KINDS), *extra: str
    ) -> Reference:
        """Parse a node of version 2; ``extra`` are keys that the parent node reads."""
        present = [kind for kind in _KINDS if kind in check_mapping(value, at)]
        if not present:
            if "datasets" in value:
                hint = "write blend: instead, or __class__: Metadataset at the top of the file"
                raise MetadataError("'datasets' is a key of version 1", where=at, hint=hint)
            check_keys(value, {*extra, *(key for kind in kinds for key in _KINDS[kind])}, at)
        if len(present) != 1 or present[0] not in kinds:
            found = " and ".join(present) or "none"
            inner = present[0] if len(present) == 1 and "join" in kinds else None
            raise MetadataError(
                f"a node needs exactly one of the keys {', '.join(kinds)}, and has {found}",
                where=at,
                hint=inner and f"write the inner {inner} to a file of its own, and name it by path",
            )
        kind = present[0]
        if "repetitions" in extra and "weight" in value:  # weight_by would be the nearest key
            raise MetadataError("unknown key 'weight'", where=at, hint="blend_epochized has repetitions")
        given = read_keys(value, _KINDS[kind], at, extra=extra)
        if kind == "path":
            return self.leaf(given, at, split, value.keys())
        if kind == "join":
            return self.join(given, at, split)
        by: Literal["weight", "repetitions"] = "weight" if kind == "blend" else "repetitions"
        return self.blend(given, kind, by, ("path", "join"), at, split)

    def blend(
        self,
        given: Mapping[str, Any],
        key: str,
        by: Literal["weight", "repetitions"],
        kinds: Collection[str],
        at: str,
        split: str,
    ) -> BlendRef:
        outer, at = _inherited(given, {}, at, in_samples=False), f"{at}.{key}"
        entries = _entries(given.get(key), at)
        children = tuple(
            inherit(self.reference(entry, place, split, kinds, by), **outer) for place, entry in entries
        )
        shares = tuple(_share(entry.get(by, 1.0), by, place, self.ranks) for place, entry in entries)
        return BlendRef(children, shares, by, at, given.get("draws"), given.get("blend_weight_unit"))

    def leaf(
        self, given: Mapping[str, Any], at: str, split: str, present: Collection[str]
    ) -> LeafRef | MetadatasetRef:
        """Parse a dataset, or a split of another metadataset, with the keys ``present``."""
        spec, part = self.spec_of(given["path"]), given["split_part"] or split
        is_single = dataset_kind(spec.url) != "metadataset"
        outer = _inherited(given, {}, at, in_samples=is_single)
        if not is_single:
            for key in present:
                if key in _KINDS["path"] and key not in _INHERITED:
                    hint = f"set it in {spec.url}, for a dataset"
                    raise MetadataError(f"{key!r} cannot be set for a metadataset", where=at, hint=hint)
            return MetadatasetRef(spec, part, **outer)
        return LeafRef(
            spec if given["cache"] is None else self.cached(spec, given["cache"], f"{at}.cache"),
            part,
            given["split_config"],
            given["dataset_config"],
            {name: self.aux(value, f"{at}.aux.{name}") for name, value in (given["aux"] or {}).items()},
            parse_parts(given["parts"], at),
            declare(given["sample_type"], given["field_map"], at),
            parse_view(given, at, self.spec_of),
            **outer,
        )

    def cached(self, spec: StoreSpec, cache: Any, at: str) -> StoreSpec:
        if cache is False:
            return replace(spec, through=None)
        read_keys(cache, _CACHE_KEYS, at)
        if isinstance(directory := cache.get("directory"), str):
            self.spec_of(absolute_path(directory))  # may a file of this store name the local disk?
        return replace(spec, through=CacheLayer(CacheConfig(**cache)))

    def aux(self, value: Any, at: str) -> AuxRef:
        """Parse ``path``, ``filesystem://…``, ``filesystem+scheme://…``, ``{path: …}``, ``{fs_path: …}``;
        ``byterange`` as ``filesystem``, and protocols of the program.
        """
        path: Any = value
        kind: Literal["webdataset", "filesystem", "byterange"] = "webdataset"
        if isinstance(value, Mapping):
            read_keys(value, {"path": ANY, "fs_path": ANY}, at)
            if len(value) == 1:
                ((key, path),) = value.items()
                kind = "filesystem" if key == "fs_path" else kind
        elif isinstance(value, str) and is_registered(value):
            return AuxRef(self.spec_of(value), "registered", None if self.file is None else self.file.url)
        elif isinstance(value, str):
            for prefix in ("filesystem", "byterange"):
                if value.startswith((f"{prefix}://", f"{prefix}+")):
                    path, kind = value[len(prefix) :].removeprefix("://").removeprefix("+"), prefix
        if not isinstance(path, str) or not path:
            what, hint = f"{value!r:.80} does not name auxiliary data", "use a path, or {fs_path: folder}"
            raise MetadataError(what, where=at, hint=hint)
        if kind == "webdataset" and dataset_kind(path) != "webdataset":
            hint = "auxiliary data is looked up in prepared folders"
            raise MetadataError(f"{path!r} is not a folder", where=at, hint=hint)
        return AuxRef(self.spec_of(path), kind)

    def join(self, given: Mapping[str, Any], at: str, split: str) -> JoinRef:
        """Parse a join of datasets by position (list) or by keyword (mapping)."""
        value, place = given["join"], f"{at}.join"
        named = isinstance(value, Mapping)
        entries = [(f"{place}.{name}", value[name]) for name in value] if named else _entries(value, place)
        members = [
            self.member(entry, where, given["split_part"] or split, given["nonmatch"], name)
            for (where, entry), name in zip(entries, value if named else repeat(None), strict=False)
        ]
        if len(members) < 2:
            raise MetadataError("a join needs two or more datasets", where=at)
        subflavors = {key: item for one in members for key, item in one.leaf.subflavors.items()}
        joiner = _joiner(given["joiner"], f"{at}.joiner")
        return JoinRef(tuple(members), joiner, self.file, at, **_inherited(given, subflavors, at))

    def member(self, value: Any, at: str, split: str, nonmatch: NonMatch, name: str | None) -> JoinMemberRef:
        for key in VIEW_KEYS:
            if key in check_mapping(value, at):
                what = f"{key!r} selects samples of a dataset, and those of a join are in its index"
                raise MetadataError(what, where=at, hint="raise SkipSample in the joiner for the others")
        given = read_keys(value, {**_MEMBER, "nonmatch": replace(_NONMATCH, default=nonmatch)}, at)
        leaf = self.reference(value, at, split, ("path",), "nonmatch")
        if not isinstance(leaf, LeafRef):
            raise MetadataError("a metadataset cannot be joined", where=at)
        return JoinMemberRef(leaf, given["nonmatch"], name)


def _entries(value: Any, at: str) -> list[tuple[str, Any]]:
    if not isinstance(value, (list, tuple)) or not value:
        raise MetadataError(f"a list of datasets is needed here, not {value!r:.80}", where=at)
    return [(f"{at}[{number}]", entry) for number, entry in enumerate(value)]


def _share(value: Any, key: Literal["weight", "repetitions"], at: str, ranks: int) -> Course:
    """Parse a share: a number, or a schedule of weights by batch."""
    if isinstance(value, Mapping) and key == "weight":
        return parse_schedule(value, f"{at}.{key}", ranks)
    # set_weights may give a weight of 0 another value later.
    if not is_number(value) or not (0 < value < math.inf or (value == 0 and key == "weight")):
        hint = "use a positive number, or leave the dataset out"
        raise MetadataError(f"{key!r} is {value!r:.80}", where=at, hint=hint)
    return (Knot(0, float(value)),)


def _inherited(
    given: Mapping[str, Any], subflavors: Mapping[str, Any], at: str, *, in_samples: bool = True
) -> dict[str, Any]:
    """Parse the settings that references inherit; ``subflavors`` yield to those of the node."""
    named = [key for key in ("tags", "subflavors", "subflavor") if given.get(key) is not None]
    if "tags" in named[:1] and len(named) > 1:
        hint = "tags is the newer name of subflavors: write all of them there"
        raise MetadataError(f"'tags' and {named[1]!r} are both given", where=at, hint=hint)
    own = {"__subflavor__": given["subflavor"]} if "subflavor" in named else {}
    return {
        "subflavors": {**subflavors, **own, **(given.get("tags") or given.get("subflavors") or {})},
        "subset": _subset(given.get("subset"), at, in_samples=in_samples),
        "multiplier": given.get("shuffle_over_epochs_multiplier", 1),
    }


def _subset(value: Any, at: str, *, in_samples: bool) -> Subset:
    subset = parse_subset(value, at)
    if subset.in_samples and not in_samples:
        raise MetadataError(
            f"the subset {subset} has sample numbers, which only single datasets can have",
            where=at,
            hint="use percentages here",
        )
    return subset


def _joiner(value: Any, at: str) -> JoinerRef:
    kind: Literal["class", "function"] = "class" if "__class__" in check_mapping(value, at) else "function"
    given = read_keys(value, _JOINER, at)
    module, name = given["__module__"], given[f"__{kind}__"]
    if len(value) != 2 or module is None or name is None:
        raise MetadataError("a joiner needs __module__, and __class__ or __function__", where=at)
    return JoinerRef(module, name, kind, at)
