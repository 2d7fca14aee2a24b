"""File stores of prepared datasets, with one range request per part, and of folders with media metadata."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple, cast

import apsw

from energon_stream.errors import (
    CorruptTarError,
    IndexMismatchError,
    MetadataError,
    NotPreparedError,
    ObjectNotFoundError,
    UnsupportedStoreError,
)
from energon_stream.index.metadata import INFO_JSON, read_info
from energon_stream.index.tar_format import TAR_RECORD, check_header, split_name
from energon_stream.media import FilePlace, FileStore, FolderFileStore, RangedFile, open_once
from energon_stream.media.file_store import missing_file
from energon_stream.media.metadata import MediaMetadataBase, deserialize_media_metadata
from energon_stream.read.index_database import index_database
from energon_stream.read.objects import VersionGuard
from energon_stream.samples import SourceInfo
from energon_stream.storage import ByteRange, Store, StoreSpec, strip_credentials
from energon_stream.storage.fork import PerProcess

_FIND = """
SELECT sample_index, tar_file_id, content_byte_offset, content_byte_size
FROM samples JOIN sample_parts USING (tar_file_id, sample_index) WHERE sample_key = ? AND part_name = ?
"""
_FIND_MEDIA = "SELECT metadata_type, metadata_json FROM media_metadata WHERE entry_key = ?"


class _Place(NamedTuple):
    shard: str
    sample: int
    bytes: ByteRange


class _Index:
    """A folder's ``index.sqlite`` in one process, shared by several stores."""

    def __init__(self, spec: StoreSpec) -> None:
        self.store = open_once(spec)
        try:
            self._database = index_database(spec)
        except ObjectNotFoundError as error:
            raise _not_prepared(self.store, "index.sqlite") from error

    def media(self, key: str, store: FileStore[bytes]) -> MediaMetadataBase:
        """Return the metadata of a media file; ``store`` is for messages."""
        where = self._database.url
        try:
            found = self._database.rows(_FIND_MEDIA, (key,))
        except apsw.SQLError as error:
            raise _no_media(self.store.url) from error
        except apsw.Error as error:
            raise self._database.damaged(str(error)) from error
        if not found:
            raise missing_file(key, store)
        try:
            return deserialize_media_metadata(*found[0])
        except MetadataError as error:
            raise MetadataError(error.what, where=f"{where}: {key}", hint=error.hint) from error


class _Opened(_Index):
    """A prepared dataset's index and shards."""

    def __init__(self, spec: StoreSpec) -> None:
        store = open_once(spec)
        try:
            self._shards = list(read_info(store))
        except ObjectNotFoundError as error:
            raise _not_prepared(store, INFO_JSON) from error
        super().__init__(spec)
        self.versions = VersionGuard(self.store.url)

    def find(self, key: str) -> _Place | None:
        """Return the place of a part, or None if the dataset has no such part."""
        name = split_name(key)
        if name is None:
            return None
        found = self._database.checked_rows(_FIND, name)
        if not found:
            return None
        sample, *place = found[0]
        shard, part = self._database.place(self._shards, place)
        if part.start < TAR_RECORD or type(sample) is not int:
            raise self._database.damaged(f"{key!r} is sample {sample!r:.40}, from byte {part.start} on")
        return _Place(shard, sample, part)

    def read(self, key: str, place: _Place) -> bytes:
        """Read a part, and compare the header before it with the name and the size in the index.

        Raises IndexMismatchError if they differ.
        """
        shard, part = place.shard, place.bytes
        with_header = ByteRange(part.start - TAR_RECORD, part.stop)
        body = self.store.get_range(shard, with_header, etag=self.versions.etag(shard))
        self.versions.observe(shard, body.etag)
        try:
            check_header(body.data, key, len(part))
        except CorruptTarError as error:
            raise IndexMismatchError(
                f"the index and the tar disagree about {key!r}: {error.what}",
                where=f"{self.store.url}/{shard} from byte {with_header.start}",
                hint="the shard was changed or damaged after it was indexed, or the answer was wrong; "
                "run `energon-stream prepare` again",
            ) from error
        return body.data[TAR_RECORD:].tobytes()


