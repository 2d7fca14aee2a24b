"""Publishes the metadata of a dataset: one whole file after another, so that readers see the old dataset or
the new one, also in stores that cannot rename.

A reader takes the shards of a split part from ``split.yaml``, their numbers of samples from ``.info.json``,
where they begin from ``.tar.idx``, and looks keys up in ``index.sqlite``, which has numbers of shards in
``.info.json``. Overwriting ``split.yaml`` is the switch. So ``.info.json`` has the shards of both datasets
meanwhile, and ``index.sqlite`` fits both files or is absent.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from energon_stream.arguments import DATASET_CONFIG, SPLIT_CONFIG
from energon_stream.conventions import conventions
from energon_stream.errors import ConfigError, MetadataError, ObjectNotFoundError
from energon_stream.index.checksums import CHECKSUMS
from energon_stream.index.index_files import index_path
from energon_stream.index.info_files import (
    INFO_JSON,
    INFO_YAML,
    META_FOLDER,
    encode_info,
    encode_split,
    load_document,
)
from energon_stream.index.shard_names import check_tar_names, named_shares, split_by_patterns, split_by_ratio
from energon_stream.index.sqlite_index import INDEX_SQLITE
from energon_stream.index.yaml_io import dump_yaml
from energon_stream.storage.in_order import ordered_map

if TYPE_CHECKING:
    from energon_stream.prepare.builder import BuiltIndex
    from energon_stream.prepare.shard_records import ShardRecords
    from energon_stream.storage import Store

_log = logging.getLogger(__name__)
INDEX_UUID = f"{META_FOLDER}/index.uuid"
SKIPPED = f"{META_FOLDER}/skipped.json"
_NOTE = "publishing.json"
_SAME_FOR_LARGE = 1 << 26  # a larger file is written without comparing it with the one that is there


@dataclass(frozen=True, slots=True)
class MetadataOptions:
    """Options of a dataset's metadata that all ways to make a dataset share.

    Raises:
        ConfigError: Both ways to split are given, or a name of a file is not one.
    """

    split_ratio: Sequence[float] | Mapping[str, float] | None = None  # of train, val and test, or by name
    split_patterns: Sequence[str] | None = None  # ``NAME:PATTERN``, instead of the ratio
    dataset_yaml: Mapping[str, Any] | None = None  # content of ``dataset.yaml``; None for no such file
    split_config: str = SPLIT_CONFIG  # file in ``.nv-meta`` with the split parts
    dataset_config: str = DATASET_CONFIG  # file in ``.nv-meta`` with the content of ``dataset.yaml``
    shuffle_seed: int | None = None  # shuffles shards before they are split; None keeps their order

    def __post_init__(self) -> None:
        if self.split_ratio is not None and self.split_patterns is not None:
            raise ConfigError("give either split_ratio or split_patterns")
        for argument in ("split_config", "dataset_config"):
            name = getattr(self, argument)
            if not name.endswith((".yaml", ".yml")) or "/" in name:
                raise ConfigError(f"{argument} is {name!r}", hint="give a file name such as other.yaml")

    def split(self, shards: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Return the shards of each split part: all in ``train`` if nothing else is said.

        By Megatron-Energon's conventions, a split part with a share may get no shard, with a warning.
        """
        order = list(shards)
        if self.shuffle_seed is not None:
            random.Random(self.shuffle_seed).shuffle(order)
        if self.split_patterns is not None:
            return split_by_patterns(order, self.split_patterns)
        ratio = (1, 0, 0) if self.split_ratio is None else self.split_ratio
        split = split_by_ratio(order, ratio)
        empty = [name for name, share in named_shares(ratio).items() if share > 0 and not split[name]]
        if empty and order and conventions() == "energon":
            _log.warning(
                "no tar is in %s: %d cannot be dealt in these shares", " and ".join(empty), len(order)
            )
        elif empty and order:
            raise ConfigError(
                f"{' and '.join(empty)} would be empty: {len(order)} tars cannot be dealt in these shares",
                hint="give shares that are whole tars, or split_patterns=; to deal samples instead, give the ratio to "
                "`convert` or ShardWriter, or prepare with 1,0,0 and run `energon-stream split`",
            )
        return split


@dataclass(frozen=True, slots=True)
class Publishing:
    """The note among a preparation's records that it has begun to publish."""

    first: int | None = None  # number of shards before, if others are appended; None for a whole preparation

    @classmethod
    def of(cls, staging: ShardRecords) -> Publishing | None:
        """Return the note of an earlier run that was stopped while it published; None if there is none."""
        try:
            return cls(json.loads(staging.kept(_NOTE) or b"")["first"])
        except (ObjectNotFoundError, ValueError, KeyError, TypeError):
            return None

    def save(self, staging: ShardRecords) -> None:
        """Note that publishing begins."""
        staging.keep(_NOTE, json.dumps(asdict(self)).encode())

    @staticmethod
    def remove(staging: ShardRecords) -> None:
        """Remove the note and all records. The records are not needed without the note, so it goes first."""
        staging.drop(_NOTE)
        staging.remove()


class Write(NamedTuple):
    """One write to the store: of a whole file, or its removal if the content is None."""

    path: str
    content: bytes | Path | None  # in memory, or in a local file


