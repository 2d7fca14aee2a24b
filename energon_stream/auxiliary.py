"""File stores of prepared datasets, with one range request per part, and of folders with media metadata.

Also ranges of files, and stores of the program's own by the protocol of their URL.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, NamedTuple, cast

from energon_stream.errors import (
    ConfigError,
    CorruptTarError,
    IndexMismatchError,
    MetadataError,
    MissingFileError,
    NotPreparedError,
    ObjectNotFoundError,
    RangeError,
    SampleError,
    StorageError,
    UnsupportedStoreError,
)
from energon_stream.fork import PerProcess
from energon_stream.index.database import IndexDatabase, index_database
from energon_stream.index.info_files import INFO_JSON, read_info
from energon_stream.index.objects import ShardObject, VersionGuard
from energon_stream.index.shard_names import check_tars
from energon_stream.index.sqlite_index import INDEX_SQLITE
from energon_stream.media import FilePlace, FileStore, FolderFileStore, RangedFile, open_once
from energon_stream.media.file_layout import FileLayout
from energon_stream.media.file_store import unknown_name
from energon_stream.media.metadata import MediaMetadataBase, deserialize_media_metadata
from energon_stream.printable import strip_credentials
from energon_stream.samples import SourceInfo
from energon_stream.storage import ByteRange, Store, StoreSpec, Transport
from energon_stream.tar.format import TAR_RECORD, check_header, split_name

_FIND = """
SELECT sample_index, tar_file_id, content_byte_offset, content_byte_size
FROM samples JOIN sample_parts USING (tar_file_id, sample_index) WHERE sample_key = ? AND part_name = ?
"""
_LIST = """
SELECT part_name, content_byte_size, tar_file_id FROM samples JOIN sample_parts USING (tar_file_id, sample_index)
WHERE sample_key = ? ORDER BY content_byte_offset
"""
_FIND_MEDIA = "SELECT metadata_type, metadata_json FROM media_metadata WHERE entry_key = ?"
_FIND_LAYOUT = "SELECT layout_json FROM media_layouts WHERE entry_key = ?"


class ShardBytes(NamedTuple):
    """Bytes of a shard."""

    shard: ShardObject
    bytes: ByteRange


class OpenedDataset:
    """A prepared dataset in one process. NotPreparedError without index has ``purpose`` and ``hint``."""

    def __init__(self, spec: StoreSpec, purpose: str, hint: str = "") -> None:
        self.store: Store = open_once(spec)
        missing = INFO_JSON
        try:
            self._shards = list(read_info(self.store))
            check_tars(self.store.url, self._shards)
            missing = INDEX_SQLITE
            self.database: IndexDatabase = index_database(spec)
        except ObjectNotFoundError as error:
            raise NotPreparedError(
                f"{missing} not found; {purpose}",
                where=self.store.url,
                hint=f"run `energon-stream prepare {self.store.url}`{hint}",
            ) from error
        self._versions = VersionGuard(self.store.url)

    def place(self, row: Sequence[Any]) -> ShardBytes:
        """Return the place that a row of shard number, first byte and size names, or raise MetadataError."""
        shard, start, size = row
        if shard < len(self._shards):
            found = ShardObject(self.store, self._shards[shard], self._versions)
            return ShardBytes(found, ByteRange(start, start + size))
        raise self.database.damaged(
            f"shard {row[0]!r:.40}, byte {row[1]!r:.40} and size {row[2]!r:.40} are no place"
        )


_datasets: PerProcess[OpenedDataset] = PerProcess()
_folders: PerProcess[IndexDatabase] = PerProcess()
_layouts: PerProcess[IndexDatabase | None] = PerProcess()  # None for a folder without an index


def _dataset(spec: StoreSpec) -> OpenedDataset:
    purpose, hint = "auxiliary data needs a prepared dataset", ", or write filesystem://… for a plain folder"
    return _datasets.map(spec, lambda: OpenedDataset(spec, purpose, hint))


def _media(database: IndexDatabase, key: str) -> MediaMetadataBase:
    if not database.has_table("media_metadata"):
        raise _no_media(database.store.url)
    found = database.rows(_FIND_MEDIA, (key,))
    if not found:
        raise unknown_name(key, database.store.url)
    try:
        return deserialize_media_metadata(*found[0])
    except MetadataError as error:
        raise MetadataError(error.what, where=f"{database.url}: {key}", hint=error.hint) from error


def _layout(database: IndexDatabase, key: str) -> FileLayout | None:
    """Return where the bytes are that opening a video or audio needs; None if the index does not say."""
    try:
        # Others and older versions write an index without layouts.
        found = database.rows(_FIND_LAYOUT, (key,)) if database.has_table("media_layouts") else []
    except (MetadataError, StorageError):
        return None
    return FileLayout.from_json(found[0][0]) if found else None


def _database_if_any(spec: StoreSpec) -> IndexDatabase | None:
    try:
        return index_database(spec)
    except StorageError:  # there is none, or it may not be read
        return None


@dataclass(frozen=True, slots=True, init=False)
class WebdatasetFileStore(FileStore[bytes]):
    """Parts of a dataset with ``index.sqlite``, by key and part name: ``store["folder/000012.jpg"]``."""

    spec: StoreSpec

    def __init__(self, dataset_path: str | os.PathLike[str] | StoreSpec) -> None:
        if not isinstance(dataset_path, StoreSpec):
            dataset_path = StoreSpec(os.fspath(dataset_path))
        object.__setattr__(self, "spec", dataset_path)

    def __getitem__(self, key: str) -> tuple[bytes, SourceInfo]:
        """Read one part and its tar header with one request; see ``FileStore``.

        Raises IndexMismatchError if the header has another name or size than the index.
        """
        shard, part, source = self._find(key)
        with_header = ByteRange(part.start - TAR_RECORD, part.stop)
        data = shard.get_range(with_header).data
        try:
            check_header(data, key, len(part))
        except CorruptTarError as error:
            raise IndexMismatchError(
                f"the index and the tar disagree about {key!r}: {error.what}",
                where=f"{shard.url} from byte {with_header.start}",
                hint="the shard was changed or damaged after it was indexed, or the answer was wrong; "
                "run `energon-stream prepare` again",
            ) from error
        return data[TAR_RECORD:].tobytes(), source

    def open(self, key: str) -> tuple[BinaryIO, SourceInfo]:
        """Return a part as a file that is read by range; see ``FileStore``."""
        shard, part, source = self._find(key)
        place = FilePlace(self.spec, shard.path, part.start, len(part))
        file = RangedFile(place, partial(_layout, _dataset(self.spec).database, key))
        return cast("BinaryIO", file), source

    def _find(self, key: str) -> tuple[ShardObject, ByteRange, SourceInfo]:
        """Return the place of a part, and its source."""
        opened, name = _dataset(self.spec), split_name(key)
        found = [] if name is None else opened.database.rows(_FIND, name)
        if not found:
            raise unknown_name(key, self.get_path())
        sample, *place = found[0]
        shard, part = opened.place(place)
        if part.start < TAR_RECORD:
            raise opened.database.damaged(f"{key!r} is from byte {part.start} on")
        return shard, part, SourceInfo(self.get_path(), sample, shard.path, (key,))

    def list_sample_parts(self, sample_key: str, slow_mode: bool = False) -> Iterator[tuple[str, int, int]]:
        """Iterate over name, size and number of the tar of a sample's parts; ``slow_mode`` has no effect."""
        return iter(
            cast("list[tuple[str, int, int]]", _dataset(self.spec).database.rows(_LIST, (sample_key,)))
        )

    def get_media_metadata(self, key: str) -> MediaMetadataBase:
        """Return the indexed size and format of an image, or length and format of video and audio."""
        return _media(_dataset(self.spec).database, key)

    def get_path(self) -> str:
        """Return the path or URL of the dataset."""
        return strip_credentials(self.spec.url)


