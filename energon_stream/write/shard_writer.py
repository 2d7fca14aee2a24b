"""Writes a dataset, shard by shard, to a folder or an object store."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from energon_stream.atomic_files import remove_temporaries
from energon_stream.config.sample_types import SampleType
from energon_stream.errors import ConfigError
from energon_stream.index.index_files import encode_offsets, index_path
from energon_stream.index.info_files import INFO_JSON, INFO_YAML, META_FOLDER
from energon_stream.prepare.builder import IndexBuilder
from energon_stream.prepare.publish import MetadataOptions
from energon_stream.prepare.shard_records import ShardRecord, ShardRecords
from energon_stream.quantities import parse_size
from energon_stream.samples import Sample
from energon_stream.storage import Store, StoreSpec
from energon_stream.storage.claims import Claim
from energon_stream.storage.local import named_errors
from energon_stream.temporary_folders import temporary_folder
from energon_stream.urls import local_path
from energon_stream.write.dealing import Dealer, parse_dealing
from energon_stream.write.finish import CRUDE, publish_shards, publish_written
from energon_stream.write.journal import (
    WRITING,
    PartArguments,
    load_shards,
    part_files,
    resume_part,
    save_part,
)
from energon_stream.write.tar_shard import MAX_SIZE, SampleEncoder, TarShard
from energon_stream.write.typed_samples import TypedSamples

_TEMPORARY = ".energon-tmp"
_APART = 1_000_003  # between the numbers of the first samples of writers side by side, for other draws


def parse_shard_size(max_size: int | str, max_count: int | None) -> int:
    """Return the bytes of a shard. Raises ConfigError if it, or the number of samples, is no limit."""
    size = parse_size(max_size, "max_size")
    if size < 1 or (max_count is not None and max_count < 1):
        raise ConfigError(f"max_size is {size} and max_count {max_count}", hint="use 1 or more")
    return size


class ShardWriter:
    """Writes samples to a new dataset: tars, their indices, and at the end the metadata that publishes it.

    Use it as a context. When the block ends without an error, the dataset is complete and can be loaded;
    before that, loading it fails. If the process ends early, open a writer with the same arguments again: it
    goes on after the last complete shard, and ``written`` says how many samples to leave out. Equal samples
    give equal bytes.

    A shard is built in a local file. Its upload, in several requests if the tar is large, runs while the next
    shard is built.

    Args:
        url_or_path: New folder, local or any fsspec URL.
        max_size: Largest size of a tar, in bytes or as ``"500MB"``; a tar with one sample may be larger.
        max_count: Largest number of samples in a tar; None for no limit.
        name: Begin of the tars' names: ``data-000000.tar``.
        part: Number of this writer, of several side by side.
        parts: Number of writers. With more than one, call :func:`finish_dataset` when all are done.
        split_ratio: Shares of the samples in train, val and test, or in split parts by name; None for all in
            ``train``. Samples are dealt at random, the same way each time, and each split part has tars of
            its own: ``data-val-000000.tar``. Of several writers, give it to each.
        split_patterns: ``NAME:PATTERN`` with a regular expression, glob or brace pattern of shards. For one
            writer only, as the next.
        dataset_yaml: Content of ``dataset.yaml``, which says what samples are; None to write no such file.
            The default is crude samples.
        signature: Version of what the samples are made from. A writer that goes on refuses any other version.
        publish: Whether a single writer publishes the dataset when it is closed; else call
            :func:`finish_dataset`.
        storage_options: Options of the URL's file system, such as credentials.
        tmp_path: Local folder for the shards of a remote dataset until they are uploaded (up to two of each
            split part at a time), and for the index; None for the system's.
        first: Number of this writer's first sample among those of all, if it is known: then the shares hold
            for all writers together.
        sample_type: Type of the samples, a class or the name of one of the library's, for ``dataset.yaml``.
            ``write`` takes its instances, too.
        field_map: Part of each field, as in ``dataset.yaml``: ``jpg``, or ``json[caption]``; the first of
            several is written. None for the usual parts of ``CaptioningSample``, ``ImageSample``,
            ``ImageClassificationSample`` and ``TextSample``.
        quality: Quality of JPEG, WebP and AVIF images that are encoded, 1 to 100. None: 95 for JPEG, without
            loss for WebP, and an image that was opened and not changed keeps its file.

    Attributes:
        written: Number of samples in complete shards of this part when the writer was opened, plus those
            written since.
        is_complete: Whether the part was complete when the writer was opened.

    Raises:
        ConfigError: The folder has a dataset or tars, or arguments are wrong or other ones than before; or,
            at the end, a split part with a share has no samples.

    Example:
        >>> from energon_stream import ShardWriter, WorkerConfig, get_train_dataset
        >>> rows = [{"__key__": f"{number:04d}", "txt": f"text {number}"} for number in range(10)]
        >>> with ShardWriter("written", max_count=4) as writer:
        ...     for row in rows[writer.written :]:
        ...         writer.write(row)
        >>> sorted(writer.shard_counts.items())
        [('data-000000.tar', 4), ('data-000001.tar', 4), ('data-000002.tar', 2)]
    """

    def __init__(
        self,
        url_or_path: str | os.PathLike[str],
        *,
        max_size: int | str = MAX_SIZE,
        max_count: int | None = None,
        name: str = "data",
        part: int = 0,
        parts: int = 1,
        split_ratio: Sequence[float] | Mapping[str, float] | None = None,
        split_patterns: Sequence[str] | None = None,
        dataset_yaml: Mapping[str, Any] | None = CRUDE,
        signature: str = "",
        publish: bool = True,
        storage_options: Mapping[str, Any] | None = None,
        tmp_path: str | os.PathLike[str] | None = None,
        first: int | None = None,
        sample_type: SampleType | None = None,
        field_map: Mapping[str, str] | None = None,
        quality: int | None = None,
    ) -> None:
        max_size = parse_shard_size(max_size, max_count)
        if not 0 <= part < parts:
            raise ConfigError(f"part {part} of {parts} parts", hint="part counts from 0 to parts - 1")
        if not name or any(sign in name for sign in "/\\.\0{}[]*?,"):
            raise ConfigError(f"name is {name!r}", hint="give a plain word, such as train")
        if quality is not None and not 1 <= quality <= 100:
            raise ConfigError(f"quality is {quality}", hint="use 1 to 100")
        typed, declared = None, ""
        if sample_type is not None or field_map is not None:
            if dataset_yaml is not CRUDE:
                raise ConfigError("give either dataset_yaml, or sample_type and field_map")
            typed = TypedSamples(sample_type, field_map)
            dataset_yaml, declared = typed.document, json.dumps(typed.document)
        self._options, self._publish = MetadataOptions(split_ratio, split_patterns, dataset_yaml), publish
        dealing = parse_dealing(split_ratio)
        arguments = PartArguments(
            part, parts, name, max_size, max_count or 0, signature, dealing, declared, quality or 0
        )
        self._arguments = arguments
        self._dealer = Dealer(dealing) if dealing else None
        self._tmp_path = tmp_path
        self._first = part * _APART if first is None else first
        self._store = StoreSpec(os.fspath(url_or_path), storage_options).open()
        self._encoder, self._unique = SampleEncoder(quality, typed), uuid.uuid4().hex
        self._shards: dict[str, TarShard] = {}  # under way, by split part: a round
        self._rounds = 0  # that are complete
        self._upload: Future[None] | None = None
        self._is_usable = True
        existing_metadata(self._store)
        self._claim = Claim(self._store, f"{WRITING}/{part:05d}.claims")
        with ExitStack() as stack:
            stack.callback(self._claim.release)
            self._check(self._claim.take())
            existing = existing_metadata(self._store)
            self.is_complete: bool = resume_part(self._store, arguments, existing)
            folder = stack.enter_context(temporary_folder(tmp_path))
            self._builder = stack.enter_context(IndexBuilder(folder, checksums=True))
            self._pool = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="energon-write"))
            self._folder = self._shard_folder(folder)
            self.written: int = self._go_on(existing)
            if not self.is_complete:
                save_part(self._store, arguments, is_complete=False)
            self._stack = stack.pop_all()

    @property
    def shard_counts(self) -> Mapping[str, int]:
        """Number of samples by path of this part's complete shards."""
        return self._builder.counts

    def write(self, sample: Mapping[str, Any] | Sample) -> None:
        """Write a sample.

        Args:
            sample: The key as ``__key__``, and the parts by name: bytes, a ``pathlib.Path`` of a file, or
                values that fit the extension, such as an image of Pillow, an array or a tensor for ``jpg``.
                Other names that begin with ``__`` are left out. Or an instance of ``sample_type``.

        Raises:
            SampleError: The key or a part cannot be written. The writer may be used on.
            DuplicateKeyError: The sample's key was written before. Those of other shards are noticed when the
                shard is complete, those of other parts by :func:`finish_dataset`.
            StorageError: The disk is full, or the store refused the shard before.
            ConfigError: The writer has ended.
        """
        encoded = self._encoder.encode(sample)
        if not self._is_usable or self.is_complete:
            raise ConfigError(
                f"part {self._arguments.part} is complete" if self.is_complete else "the writer has ended",
                where=self._store.url,
                hint="open a new writer",
            )
        split, arguments = self._split_part(self.written), self._arguments
        shard = self._shards.get(split)
        if shard is not None and (
            len(shard.digests) == arguments.max_count or shard.size + encoded.size > arguments.max_size
        ):
            self._end_round()
        try:
            if split not in self._shards:
                self._shards[split] = self._begin_shard(split)
            self._shards[split].add(encoded)
        except OSError:
            self._is_usable = False
            raise
        self.written += 1

    def close(self) -> None:
        """Complete this part: wait until its last shard is uploaded. A single writer is finished as well.

        Raises StorageError if the store refuses a shard, and EmptyDatasetError if a single writer got no
        samples.
        """
        if not self._is_usable:
            return
        try:
            if any(shard.digests for shard in self._shards.values()):
                self._end_round()
            self._wait()
            self._keep_claim()
            if not self.is_complete:
                # A killed writer may have left tars of a round that was not complete.
                for split in self._split_parts:
                    stray = self._arguments.shard(self._rounds, split)
                    for path in (stray, index_path(stray), ShardRecords(self._store, WRITING).path(stray)):
                        self._store.delete(path)
                save_part(self._store, self._arguments, is_complete=True)
            if self._arguments.parts == 1 and self._publish:
                shards, options = sorted(self._builder.counts), self._options
                if self._dealer is None:
                    publish_written(self._store, self._builder, options, options.split(shards))
                else:  # the index has tars by name, which is not the order in which they were complete
                    publish_shards(
                        self._store, shards, options, split=self._arguments, tmp_path=self._tmp_path
                    )
        finally:
            self.abort()

    def abort(self) -> None:
        """End without the shard that is under way. Complete shards stay, and another writer can go on."""
        self._is_usable = False
        for shard in self._shards.values():
            shard.drop()
        self._shards = {}
        self._stack.close()

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _check(self, other: Mapping[str, Any] | None) -> None:
        """Raise the error for a part that another process writes, if one does."""
        if other is not None:
            raise ConfigError(
                f"process {other['pid']} on {other['host']} writes part {self._arguments.part}",
                where=self._store.url,
                hint=f"write to another folder, or with part= and parts=; if it has ended, remove {other['path']}",
            )

    def _keep_claim(self) -> None:
        if not self._claim.renew():
            self._is_usable = False
            raise ConfigError(
                f"another process has taken over part {self._arguments.part}",
                where=self._store.url,
                hint="let one process write each part",
            )

    def _shard_folder(self, temporary: str) -> str:
        """Return the folder in which shards are built: on the dataset's own disk, if it is local."""
        if not self._store.is_local:
            return temporary
        remove_temporaries(local_path(self._store.url))
        folder = os.path.join(local_path(self._store.url), WRITING)
        with named_errors(folder):
            os.makedirs(folder, exist_ok=True)
            for path in Path(folder).glob(f"{self._arguments.part:05d}-*{_TEMPORARY}"):
                path.unlink(missing_ok=True)  # of a writer that was killed
        return folder

    @property
    def _split_parts(self) -> tuple[str, ...]:
        return ("",) if self._dealer is None else self._dealer.names

    def _split_part(self, number: int) -> str:
        return "" if self._dealer is None else self._dealer.part(self._first + number)

    def _go_on(self, existing: set[str]) -> int:
        """Take over the complete rounds of an earlier writer; return the number of their samples."""
        records, arguments, written = ShardRecords(self._store, WRITING, existing), self._arguments, 0
        while records.has(arguments.shard(self._rounds, self._split_part(written))):
            names = [arguments.shard(self._rounds, split) for split in self._split_parts]
            for record in load_shards(self._store, [name for name in names if records.has(name)]):
                self._builder.add(record)
            written, self._rounds = sum(self._builder.counts.values()), self._rounds + 1
        return written

    def _begin_shard(self, split: str) -> TarShard:
        # The shard before may be waiting for its upload. No other writer has the name, not even one of this
        # part that should have ended.
        place = f"{self._split_parts.index(split)}-{self._rounds % 2}"
        name = f"{self._arguments.part:05d}-{self._unique}-{place}{_TEMPORARY}"
        return TarShard(self._arguments.shard(self._rounds, split), os.path.join(self._folder, name))

    def _end_round(self) -> None:
        """Complete the shards under way, of all split parts together: so a writer can go on behind them."""
        try:
            self._keep_claim()
            ended = [
                shard for split in self._split_parts if (shard := self._shards.get(split)) and shard.digests
            ]
            for shard in ended:
                shard.close()
                self._builder.add(shard.record)
            self._wait()
        except BaseException:
            self._is_usable = False
            raise
        # The record of the round's first sample is written last: if it is there, the round is complete.
        first = next(iter(self._shards.values()))
        ended.sort(key=lambda shard: shard is first)
        self._shards, self._rounds = {}, self._rounds + 1
        self._upload = self._pool.submit(_put_shards, self._store, ended)

    def _wait(self) -> None:
        if self._upload is not None:
            self._upload.result()


