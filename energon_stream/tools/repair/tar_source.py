"""Odd tars as a source of conversions: first examined, then read sample by sample."""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import IO, ClassVar, NamedTuple

import xxhash

from energon_stream.errors import CorruptTarError, ObjectNotFoundError
from energon_stream.index.info_files import META_FOLDER, STAGING
from energon_stream.index.plain import find_tars
from energon_stream.index.shard_names import names_tars
from energon_stream.limits import Limits
from energon_stream.prepare.shard_records import ShardRecords
from energon_stream.storage import ListEntry, Store, StoreSpec
from energon_stream.tar.scan import scan_shard
from energon_stream.tools.repair.odd_tar import payload, read_members, unpacked
from energon_stream.tools.repair.sound_samples import (
    Changes,
    FoundSample,
    RepairRules,
    find_samples,
    has_dotted_keys,
)
from energon_stream.tools.shard_copies import local_copy
from energon_stream.urls import is_local, local_path, parent_url
from energon_stream.write.sources.source import KEY, Row, Section, Source, unchanged

_PEEKED, _PEEKED_SAMPLES = 4, 200  # tars, and samples of each, that decide whether keys have dots
_FRAMES = {"tif": "TIFF", "tiff": "TIFF", "gif": "PNG", "webp": "PNG", "png": "PNG", "apng": "PNG"}


class RecordPlace(NamedTuple):
    """A tar, and the samples of it that are read."""

    entry: ListEntry
    keys: Mapping[str, str | None] = {}  # other keys of samples; None to leave one out
    rest: tuple[ListEntry, ...] = ()  # tars that begin with more parts of the last sample


@dataclass
class Examined:
    """Samples of a tar, before they are compared with those of other tars."""

    changes: Changes = field(default_factory=Changes)
    keys: list[str] = field(default_factory=list)  # of its whole samples, in order
    first: list[str] = field(default_factory=list)  # parts of the first sample
    last: list[str] = field(default_factory=list)  # parts of the last sample


@dataclass(frozen=True)
class TarSource(Source):
    """Tars of a folder, or the tars that a path names."""

    kind: ClassVar[str] = "tars"
    has_columns: ClassVar[bool] = False
    names: tuple[str, ...] = ()  # of the tars; empty for all of the folder
    rules: RepairRules = field(default_factory=RepairRules)

    def sections(self) -> list[Section]:
        store = self.spec.open()
        if self.names:
            entries = [ListEntry(name, store.head(name)) for name in self.names]
        else:
            own = (f"{META_FOLDER}/", f"{STAGING}/")
            found = (entry for entry in store.list() if not entry.path.startswith(own))
            entries = [entry for entry in found if names_tars(entry.path.lower())]
        if not entries:
            raise ObjectNotFoundError("the folder has no tars", where=store.url, hint="check the path")
        entries.sort(key=lambda entry: entry.path)
        return [
            Section(entry.path, None, entry.meta.size, entry.meta.etag or "", place=RecordPlace(entry))
            for entry in entries
        ]

    def rows(self, section: Section, first: int, columns: Collection[str] | None) -> Iterator[Row]:
        place: RecordPlace = section.place
        with unchanged(self.spec, section) as store, self.read(store, place.entry) as (file, samples, _):
            kept = [
                (key, sample)
                for sample in samples
                if (key := place.keys.get(sample.key, sample.key)) is not None
            ]
            for key, sample in kept[first:]:
                row: dict[str, object] = {KEY: key, **self._contents(file, sample)}
                for entry in place.rest if sample is samples[-1] else ():
                    with self.read(store, entry) as (more, others, _):
                        row |= self._contents(more, others[0])
                yield row

    def decided(self, sections: list[Section]) -> TarSource:
        """Return the source with a rule for keys with dots, by the names in some tars."""
        if self.rules.dotted_keys != "auto":
            return self
        names: list[str] = []
        store = self.spec.open()
        for section in sections[:_PEEKED]:
            entry = section.place.entry
            try:
                scan = scan_shard(store, entry, ahead=0, most=_PEEKED_SAMPLES)
                names += [f"{scan.keys[number]}.{part}" for number, part, _, _ in scan.parts]
            except CorruptTarError:
                with local_copy(store, entry) as copy, unpacked(copy.path, self.tmp_path) as (file, _):
                    names += [member.name for member in read_members(file).members]
        rules = replace(self.rules, dotted_keys="last" if has_dotted_keys(names) else "first")
        return replace(self, rules=rules)

    def examine(self, section: Section) -> Examined:
        """Read all headers of a tar. Raises ObjectChangedError if it changes."""
        with (
            unchanged(self.spec, section) as store,
            self.read(store, section.place.entry) as (file, samples, changes),
        ):
            if self.rules.frames:
                for sample in samples:
                    for name, member in sample.parts.items():
                        if len(_frames(name, payload(file, member))) > 1:
                            changes.add("frames", f"{sample.key}.{name}")
            ends = [list(sample.parts) for sample in (samples[:1] + samples[-1:])] or [[], []]
            return Examined(changes, [sample.key for sample in samples], *ends)

    @contextmanager
    def read(self, store: Store, entry: ListEntry) -> Iterator[tuple[IO[bytes], list[FoundSample], Changes]]:
        """Yield a tar as a file of plain bytes, its whole samples, and what they needed."""
        with local_copy(store, entry) as copy, unpacked(copy.path, self.tmp_path) as (file, oddities):
            changes, tar = Changes(), read_members(file)
            tar.oddities[:0] = oddities
            digest = lambda member: xxhash.xxh3_64_intdigest(payload(file, member))  # noqa: E731
            yield file, find_samples(tar, self.rules, changes, digest), changes

    def _contents(self, file: IO[bytes], sample: FoundSample) -> dict[str, bytes | memoryview]:
        parts: dict[str, bytes | memoryview] = {}
        for name, member in sample.parts.items():
            data = payload(file, member)
            parts |= _frames(name, data) if self.rules.frames else {name: data}
        return parts