class SystemFileStore(FolderFileStore):
    """A folder of files, looked up by relative path, with the metadata that ``prepare-media`` has indexed.

    Each lookup is one request.

    Args:
        base_dir: Path or URL of the folder; None for the whole local file system, with absolute paths.
        storage_options: Options of the URL's file system, such as credentials.
        transport: ``"auto"``, ``"obstore"`` or ``"fsspec"``.

    Example:
        >>> from energon_stream import SystemFileStore
        >>> SystemFileStore("s3://data")["mix.yaml"][0][:10]
        b'__module__'
    """

    __slots__ = ()

    def open(self, key: str) -> tuple[BinaryIO, SourceInfo]:
        """Return a file that is read by range; see ``FileStore``."""
        place, source = self.place(key)
        return cast("BinaryIO", RangedFile(place, partial(self._layout, key))), source

    def _layout(self, key: str) -> FileLayout | None:
        database = _layouts.map(self.spec, lambda: _database_if_any(self.spec))
        return None if database is None else _layout(database, key)

    def get_media_metadata(self, key: str) -> MediaMetadataBase:
        """Return the indexed size and format of an image, or length and format of video and audio.

        Raises UnsupportedStoreError if the folder has no media metadata, and FieldError if the index has no
        image of this name.
        """
        try:
            database = _folders.map(self.spec, lambda: index_database(self.spec))
        except ObjectNotFoundError as error:
            raise _no_media(self.get_path()) from error
        return _media(database, key)


def _no_media(where: str) -> UnsupportedStoreError:
    hint = "run `energon-stream prepare-media`"
    return UnsupportedStoreError("media metadata was not indexed", where=where, hint=hint)