def put_shard(store: Store, local: str, record: ShardRecord, *, move: bool = True) -> None:
    """Write a tar from a local file, which ``move`` moves to a local store, its index and then its record."""
    scan = record.scan
    store.put_file(scan.path, local, move=move and store.is_local)
    store.put(index_path(scan.path), encode_offsets(scan.offsets))
    ShardRecords(store, WRITING).save(record)


def _put_shards(store: Store, shards: Sequence[TarShard]) -> None:
    for shard in shards:
        put_shard(store, shard.local_path, shard.record)


def existing_metadata(store: Store) -> set[str]:
    """Return the paths of the metadata. Raises ConfigError if the folder has a dataset, or tars of others."""
    existing = {entry.path for entry in store.list(META_FOLDER)}
    if existing & {INFO_JSON, INFO_YAML}:
        ShardRecords(store, WRITING).remove()
        raise ConfigError(
            "the folder has a dataset already", where=store.url, hint="write to a new folder, or remove it"
        )
    if not part_files(existing):
        tar = next((entry.path for entry in store.list() if entry.path.endswith(".tar")), None)
        # Another part may have begun since the first listing.
        existing = {entry.path for entry in store.list(META_FOLDER)} if tar else existing
        if tar and not part_files(existing):
            raise ConfigError(
                f"the folder has tars already, such as {tar!r:.80}",
                where=store.url,
                hint="write to a new folder, or index these tars with `energon-stream prepare`",
            )
    return existing