def open_tars(
    url: str, storage_options: Mapping[str, object] | None, rules: RepairRules, tmp_path: str | None
) -> TarSource:
    """Return the source that a folder, a tar, or a brace pattern of tars is."""
    spec = StoreSpec(url, storage_options)
    if not names_tars(url.lower()):
        return TarSource(spec, tmp_path=tmp_path, rules=rules)
    if "{" in url:
        root, entries = find_tars(spec)
        return TarSource(root, tmp_path=tmp_path, names=tuple(e.path for e in entries), rules=rules)
    url = local_path(url) if is_local(url) else url
    root = StoreSpec(parent_url(url), storage_options)
    return TarSource(root, tmp_path=tmp_path, names=(url.rpartition("/")[2],), rules=rules)


def examine_section(source: TarSource, target: StoreSpec | None, task: tuple[int, Section, bool]) -> Examined:
    """Examine a tar, or take what an earlier run has noted. The note is kept with the target."""
    number, section, is_noted = task
    note = f"examined-{number:06d}"
    staging = None
    if target is not None:
        staging = ShardRecords(target.open(), STAGING, [f"{STAGING}/{note}"] if is_noted else [])
        if known := staging.kept(note):
            found = json.loads(known)
            return Examined(**found | {"changes": Changes(**found["changes"])})
    examined = source.examine(section)
    if staging is not None:
        staging.keep(note, json.dumps(asdict(examined)).encode())
    return examined


def noted(paths: Collection[str]) -> set[int]:
    """Return the numbers of the tars that were examined, given the paths in a target."""
    begin = f"{STAGING}/examined-"
    return {int(path.removeprefix(begin)) for path in paths if path.startswith(begin)}


def _frames(name: str, data: bytes | memoryview) -> dict[str, bytes | memoryview]:
    """Return a part for each frame of a picture; the part itself if it is another file, or has one frame."""
    stem, dot, kind = name.rpartition(".")
    if kind in _FRAMES:
        from PIL import Image, ImageSequence

        new, parts = "png" if _FRAMES[kind] == "PNG" else kind, dict[str, bytes | memoryview]()
        try:
            with Image.open(io.BytesIO(data)) as image:
                is_small = image.width * image.height <= Limits.from_environment().image_pixels
                if is_small and getattr(image, "n_frames", 1) > 1:
                    for number, frame in enumerate(ImageSequence.Iterator(image)):
                        buffer = io.BytesIO()
                        frame.save(buffer, _FRAMES[kind])
                        parts[f"{number}.{stem}{dot}{new}"] = buffer.getvalue()
        except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError):
            parts = {}  # it is kept as it is, for decoders to judge
        if parts:
            return parts
    return {name: data}