@dataclass(frozen=True, slots=True, init=False)
class ByteRangeStore(FileStore[bytes]):
    """Ranges of the files of a folder: ``store["lines.bin#bytes=8192:120"]`` has 120 bytes from 8,192 on.

    Args:
        root: Path or URL of the folder.
        storage_options: Options of the URL's file system, such as credentials.
        transport: ``"auto"``, ``"obstore"`` or ``"fsspec"``.

    Example:
        >>> from energon_stream import ByteRangeStore
        >>> ByteRangeStore("s3://data")["mix.yaml#bytes=2:6"][0]
        b'module'
    """

    files: FolderFileStore

    def __init__(
        self,
        root: str | os.PathLike[str] | StoreSpec,
        *,
        storage_options: Mapping[str, Any] | None = None,
        transport: Transport = "auto",
    ) -> None:
        files = FolderFileStore(root, storage_options=storage_options, transport=transport)
        object.__setattr__(self, "files", files)

    def __getitem__(self, key: str) -> tuple[bytes, SourceInfo]:
        """Read a range by one request; see ``FileStore``. Raises SampleError if the key names none."""
        path, _, place = key.rpartition("#bytes=")
        found = _RANGE.fullmatch(place)
        if not path or found is None:
            hint = "keys are path#bytes=offset:size"
            raise SampleError(f"{key!r:.80} names no range of a file", where=self.get_path(), hint=hint)
        return self._read(path, *map(int, found.groups())), SourceInfo(self.get_path(), key, None, (key,))

    def read_range(self, path: str, offset: int, size: int, *, sample: Any = None) -> bytes:
        """Return bytes of a file; see :meth:`FileStore.get`. Raises MissingFileError beyond its end."""
        return self.get(f"{path}#bytes={offset}:{size}", sample)

    def _read(self, path: str, offset: int, size: int) -> bytes:
        place, _ = self.files.place(path)
        wanted = ByteRange(offset, offset + size)
        try:
            return open_once(place.spec).get_range(place.path, wanted).data.tobytes() if size else b""
        except (ObjectNotFoundError, RangeError) as error:  # this sample's fault: others go on
            hint = "check the file and the bytes that the sample refers to"
            raise MissingFileError(error.what, where=error.where, hint=hint) from error

    def get_path(self) -> str:
        """Return the path or URL of the folder."""
        return self.files.get_path()


_RANGE = re.compile(r"([0-9]{1,18}):([0-9]{1,18})")
_PROTOCOL = re.compile(r"[a-z][a-z0-9.-]*")


class AuxFileStoreReference(ABC):
    """Store that an ``aux:`` URL names, by a protocol of :func:`register_aux_filestore_protocol`.

    Example:
        >>> from energon_stream import AuxFileStoreReference, SystemFileStore
        >>> class Folder(AuxFileStoreReference):
        ...     def __init__(self, rest):
        ...         self.rest = rest
        ...     def get_file_store(self):
        ...         return SystemFileStore(self.rest)
        >>> Folder("captions").get_traversed_path()
        'captions'
    """

    @abstractmethod
    def get_file_store(self) -> FileStore[Any]:
        """Return the store: a value that can be pickled, because workers get it, too."""

    def get_traversed_path(self) -> Any:
        """Return the path to show."""
        return self.get_file_store().get_path()

    def _resolve_path(self, recipe_path: Any) -> None:  # noqa: B027 # may be left as it is
        """Note the path of the metadataset file, to which a path in the URL may be relative."""


AuxFileStoreProtocolFactory = Callable[[str], AuxFileStoreReference]
_protocols: dict[str, AuxFileStoreProtocolFactory] = {}


def register_aux_filestore_protocol(
    name: str, factory: AuxFileStoreProtocolFactory, *, override: bool = False
) -> None:
    """Let ``aux:`` of metadatasets name stores of your own: ``aux: {words: NAME://REST}``.

    A metadataset in a store may name them only where ``allow_urls`` has the prefix ``NAME://``. Bytes of the
    store are decoded by the key; other values stay as they are.

    Args:
        name: The protocol: letters, digits, ``.`` and ``-``. Capital letters do not count.
        factory: Called with ``REST``; returns an :class:`AuxFileStoreReference`.
        override: Whether a protocol of that name may be replaced.

    Raises:
        ConfigError: The name is taken, or none.

    Example:
        >>> from energon_stream import AuxFileStoreReference, SystemFileStore, register_aux_filestore_protocol
        >>> class Demo(AuxFileStoreReference):
        ...     def __init__(self, rest):
        ...         self.path = rest
        ...     def get_file_store(self):
        ...         return SystemFileStore(self.path)
        >>> register_aux_filestore_protocol("demo", Demo)
    """
    key = name.lower()
    if _PROTOCOL.fullmatch(key) is None:
        raise ConfigError(f"{name!r:.80} is no protocol", hint="use letters, digits, . and -")
    if not override and (key in _protocols or key in ("filesystem", "byterange")):
        raise ConfigError(
            f"the protocol {name!r} is taken", hint="choose another name, or pass override=True"
        )
    _protocols[key] = factory


def is_registered(url: str) -> bool:
    """Return whether a URL has a protocol of :func:`register_aux_filestore_protocol`."""
    return url.partition("://")[0].lower() in _protocols


def registered_store(url: str, beside: Any) -> FileStore[Any]:
    """Return the store of such a URL; ``beside`` is the path of the metadataset, or None."""
    protocol, _, rest = url.partition("://")
    reference = _protocols[protocol.lower()](rest)
    if beside is not None:
        reference._resolve_path(beside)
    return reference.get_file_store()
