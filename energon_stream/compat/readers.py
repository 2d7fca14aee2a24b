"""Readers of samples by number or key, under Megatron-Energon's names. Each sample is one request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Generic, Self, TypeVar

from energon_stream.compat.dataset_info import FilteredSample, ShardInfo, get_info_shard_files
from energon_stream.compat.epath import EPath
from energon_stream.compat.file_indices import (
    CachedIJsonlOffsetReader,
    CachedItarOffsetReader,
    ITarSamplePointer,
)
from energon_stream.compat.sqlite_indices import JoinIndexReader, SqliteIndexReader
from energon_stream.index.sqlite_index import INDEX_SQLITE
from energon_stream.media import FileStore, open_once
from energon_stream.media.file_store import unknown_name
from energon_stream.samples import SourceInfo
from energon_stream.storage import ByteRange, StoreSpec
from energon_stream.tar.format import sample_parts, split_name

T_index = TypeVar("T_index")
Filter = Callable[[str], bool]


class ITarReader(ABC, Generic[T_index]):
    """Reads samples of several tars.

    Args:
        base_path: The dataset.
        tar_filenames: Names of the tars in the dataset.
        tar_filepaths: Paths of the tars.
        part_filter: Tells by its name whether a part is wanted; None for all.
        itar_cache_size: Number of indices to keep.
        sample_filter: Tells by ``shard/key`` whether a sample is wanted; None for all.
        disable_cache: Not needed: no tar stays open.
    """

    def __init__(
        self,
        base_path: EPath,
        tar_filenames: list[str],
        tar_filepaths: list[EPath],
        part_filter: Filter | None = None,
        itar_cache_size: int = 5,
        sample_filter: Filter | None = None,
        disable_cache: bool = False,
    ) -> None:
        self.base_path: EPath = base_path
        self.tar_filenames: list[str] = tar_filenames
        self.tar_filepaths: list[EPath] = tar_filepaths
        self.part_filter: Filter | None = part_filter
        self.sample_filter: Filter | None = sample_filter
        self._store = open_once(StoreSpec(base_path.url))

    @abstractmethod
    def _pointer(self, idx: T_index) -> ITarSamplePointer:
        """Return the place of a sample."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples."""

    def __getitem__(self, idx: T_index) -> Any:
        """Read a sample; return None if the filter drops it, or if a join has no such partner."""
        place = self._pointer(idx)
        if place.tar_file_id < 0:
            return None
        shard = self.tar_filenames[place.tar_file_id]
        byte_range = ByteRange(place.byte_offset, place.byte_offset + place.byte_size)
        if shard == self.tar_filepaths[place.tar_file_id].url:
            data = open_once(StoreSpec(shard)).get_range("", byte_range).data
        else:
            data = self._store.get_range(shard, byte_range).data
        found = sample_parts(data, 0, len(data))
        if self.sample_filter is not None and not self.sample_filter(f"{shard}/{found.key}"):
            return None
        parts = {
            name: bytes(data[start:stop])
            for name, start, stop in zip(found.names, found.starts, found.stops, strict=True)
            if self.part_filter is None or self.part_filter(name)
        }
        files = tuple(f"{found.key}.{name}" for name in parts)
        return _sample(found.key, shard, idx, SourceInfo(str(self.base_path), idx, shard, files), parts)  # type: ignore[arg-type]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release what is held."""


def _sample(key: str, shard: str, index: Any, source: SourceInfo, parts: dict[str, bytes]) -> FilteredSample:
    metadata = {"__key__": key, "__shard__": shard, "__restore_key__": ("Webdataset", index)}
    return FilteredSample(**metadata, __sources__=(source,), **parts)