@dataclass(frozen=True, slots=True)
class NewFiles:
    """The metadata to publish, each content by path."""

    counts: Mapping[str, int]  # number of samples by shard path, in order
    split: tuple[str, bytes]  # path and content of the split file
    index: str  # local path of ``index.sqlite``
    identity: str  # content of ``index.uuid``
    checksums: bytes | None = None  # None: the dataset has none from now on
    # Files that do not say which samples there are, such as ``dataset.yaml``. None removes one.
    others: Mapping[str, bytes | None] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        built: BuiltIndex,
        options: MetadataOptions,
        split: Mapping[str, Sequence[str]],
        *,
        exclude: Sequence[str] = (),
        others: Mapping[str, bytes | None] | None = None,
    ) -> NewFiles:
        """Return the files of an index, its split parts, and the options.

        Raises ConfigError if no dataset can have a tar of such a name.
        """
        check_tar_names(built.counts)
        written: dict[str, bytes | None] = dict(others or {})
        if options.dataset_yaml is not None:
            written[f"{META_FOLDER}/{options.dataset_config}"] = dump_yaml(dict(options.dataset_yaml))
        split_file = f"{META_FOLDER}/{options.split_config}", encode_split(split, exclude)
        return cls(built.counts, split_file, built.database, built.identity, built.checksums, written)


def plan_writes(old: Mapping[str, int] | None, new: NewFiles, existing: Iterable[str]) -> list[Write]:
    """Return the writes that publish a dataset, in order. ``.tar.idx`` files go before all of them.

    ``old`` has the number of samples by shard path of the present dataset, in order; None if there is none.
    ``existing`` are the paths of the dataset's files.

    Example:
        >>> new = NewFiles({"a.tar": 1, "b.tar": 2}, (".nv-meta/split.yaml", b""), "/tmp/i", "1")
        >>> [write.path for write in plan_writes({"a.tar": 1}, new, ())]
        ['.nv-meta/index.uuid', '.nv-meta/index.sqlite', '.nv-meta/.info.json', '.nv-meta/split.yaml']
        >>> [write.path for write in plan_writes(None, new, ())][-1]
        '.nv-meta/.info.json'
    """
    names = set(existing)
    split, index = Write(*new.split), Write(INDEX_SQLITE, Path(new.index))
    identity, info = Write(INDEX_UUID, new.identity.encode()), Write(INFO_JSON, encode_info(new.counts))
    as_yaml = [Write(INFO_YAML, encode_info(new.counts, as_yaml=True))] if INFO_YAML in names else []
    others = [
        Write(path, content) for path, content in new.others.items() if content is not None or path in names
    ]
    checksums = [] if new.checksums is None else [Write(CHECKSUMS, new.checksums)]
    # Those of another .info.json are an error to who compares; without any, nothing is compared.
    stale = [Write(CHECKSUMS, None)] if CHECKSUMS in names else []
    if old is None:
        return [*stale, split, identity, *others, *checksums, index, *as_yaml, info]
    if list(old.items()) == list(new.counts.items())[: len(old)]:
        # The numbers of the old shards are those in the new index as well.
        return [*stale, identity, index, info, *as_yaml, split, *checksums, *others]
    both = Write(INFO_JSON, encode_info({**old, **new.counts}))
    absent = Write(INDEX_SQLITE, None)
    return [*stale, identity, both, absent, split, info, *as_yaml, index, *checksums, *others]


def publish(
    store: Store, old: Mapping[str, int] | None, new: NewFiles, sizes: Mapping[str, int]
) -> tuple[str, ...]:
    """Write the metadata of a dataset, file after file; see :func:`plan_writes`.

    A file that has the content already is not written. After a stop between two writes, publishing anew
    completes the dataset. ``sizes`` has the size of each file in the dataset by path. Returns the paths of
    the files that the dataset has then. Raises StorageError if the store refuses a write.
    """
    known = dict(sizes)

    def run(write: Write) -> None:
        path, content = write
        if content is None:
            store.delete(path)
        elif isinstance(content, Path):
            store.put_file(path, str(content))
        elif not has_content(store, path, content, known.get(path)):
            store.put(path, content)
        known.pop(path, None)  # a second write of the path compares nothing

    pool = ThreadPoolExecutor(1, thread_name_prefix="energon-publish")
    writes = plan_writes(old, new, known)
    try:
        for write in writes:
            pool.submit(run, write).result()  # in a thread, so that Ctrl-C is noticed during a long upload
    finally:
        pool.shutdown(wait=False)
    files = {write.path: write.content is not None for write in writes}
    return tuple(path for path, is_there in files.items() if is_there)


def write_offsets(
    store: Store, files: Iterable[tuple[str, bytes]], sizes: Mapping[str, int], workers: int
) -> None:
    """Write the ``.tar.idx`` of each shard, unless it is there with the same content.

    ``files`` has the path of each shard and the content, ``sizes`` the size of each file in the dataset.
    Raises StorageError if the store refuses a write.
    """

    def run(file: tuple[str, bytes]) -> None:
        path, content = index_path(file[0]), file[1]
        if not has_content(store, path, content, sizes.get(path)):
            store.put(path, content)

    for _ in ordered_map(run, files, workers):
        pass


def read_skipped(store: Store) -> Mapping[str, str]:
    """Return what is wrong with the tars that the preparation of a dataset left out, by path."""
    try:
        data = store.get(SKIPPED).data
    except ObjectNotFoundError:
        return {}
    found = load_document(data, f"{store.url}/{SKIPPED}").get("skipped")
    if not isinstance(found, dict):
        raise MetadataError("'skipped' must map paths to problems", where=f"{store.url}/{SKIPPED}")
    return {str(path): str(problem) for path, problem in found.items()}


def has_content(store: Store, path: str, content: bytes, size: int | None) -> bool:
    """Return True if an object, which a listing gives a size or None, has the content."""
    if size != len(content) or size > _SAME_FOR_LARGE:
        return False
    with suppress(ObjectNotFoundError):
        return bytes(store.get(path).data) == content
    return False
