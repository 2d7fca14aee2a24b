"""Begins to fetch the clips that cookers will decode, as their ``clips`` says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, BinaryIO

from energon_stream.errors import ConfigError
from energon_stream.media import AuxStores, DecodeFileStore, FileStore, PrimaryFileStore, key_in_shard
from energon_stream.media.av import AVDecoder, Clips
from energon_stream.media.av.fetching import begin_clips
from energon_stream.media.file_store import FileDecoder, FileStoreWrapper
from energon_stream.pipeline import SavableDataset
from energon_stream.pipeline.reader_dataset import ReaderDataset
from energon_stream.samples import CrudeSample, SourceInfo
from energon_stream.task.cooking import ClipsOf, Cooker, select_cooker


@dataclass(slots=True)
class _FileAhead:
    """A file of which clips are fetched in the background."""

    file: BinaryIO | None = None
    source: SourceInfo | None = None

    def open(self, store: FileStore[Any], name: str, clips: Clips) -> tuple[AVDecoder, Clips]:
        """Open the file, in a thread."""
        self.file, self.source = store.open(name)
        return AVDecoder(self.file), clips


@dataclass(frozen=True, slots=True)
class _ClipStore(FileStoreWrapper):
    """A store of a sample, in which files are open already. Each is handed out once, and not kept here."""

    files: dict[str, _FileAhead] = field(compare=False, repr=False)
    begun: Future[None] = field(compare=False, repr=False)

    def __getitem__(self, key: str) -> tuple[Any, SourceInfo]:
        inner = self.inner
        if key in self.files and isinstance(inner, DecodeFileStore):
            decoder = inner.decoder
            if isinstance(decoder, FileDecoder) and decoder.takes_file(key):
                file, source = self.open(key)
                return decoder.decode_file(key, file), source
        return inner[key]

    def open(self, key: str) -> tuple[BinaryIO, SourceInfo]:
        opened = self.files.pop(key, None)
        if opened is not None:
            self.begun.result()
            if opened.file is not None and opened.source is not None:
                return opened.file, opened.source
        return self.inner.open(key)  # raises what opening it ahead did

    def __reduce__(self) -> tuple[Any, ...]:
        return _same, (self.inner,)


def _same(store: FileStore[Any]) -> FileStore[Any]:
    return store


def clips_ahead(
    cookers: Sequence[Cooker[Any]], dataset: SavableDataset[Any]
) -> Callable[[Sequence[Any]], None] | None:
    """Return the function that begins to fetch the clips of samples; None if no cooker names any."""
    # Only the samples of a reader come in an order that is known ahead.
    if not isinstance(dataset, ReaderDataset) or not any(map(_clips_of, cookers)):
        return None
    return partial(begin_clips_of, cookers)


def _clips_of(cooker: Cooker[Any]) -> ClipsOf | None:
    found: ClipsOf | None = getattr(cooker.cook, "__cooker_clips__", None)
    return found


def begin_clips_of(cookers: Sequence[Cooker[Any]], samples: Sequence[Any]) -> None:
    """Begin to fetch the clips of samples, whose stores then hand out files that have them."""
    wanted: list[Callable[[], tuple[AVDecoder, Clips]]] = []
    begun: list[tuple[CrudeSample, dict[str, dict[str, _FileAhead]]]] = []
    for sample in samples:
        if not isinstance(sample, CrudeSample) or sample.stores is None:
            continue
        clips = _clips_of(select_cooker(cookers, dict.get(sample, "__subflavors__")))
        if clips is None:
            continue
        files: dict[str, dict[str, _FileAhead]] = {}
        try:
            for store, named in clips(sample).items():
                files[store] = {}
                for name, of_file in named.items():
                    inner, full_name = _store_of(sample, store, name)
                    opened = files[store][full_name] = _FileAhead()
                    wanted.append(partial(opened.open, inner, full_name, of_file))
        except Exception as error:
            sample.stores = replace(sample.stores, problem=error)
        begun.append((sample, files))
    done = begin_clips(wanted)
    for sample, files in begun:
        stores = sample.stores
        aux = {name: _with(store, files.get(name), done) for name, store in stores.aux.items()}
        primary = stores.primary and _with(stores.primary, files.get("primary"), done)
        sample.stores = replace(stores, aux=aux, primary=primary)


def _with(store: FileStore[Any], files: dict[str, _FileAhead] | None, begun: Future[None]) -> FileStore[Any]:
    return _ClipStore(store, files, begun) if files else store


def _store_of(sample: CrudeSample, store: str, name: str) -> tuple[FileStore[Any], str]:
    """Return a store of a sample, and the full name of a file in it."""
    stores: AuxStores = sample.stores
    if store == "primary" and stores.primary is not None:
        return stores.primary, PrimaryFileStore(stores.primary, key_in_shard(sample)).full_name(name)
    if store not in stores.aux:
        raise ConfigError(
            f"the cooker's clips name the store {store!r}, which the dataset does not have",
            where=sample["__key__"],
            hint="name 'primary', or a store under aux: in the metadataset",
        )
    return stores.aux[store], name