class ShardInfosITarReader(ITarReader[int]):
    """Reads samples of tars by their number among all samples.

    Args:
        base_path: The dataset.
        shard_infos: The tars.
        part_filter: As for :class:`ITarReader`, like the rest.
        itar_cache_size: Number of indices to keep.
        sample_filter: Tells whether a sample is wanted.
        disable_cache: Not needed.

    Example:
        >>> from energon_stream.compat.dataset_info import WebdatasetMeta
        >>> folder = EPath("captions")
        >>> meta = WebdatasetMeta.from_config(folder, split_part="train")
        >>> sorted(name for name in ShardInfosITarReader(folder, meta.shards)[0] if name[0] != "_")
        ['jpg', 'txt']
    """

    def __init__(
        self,
        base_path: EPath,
        shard_infos: Sequence[ShardInfo],
        part_filter: Filter | None = None,
        itar_cache_size: int = 5,
        sample_filter: Filter | None = None,
        disable_cache: bool = False,
    ) -> None:
        names, paths = [info.name for info in shard_infos], [info.path for info in shard_infos]
        super().__init__(base_path, names, paths, part_filter, itar_cache_size, sample_filter, disable_cache)
        self._ends = list(accumulate(info.count for info in shard_infos))
        self._offsets = CachedItarOffsetReader(itar_cache_size)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def _pointer(self, idx: int) -> ITarSamplePointer:
        if not 0 <= idx < len(self):
            raise IndexError(f"there is no sample {idx} of {len(self)}")
        tar = bisect_right(self._ends, idx)
        within = idx - (self._ends[tar - 1] if tar else 0)
        start, size = self._offsets.get_itar_byte_offset(self.tar_filepaths[tar], within)
        return ITarSamplePointer(tar_file_id=tar, byte_offset=start, byte_size=size)


class JoinIndexFileITarReader(ITarReader[int]):
    """Reads the samples of one dataset of a join, by the number of the row.

    Args:
        index_file: The index of the join.
        column: Number of the dataset in the join.
        tar_filenames: Names of the tars of its split part.
        base_path: The dataset.
        part_filter: As for :class:`ITarReader`, like the rest.
        itar_cache_size: Number of indices to keep.
        sample_filter: Tells whether a sample is wanted.
        disable_cache: Not needed.
    """

    def __init__(
        self,
        index_file: EPath,
        column: int,
        tar_filenames: list[str],
        base_path: EPath,
        part_filter: Filter | None = None,
        itar_cache_size: int = 5,
        sample_filter: Filter | None = None,
        disable_cache: bool = False,
    ) -> None:
        paths = [base_path / name for name in tar_filenames]
        super().__init__(
            base_path, tar_filenames, paths, part_filter, itar_cache_size, sample_filter, disable_cache
        )
        self._rows = JoinIndexReader(index_file, column)

    def __len__(self) -> int:
        return len(self._rows)

    def _pointer(self, idx: int) -> ITarSamplePointer:
        tar, start, size = self._rows[idx][0]
        return ITarSamplePointer(tar_file_id=tar, byte_offset=start, byte_size=size)


class SqliteITarEntryReader(ITarReader[str]):
    """Reads samples of a prepared dataset by key, or parts by key and name.

    Args:
        base_path: The dataset. It must have ``index.sqlite``.
        part_filter: As for :class:`ITarReader`, like the next ones.
        itar_cache_size: Number of indices to keep.
        sample_filter: Tells whether a sample is wanted.
        key_is_full_entryname: Whether keys are those of parts, as ``key.jpg``, which are read with their
            source.
        disable_cache: Not needed.

    Example:
        >>> reader = SqliteITarEntryReader(EPath("captions"), key_is_full_entryname=True)
        >>> len(reader), reader["00000000.txt"][0][:5]
        (64, b'...')
    """

    def __init__(
        self,
        base_path: EPath,
        part_filter: Filter | None = None,
        itar_cache_size: int = 5,
        sample_filter: Filter | None = None,
        key_is_full_entryname: bool = False,
        disable_cache: bool = False,
    ) -> None:
        names = get_info_shard_files(base_path)
        paths = [base_path / name for name in names]
        super().__init__(base_path, names, paths, part_filter, itar_cache_size, sample_filter, disable_cache)
        self._parts = key_is_full_entryname
        self._index = SqliteIndexReader(base_path / INDEX_SQLITE)

    def __len__(self) -> int:
        return self._index.get_sample_count()

    def _pointer(self, idx: str) -> ITarSamplePointer:
        return self._index.get_sample_pointer_by_key(idx)

    def __getitem__(self, key: str) -> Any:
        """Read a sample, or the bytes and the source of a part."""
        if not self._parts:
            return super().__getitem__(key)
        name = split_name(key)
        if name is None:
            raise unknown_name(key, str(self.base_path))
        place = self._index.get_sample_part(*name)
        shard = self.tar_filenames[place.tar_file_id]
        stop = place.raw_byte_offset + place.raw_byte_size
        data = self._store.get_range(shard, ByteRange(place.raw_byte_offset, stop)).data
        return bytes(data), SourceInfo(str(self.base_path), key, shard, (key,))

    def get_total_size(self) -> int:
        """Return the size of all samples in bytes."""
        return self._index.get_total_size()

    def list_all_samples(self) -> Iterator[tuple[str, int, int]]:
        """Iterate over key, size and number of the tar of all samples."""
        return self._index.list_all_samples()

    def list_all_sample_parts(self) -> Iterator[tuple[str, int, int]]:
        """Iterate over name, size and number of the tar of all parts."""
        return self._index.list_all_sample_parts()

    def list_sample_parts(self, sample_key: str, slow_mode: bool = False) -> Iterator[tuple[str, int, int]]:
        """Iterate over name, size and number of the tar of a sample's parts."""
        return self._index.list_sample_parts(sample_key)

    def close(self) -> None:
        """Close the index."""
        self._index.close()


