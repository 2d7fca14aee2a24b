"""Notes about a dataset that is being written, in ``.nv-meta/writing``.

Each part (one of the writers side by side) has a JSON file with its arguments, and each complete shard has a
record, which is written after the tar. So a writer that was killed goes on after the last record, and no tar
is read again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial

from energon_stream.errors import ConfigError, MetadataError
from energon_stream.index.info_files import META_FOLDER
from energon_stream.prepare.shard_records import ShardRecord, ShardRecords
from energon_stream.storage import Store
from energon_stream.storage.in_order import ordered_map

WRITING = f"{META_FOLDER}/writing"
_READERS = 16
_WORDS = {"dealing": "split_ratio", "declared": "sample_type and field_map"}


@dataclass(frozen=True, slots=True)
class PartArguments:
    """Arguments of one part, which must be equal when its writer is opened again."""

    part: int  # number of the part
    parts: int  # number of all parts
    name: str  # begin of the shards' names
    max_size: int  # largest size of a tar in bytes
    max_count: int  # largest number of samples in a tar
    signature: str  # version of the source, as the caller names it
    dealing: str = ""  # shares of the split parts among which samples are dealt, see ``parse_dealing``
    declared: str = ""  # ``dataset.yaml`` of the writer's sample type, as JSON
    quality: int = 0  # of lossy images; 0 for the default

    @property
    def path(self) -> str:
        """Path of the part's file."""
        return f"{WRITING}/{self.part:05d}.json"

    def shard(self, number: int, split: str = "") -> str:
        """Return the path of the part's shard of a number, in a split part if samples are dealt."""
        part = "" if self.parts == 1 else f"{self.part:05d}-"
        return f"{self._begin(split)}{part}{number:06d}.tar"

    def split(self, shards: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Return the shards of each split part, by their names."""
        found: dict[str, tuple[str, ...]] = dict.fromkeys(json.loads(self.dealing), ())
        for shard in shards:
            name = max((name for name in found if shard.startswith(self._begin(name))), key=len)
            found[name] += (shard,)
        return found

    def _begin(self, split: str) -> str:
        return f"{self.name}-{split}-" if split else f"{self.name}-"


def save_part(store: Store, arguments: PartArguments, *, is_complete: bool) -> None:
    """Write a part's file."""
    store.put(arguments.path, json.dumps({**asdict(arguments), "complete": is_complete}).encode())


def load_part(store: Store, path: str) -> tuple[PartArguments, bool]:
    """Return a part's arguments, and whether all of its samples are written.

    Raises MetadataError if the file is damaged, or of another version.
    """
    try:
        found = json.loads(bytes(store.get(path).data))
        is_complete = bool(found.pop("complete"))
        return PartArguments(**found), is_complete
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(store, path) from error


def resume_part(store: Store, arguments: PartArguments, existing: Collection[str]) -> bool:
    """Return whether all samples of a part are written, given the paths of the metadata.

    Raises ConfigError if the dataset was begun with other arguments, and MetadataError as :func:`load_part`.
    """
    paths = part_files(existing)
    is_complete = False
    # One other part is enough: each was compared with another when it began.
    for path in dict.fromkeys([*paths[:1], *({arguments.path} & set(paths))]):
        known, of_path = load_part(store, path)
        is_complete |= of_path and known.part == arguments.part
        for name, value in asdict(known).items():
            now = getattr(arguments, name)
            if now != value and (
                name in ("parts", "name", "dealing", "declared") or known.part == arguments.part
            ):
                raise ConfigError(
                    "the source is not the one that the dataset was begun with"
                    if name == "signature"
                    else f"{_WORDS.get(name, name)} is {now or None}, but it was {value or None} before",
                    where=store.url,
                    hint="go on with what the dataset was begun with, or remove the folder and begin again",
                )
    return is_complete


def load_shard(store: Store, shard: str) -> ShardRecord:
    """Read the record of a shard. Raises MetadataError if it is damaged."""
    records = ShardRecords(store, WRITING)
    record = records.load(shard)
    if record is None or len(record.scan.keys) != len(record.digests):
        raise _damaged(store, records.path(shard))
    return record


def load_shards(store: Store, shards: Sequence[str]) -> Iterator[ShardRecord]:
    """Read the records of shards, several at a time."""
    return ordered_map(partial(load_shard, store), shards, _READERS)


def part_files(paths: Iterable[str]) -> list[str]:
    """Return the paths of parts among those of the metadata, sorted."""
    return sorted(path for path in paths if path.startswith(f"{WRITING}/") and path.endswith(".json"))


def _damaged(store: Store, path: str) -> MetadataError:
    return MetadataError(
        "the record of a dataset that is being written cannot be used",
        where=f"{store.url}/{path}",
        hint="remove the folder and begin again",
    )
