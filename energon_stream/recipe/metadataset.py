"""Parses metadataset documents of both versions. Nothing is read, imported or run."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from energon_stream.cache import CacheConfig, CacheLayer
from energon_stream.errors import ConfigError, MetadataError
from energon_stream.index.dataset import dataset_kind
from energon_stream.index.metadata import DATASET_CONFIG, SPLIT_CONFIG
from energon_stream.index.yaml_io import check_keys
from energon_stream.recipe.fields import parse_parts
from energon_stream.recipe.named_code import is_own_module, nearest
from energon_stream.recipe.sample_types import declare
from energon_stream.recipe.subset import Subset, parse_subset
from energon_stream.recipe.tree import (
    AuxRef,
    BlendRef,
    JoinerRef,
    JoinMemberRef,
    JoinRef,
    LeafRef,
    MetadatasetRef,
    Reference,
    inherit,
)

if TYPE_CHECKING:
    from energon_stream.storage import StoreSpec

_OUTER = ("split_part", "subflavors", "shuffle_over_epochs_multiplier")
_FILES = ("split_config", "dataset_config")
_SAMPLES = ("sample_type", "field_map")
_KEYS: Mapping[str, tuple[str, ...]] = {
    "path": ("path", *_OUTER, *_FILES, "subflavor", "subset", "aux", "parts", "cache", *_SAMPLES),
    "blend": ("blend", "subset"),
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

    Args:
        document: The content of the file.
        where: URL of the file, for messages.
        spec_of: Returns the location of a path in the document.
        file: Location of the file; None for a document that was given as a dict.

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
    parser = _Parser(where, spec_of, file)
    parse = parser.node if name == "MetadatasetV2" else parser.v1_split
    splits = parser.mapping(document.get("splits"), "splits")
    return MetadatasetDocument(
        where,
        2 if name == "MetadatasetV2" else 1,
        {split: parse(value, f"splits.{split}", split) for split, value in splits.items()},
    )


@dataclass(frozen=True, slots=True)
class _Parser:
    """Parses the nodes of one document. ``place`` is the path of a node in the document."""

    where: str
    spec_of: Callable[[str], StoreSpec]
    file: StoreSpec | None

    def at(self, place: str) -> str:
        return f"{self.where}: {place}"

    def fail(self, what: str, place: str, hint: str | None = None) -> MetadataError:
        return MetadataError(what, where=self.at(place), hint=hint)

    def mapping(self, value: Any, place: str) -> Mapping[str, Any]:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise self.fail(f"a mapping is needed here, not {value!r:.80}", place)
        return value

    def entries(self, value: Any, place: str) -> list[Any]:
        if not isinstance(value, (list, tuple)) or not value:
            raise self.fail(f"a list of datasets is needed here, not {value!r:.80}", place)
        return list(value)

    def text(self, value: Mapping[str, Any], key: str, place: str, default: str | None = None) -> str:
        found = value.get(key)
        if found is None:
            found = default
        if not isinstance(found, str) or not found:
            raise self.fail(f"{key!r} must be a string, not {found!r:.80}", place)
        return found

    def v1_split(self, value: Any, place: str, split: str) -> Reference:
        """Parse a split of version 1: ``{datasets: [...]}``."""
        value = self.mapping(value, place)
        if "datasets" not in value and any(kind in value for kind in _KEYS):
            raise self.fail(
                "this split is of version 2, but the file is of version 1",
                place,
                "add __module__: megatron.energon and __class__: MetadatasetV2 at the top of the file",
            )
        check_keys(value, ("datasets",), self.at(place))
        return self.blend(value, place, split, "datasets", "weight", 1)

    def node(
        self, value: Any, place: str, split: str, kinds: Collection[str] = tuple(_KEYS), extra: str = ""
    ) -> Reference:
        """Parse a node of version 2; ``extra`` is a key that the parent node reads."""
        value = self.mapping(value, place)
        present = [kind for kind in _KEYS if kind in value]
        if not present:
            check_keys(value, {extra, *(key for kind in kinds for key in _KEYS[kind])} - {""}, self.at(place))
        if len(present) != 1 or present[0] not in kinds:
            found = " and ".join(present) or "none"
            raise self.fail(
                f"a node needs exactly one of the keys {', '.join(kinds)}, and has {found}", place
            )
        kind = present[0]
        check_keys(value, [*_KEYS[kind], *([extra] if extra else [])], self.at(place))
        if kind == "path":
            return self.leaf(value, place, split)
        if kind == "join":
            return self.join(value, place, split)
        return self.blend(value, place, split, kind, "weight" if kind == "blend" else "repetitions")

    def blend(
        self,
        value: Mapping[str, Any],
        place: str,
        split: str,
        key: str,
        by: Literal["weight", "repetitions"],
        version: Literal[1, 2] = 2,
    ) -> BlendRef:
        """Parse a list of datasets and joins with shares; version 1 has no joins."""
        subset = self.subset(value, place, in_samples=False)
        children: list[Reference] = []
        shares: list[float] = []
        for number, entry in enumerate(self.entries(value.get(key), f"{place}.{key}")):
            at = f"{place}.{key}[{number}]"
            if version == 1:
                check_keys(self.mapping(entry, at), (*_V1_KEYS, by), self.at(at))
            children.append(self.node(entry, at, split, ("path",) if version == 1 else ("path", "join"), by))
            shares.append(self.share(entry.get(by, 1.0), by, at))
        narrowed = tuple(inherit(child, {}, subset, 1) for child in children)
        return BlendRef(narrowed, tuple(shares), by, self.at(f"{place}.{key}"))

    def share(self, value: Any, key: str, place: str) -> float:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not (value > 0 and math.isfinite(value)):
            raise self.fail(
                f"{key!r} is {value!r:.80}", place, "use a positive number, or leave the dataset out"
            )
        return float(value)

    def leaf(self, value: Mapping[str, Any], place: str, split: str) -> LeafRef | MetadatasetRef:
        """Parse a dataset, or a split of another metadataset."""
        spec = self.spec_of(self.text(value, "path", place))
        part = self.text(value, "split_part", place, split)
        subflavors = self.subflavors(value, place)
        multiplier = self.multiplier(value, place)
        if dataset_kind(spec.url) == "metadataset":
            for key in (*_FILES, "aux", "parts", "cache", *_SAMPLES):
                if key in value:
                    raise self.fail(
                        f"{key!r} has no meaning for a metadataset", place, f"set it in {spec.url}"
                    )
            subset = self.subset(value, place, in_samples=False)
            return MetadatasetRef(spec, part, subflavors, subset, multiplier)
        return LeafRef(
            self.cached(spec, value, place),
            part,
            self.text(value, "split_config", place, SPLIT_CONFIG),
            self.text(value, "dataset_config", place, DATASET_CONFIG),
            subflavors,
            self.subset(value, place),
            multiplier,
            self.aux(value, place),
            parse_parts(value.get("parts"), self.at(place)),
            declare(value.get("sample_type"), value.get("field_map"), self.at(place)),
        )

    def cached(self, spec: StoreSpec, value: Mapping[str, Any], place: str) -> StoreSpec:
        """Apply the ``cache`` of a dataset to its location."""
        cache = value.get("cache")
        if cache is None:
            return spec
        if isinstance(cache, Mapping):
            check_keys(cache, _CACHE_KEYS, self.at(f"{place}.cache"))
            return replace(spec, through=CacheLayer(CacheConfig(**cache)))
        if cache is False:
            return replace(spec, through=None)
        raise self.fail(
            f"'cache' is {cache!r:.80}", place, "use false for none, or {directory: …, max_bytes: …}"
        )

    def subflavors(self, value: Mapping[str, Any], place: str) -> dict[str, Any]:
        found = self.mapping(value.get("subflavors") or {}, f"{place}.subflavors")
        old = {"__subflavor__": value["subflavor"]} if value.get("subflavor") is not None else {}
        return {**old, **found}

    def multiplier(self, value: Mapping[str, Any], place: str) -> int | None:
        key = "shuffle_over_epochs_multiplier"
        found = value.get(key, 1)
        if found is None or (type(found) is int and (found == -1 or found > 0)):
            return found
        raise self.fail(f"{key!r} is {found!r:.80}", place, "use null, -1, or a positive number of passes")

    def subset(self, value: Mapping[str, Any], place: str, *, in_samples: bool = True) -> Subset:
        subset = parse_subset(value.get("subset"), self.at(place))
        if subset.in_samples and not in_samples:
            raise self.fail(
                f"the subset {subset} has sample numbers, which only single datasets can have",
                place,
                "use percentages here",
            )
        return subset

    def aux(self, value: Mapping[str, Any], place: str) -> dict[str, AuxRef]:
        found = self.mapping(value.get("aux") or {}, f"{place}.aux")
        return {name: self.aux_ref(ref, f"{place}.aux.{name}") for name, ref in found.items()}

    def aux_ref(self, value: Any, place: str) -> AuxRef:
        """Parse ``path``, ``filesystem://…``, ``filesystem+scheme://…``, ``{path: …}``, ``{fs_path: …}``."""
        if isinstance(value, Mapping):
            check_keys(value, ("path", "fs_path"), self.at(place))
        if isinstance(value, Mapping) and len(value) == 1:
            kind, path = next(iter(value.items()))
            files = kind == "fs_path"
        else:
            path = value
            files = isinstance(path, str) and path.startswith(("filesystem://", "filesystem+"))
            if files:
                path = path.removeprefix("filesystem://").removeprefix("filesystem+")
        if not isinstance(path, str) or not path:
            raise self.fail(
                f"{value!r:.80} does not name auxiliary data", place, "use a path, or {fs_path: folder}"
            )
        if not files and dataset_kind(path) != "webdataset":
            raise self.fail(
                f"{path!r} is not a folder", place, "auxiliary data is looked up in prepared folders"
            )
        return AuxRef(self.spec_of(path), "filesystem" if files else "webdataset")

    def join(self, value: Mapping[str, Any], place: str, split: str) -> JoinRef:
        """Parse a join of datasets by position (list) or by keyword (mapping)."""
        inner = value["join"]
        part = self.text(value, "split_part", place, split)
        if isinstance(inner, Mapping):
            named = self.mapping(inner, f"{place}.join").items()
            members = [self.member(ref, f"{place}.join.{name}", part, name, value) for name, ref in named]
        else:
            members = [
                self.member(ref, f"{place}.join[{number}]", part, None, value)
                for number, ref in enumerate(self.entries(inner, f"{place}.join"))
            ]
        if len(members) < 2:
            raise self.fail("a join needs two or more datasets", place)
        subflavors = {key: item for one in members for key, item in one.leaf.subflavors.items()}
        return JoinRef(
            tuple(members),
            self.joiner(value.get("joiner"), f"{place}.joiner"),
            self.file,
            self.at(place),
            {**subflavors, **self.subflavors(value, place)},
            self.subset(value, place),
            self.multiplier(value, place),
        )

    def member(
        self, value: Any, place: str, split: str, name: str | None, join: Mapping[str, Any]
    ) -> JoinMemberRef:
        value = self.mapping(value, place)
        check_keys(value, _MEMBER_KEYS, self.at(place))
        leaf = self.leaf(value, place, split)
        if isinstance(leaf, MetadatasetRef):
            raise self.fail("a metadataset cannot be joined", place)
        nonmatch = value.get("nonmatch", join.get("nonmatch", "error"))
        if nonmatch not in ("error", "skip", "none"):
            raise self.fail(f"'nonmatch' is {nonmatch!r:.80}", place, "use error, skip or none")
        return JoinMemberRef(leaf, nonmatch, name)

    def joiner(self, value: Any, place: str) -> JoinerRef:
        value = self.mapping(value, place)
        check_keys(value, ("__module__", "__class__", "__function__"), self.at(place))
        kind: Literal["class", "function"] = "class" if "__class__" in value else "function"
        if len(value) != 2:
            raise self.fail("a joiner needs __module__, and __class__ or __function__", place)
        name = self.text(value, f"__{kind}__", place)
        return JoinerRef(self.text(value, "__module__", place), name, kind, self.at(place))