class IJsonlReader:
    """Reads lines of a file of JSON lines by number, or by name as ``12.json``.

    Args:
        jsonl_path: The file; it must be prepared.
        sample_filter: Tells by the line's number, as text, whether it is wanted; None for all.
        index_cache_size: Not needed: the index is read once.

    Example:
        >>> reader = IJsonlReader(EPath("lines.jsonl"))
        >>> len(reader), reader["3.json"][0] == reader[3]["json"]
        (32, True)
    """

    def __init__(
        self, jsonl_path: EPath, sample_filter: Filter | None = None, index_cache_size: int = 5
    ) -> None:
        self.jsonl_path: EPath = EPath(jsonl_path)
        self.sample_filter: Filter | None = sample_filter
        self._index = CachedIJsonlOffsetReader(jsonl_path)
        self._store = open_once(StoreSpec(self.jsonl_path.url))

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, idx: int | str) -> Any:
        """Read a line: a sample for a number; bytes and source for a name."""
        number = idx if isinstance(idx, int) else self._number(idx)
        if number is None or not 0 <= number < len(self):
            if isinstance(idx, int):
                raise IndexError(f"there is no line {idx} of {len(self)}")
            raise unknown_name(idx, str(self.jsonl_path))
        key, shard = str(number), self.jsonl_path.name
        if self.sample_filter is not None and not self.sample_filter(key):
            return None
        start, size = self._index.get_ijsonl_byte_offset(number)
        data = bytes(self._store.get_range("", ByteRange(start, start + size)).data)
        source = SourceInfo(str(self.jsonl_path), number, shard, (f"{key}.json",))
        if isinstance(idx, str):
            return data, source
        return _sample(key, shard, number, source, {"json": data})

    def _number(self, name: str) -> int | None:
        number = name.removesuffix(".json")
        return int(number) if number.isdecimal() else None

    def get_total_size(self) -> int:
        """Return the size of the file."""
        return self._index.get_total_size()

    def list_all_samples(self) -> Iterator[tuple[str, int, int]]:
        """Iterate over number, size and a zero of all lines."""
        for number in range(len(self)):
            yield str(number), self._index.get_ijsonl_byte_offset(number)[1], 0

    def list_all_sample_parts(self) -> Iterator[tuple[str, int, int]]:
        """Iterate over name, size and a zero of all lines."""
        return ((f"{key}.json", size, tar) for key, size, tar in self.list_all_samples())

    def list_sample_parts(self, sample_key: str) -> Iterator[tuple[str, int, int]]:
        """Iterate over name, size and a zero of a line."""
        yield f"{sample_key}.json", self._index.get_ijsonl_byte_offset(int(sample_key))[1], 0

    def close(self) -> None:
        """Release what is held."""


class JsonlFileStore(IJsonlReader, FileStore[bytes]):
    """A file of JSON lines as a file store: the lines by name, as ``12.json``. Wrap it to decode them.

    Args:
        jsonl_path: The file; it must be prepared.
        sample_filter: As for :class:`IJsonlReader`.
        index_cache_size: Not needed.

    Example:
        >>> from energon_stream import DecodeFileStore, SampleDecoder
        >>> store = DecodeFileStore(JsonlFileStore(EPath("lines.jsonl")), decoder=SampleDecoder())
        >>> isinstance(store.get("3.json"), dict)
        True
    """

    def get_path(self) -> str:
        """Return the path of the file."""
        return str(self.jsonl_path)
