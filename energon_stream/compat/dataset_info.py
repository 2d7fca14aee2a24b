"""Facts about datasets on disk, under Megatron-Energon's names."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from energon_stream.arguments import SPLIT_CONFIG
from energon_stream.errors import ConfigError, ObjectNotFoundError
from energon_stream.index.dataset import dataset_kind, read_metadata
from energon_stream.index.info_files import INFO_JSON, INFO_YAML, load_document
from energon_stream.index.sqlite_index import INDEX_SQLITE
from energon_stream.storage import StoreSpec

if TYPE_CHECKING:
    from energon_stream.compat.epath import EPath


class EnergonDatasetType(Enum):
    """Kind of dataset that a path names."""

    METADATASET = RECIPE = "metadataset"
    WEBDATASET = MANIFEST_DATASET = "webdataset"
    JSONL = "jsonl"
    BINIDX = "binidx"
    PARQUET = "parquet"
    FILESYSTEM = "filesystem"
    INVALID = "invalid"


def get_dataset_type(path: EPath) -> EnergonDatasetType:
    """Return the kind of dataset that a path names; ``INVALID`` if there is none."""
    kind = dataset_kind(path.url)
    if kind in ("metadataset", "jsonl", "binidx", "parquet"):
        return EnergonDatasetType(kind) if path.is_file() else EnergonDatasetType.INVALID
    if check_dataset_info_present(path):
        return EnergonDatasetType.WEBDATASET
    found = (path / INDEX_SQLITE).is_file()
    return EnergonDatasetType.FILESYSTEM if found else EnergonDatasetType.INVALID


def check_dataset_info_present(path: EPath) -> bool:
    """Return True if a folder is prepared."""
    return any((path / name).is_file() for name in (INFO_JSON, INFO_YAML))


def get_dataset_info(path: EPath) -> dict[str, Any]:
    """Return the content of ``.info.json``, or else of ``.info.yaml``; without, raise ObjectNotFoundError."""
    try:
        file = path / INFO_JSON
        data = file.read_bytes()
    except ObjectNotFoundError:
        file = path / INFO_YAML
        data = file.read_bytes()
    return load_document(data, str(file))


def get_info_shard_files(path: EPath) -> list[str]:
    """Return the paths of all shards of a prepared folder."""
    return list(get_dataset_info(path)["shard_counts"])


@dataclass(kw_only=True, slots=True)
class ShardInfo:
    """A shard: its name in the dataset, its path, and its number of samples."""

    name: str
    path: EPath
    count: int


@dataclass(kw_only=True, slots=True)
class WebdatasetInfo:
    """Content of ``.info.json``: a version, and the number of samples by shard."""

    energon_version: str | None = None
    shard_counts: dict[str, int]


@dataclass(kw_only=True, slots=True)
class WebdatasetSplits:
    """Content of ``split.yaml``: shards by split part, and what is left out."""

    split_parts: dict[str, list[str]]
    exclude: list[str] = field(default_factory=list)


@dataclass(kw_only=True, slots=True)
class WebdatasetMeta:
    """Metadata of one split part of a prepared folder."""

    sample_excludes: set[str]  # samples that are left out, as ``shard.tar/key``
    shards: list[ShardInfo]  # of the split part, without excluded ones
    split_part_files: list[str]  # their names
    info_shard_files: list[str]  # names of all shards of the folder

    @staticmethod
    def from_config(path: EPath, *, split_part: str, split_config: str | None = None) -> WebdatasetMeta:
        """Read the metadata of a split part. Raises ConfigError if there is no such part."""
        found = read_metadata(StoreSpec(path.url), split_config=split_config or SPLIT_CONFIG)
        if split_part not in found.split.split_parts:
            raise ConfigError(
                f"no split part {split_part!r:.80}",
                where=found.split_url,
                hint=f"the dataset has {', '.join(found.split.split_parts)}",
            )
        excluded = set(found.split.exclude)
        files = [name for name in found.split.split_parts[split_part] if name not in excluded]
        return WebdatasetMeta(
            sample_excludes=excluded.difference(found.shard_counts),
            shards=[ShardInfo(name=f, path=path / f, count=found.shard_counts[f]) for f in files],
            split_part_files=files,
            info_shard_files=list(found.shard_counts),
        )


@dataclass(kw_only=True, slots=True)
class DatasetSubset:
    """A share of a dataset's samples, or a range of their numbers, of which the share is taken."""

    range: tuple[float, float] | None = None  # begin and end of the share, from 0 to 1
    absolute_range: tuple[int, int | None] | None = None  # first number, and one past the last or None

    def compute_subset(self, total_samples: int) -> tuple[int, int]:
        """Return the first number, and one past the last. Raises ConfigError if there are fewer samples."""
        start, stop = self.absolute_range or (0, None)
        stop = total_samples if stop is None else stop
        if not 0 <= start <= stop <= total_samples:
            raise ConfigError(f"the range {self.absolute_range} is not within {total_samples} samples")
        if self.range is not None:
            first, last = self.range
            start, stop = start + int((stop - start) * first), start + int((stop - start) * last)
        return start, stop

    def config(self) -> dict[str, Any]:
        """Return the fields by name."""
        return {"range": self.range, "absolute_range": self.absolute_range}


class FilteredSample(dict[str, Any]):
    """A sample as it is read: its metadata, and the bytes of its parts by name."""
