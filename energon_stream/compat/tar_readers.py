"""Tars, their indices, and samples that are looked up in them, under Megatron-Energon's names."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from energon_stream.auxiliary import WebdatasetFileStore
from energon_stream.compat.dataset_info import FilteredSample, get_info_shard_files
from energon_stream.compat.epath import EPath
from energon_stream.compat.sqlite_indices import Closing, SqliteIndexReader
from energon_stream.index.index_files import decode_offsets, index_path
from energon_stream.index.sqlite_index import INDEX_SQLITE
from energon_stream.media import open_once
from energon_stream.media.seekable import StoreFile
from energon_stream.samples import SourceInfo
from energon_stream.storage import ByteRange, StoreSpec
from energon_stream.tar.format import sample_parts


class TarIndexReader(Closing):
    """The index beside a tar: where each sample begins, and the end of the last one. It is read whole."""

    def __init__(self, tar_path: EPath | str) -> None:
        index = EPath(index_path(EPath(tar_path).url))
        self._offsets: list[int] = decode_offsets(index.read_bytes(), 0, str(index)).tolist()

    def __getitem__(self, index: int) -> int:
        return self._offsets[index]

    def __iter__(self) -> Iterator[int]:
        return iter(self._offsets)

    def __len__(self) -> int:
        return len(self._offsets)


def get_itar_byte_offset(path: str | EPath, sample_offset: int = 0) -> int:
    """Return the first byte of a sample of a tar."""
    return TarIndexReader(path)[sample_offset]


class _TarBytes(StoreFile):
    """A tar in a store, for a buffered reader."""

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


@contextmanager
def open_itar(
    path: str | EPath, byte_offset: int = 0, byte_size: int | None = None
) -> Iterator[tarfile.TarFile]:
    """Open a tar from a member on, for a ``with`` block; a remote one is read by range."""
    store = StoreSpec(EPath(path).url).open()
    stop = store.head("").size if byte_size is None else byte_offset + byte_size
    with io.BufferedReader(_TarBytes(store, "", stop, None)) as file:
        file.seek(byte_offset)
        with tarfile.TarFile(fileobj=file) as tar:
            yield tar


class SqliteITarEntryReader(Closing):
    """Reads samples of a prepared dataset by key, or parts by key and name, with a request each.

    The dataset must have ``index.sqlite``. With ``key_is_full_entryname``, a key names a part, as
    ``key.jpg``, which is read with its source. The options of caches have no effect: there are none.
    """

    def __init__(
        self,
        base_path: EPath,
        part_filter: Callable[[str], bool] | None = None,
        itar_cache_size: int = 5,
        sample_filter: Callable[[str], bool] | None = None,
        key_is_full_entryname: bool = False,
        disable_cache: bool = False,
    ) -> None:
        self.base_path: EPath = base_path
        self.tar_filenames: list[str] = get_info_shard_files(base_path)
        self.part_filter: Callable[[str], bool] | None = part_filter
        self.sample_filter: Callable[[str], bool] | None = sample_filter
        self._parts = WebdatasetFileStore(base_path) if key_is_full_entryname else None
        self._index = SqliteIndexReader(base_path / INDEX_SQLITE)

    def __len__(self) -> int:
        return self._index.get_sample_count()

    def __getitem__(self, key: str) -> Any:
        """Read a sample, None if the filter drops it; or the bytes and the source of a part.

        Raises FieldError if the index has no such sample or part.
        """
        if self._parts is not None:
            data, source = self._parts[key]
            return data, replace(source, index=key)
        place = self._index.get_sample_pointer_by_key(key)
        shard = self.tar_filenames[place.tar_file_id]
        byte_range = ByteRange(place.byte_offset, place.byte_offset + place.byte_size)
        raw = open_once(StoreSpec(self.base_path.url)).get_range(shard, byte_range).data
        found = sample_parts(raw, 0, len(raw))
        if self.sample_filter is not None and not self.sample_filter(f"{shard}/{found.key}"):
            return None
        parts = {
            name: bytes(raw[start:stop])
            for name, start, stop in zip(found.names, found.starts, found.stops, strict=True)
            if self.part_filter is None or self.part_filter(name)
        }
        files = tuple(f"{found.key}.{name}" for name in parts)
        return FilteredSample(
            __key__=found.key,
            __shard__=shard,
            __restore_key__=("Webdataset", key),
            __sources__=(SourceInfo(str(self.base_path), key, shard, files),),
            **parts,
        )

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