_datasets: PerProcess[_Opened] = PerProcess()
_folders: PerProcess[_Index] = PerProcess()


def _dataset(spec: StoreSpec) -> _Opened:
    return _datasets.map(spec, lambda: _Opened(spec))


@dataclass(frozen=True, slots=True, init=False)
class WebdatasetFileStore(FileStore[bytes]):
    """Parts of a prepared dataset, by sample key and part name: ``store["folder/000012.jpg"]``.

    Args:
        dataset_path: Path or URL of the dataset. It must have ``index.sqlite``.
    """

    spec: StoreSpec

    def __init__(self, dataset_path: str | os.PathLike[str] | StoreSpec) -> None:
        if not isinstance(dataset_path, StoreSpec):
            dataset_path = StoreSpec(os.fspath(dataset_path))
        object.__setattr__(self, "spec", dataset_path)

    def __getitem__(self, key: str) -> tuple[bytes, SourceInfo]:
        """Read one part and its tar header with one request; see ``FileStore``.

        Raises NotPreparedError if the dataset has no index, ObjectChangedError if a shard was replaced since
        it was first read, and IndexMismatchError if the header has another name or size than the index.
        """
        opened = _dataset(self.spec)
        place = opened.find(key)
        if place is None:
            raise missing_file(key, self)
        data = opened.read(key, place)
        return data, SourceInfo(self.get_path(), place.sample, place.shard, (key,))

    def open(self, key: str) -> tuple[BinaryIO, SourceInfo]:
        """Return a part as a file that is read by range; see ``FileStore``."""
        place = _dataset(self.spec).find(key)
        if place is None:
            raise missing_file(key, self)
        file = RangedFile(FilePlace(self.spec, place.shard, place.bytes.start, len(place.bytes)))
        return cast("BinaryIO", file), SourceInfo(self.get_path(), place.sample, place.shard, (key,))

    def get_media_metadata(self, key: str) -> MediaMetadataBase:
        """Return the indexed size and format of an image, or length and format of video and audio.

        Raises UnsupportedStoreError if the dataset was prepared without media metadata, and FieldError if the
        index has no such name.
        """
        return _dataset(self.spec).media(key, self)

    def get_path(self) -> str:
        """Return the path or URL of the dataset."""
        return strip_credentials(self.spec.url)


@dataclass(frozen=True, slots=True, init=False)
class SystemFileStore(FolderFileStore):
    """A folder of files, looked up by relative path, with the metadata that ``prepare-media`` has indexed.

    Each lookup is one request.

    Args:
        base_dir: Path or URL of the folder; None for the whole local file system, with absolute paths.
        storage_options: Credentials and the like, for URLs.
        transport: ``"auto"``, ``"obstore"`` or ``"fsspec"``.

    Example:
        >>> from energon_stream import SystemFileStore
        >>> SystemFileStore("s3://data")["mix.yaml"][0][:10]
        b'__module__'
    """

    def get_media_metadata(self, key: str) -> MediaMetadataBase:
        """Return the indexed size and format of an image, or length and format of video and audio.

        Raises UnsupportedStoreError if the folder has no media metadata, and FieldError if the index has no
        image of this name.
        """
        try:
            index = _folders.map(self.spec, lambda: _Index(self.spec))
        except NotPreparedError as error:
            raise _no_media(self.get_path()) from error
        return index.media(key, self)


def _no_media(where: str) -> UnsupportedStoreError:
    hint = "run `energon-stream prepare-media`"
    return UnsupportedStoreError("media metadata was not indexed", where=where, hint=hint)


def _not_prepared(store: Store, what: str) -> NotPreparedError:
    return NotPreparedError(
        f"{what} not found; auxiliary data needs a prepared dataset",
        where=store.url,
        hint=f"run `energon-stream prepare {store.url}`, or write filesystem://… for a plain folder",
    )
