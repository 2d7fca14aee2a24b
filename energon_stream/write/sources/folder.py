"""Plain folders: files with the same name and other extensions are a sample; folders may be classes."""

from __future__ import annotations

import logging
import posixpath
import random
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise
from typing import ClassVar, NamedTuple

import xxhash

from energon_stream.errors import SourceError
from energon_stream.media.ranged_file import open_once
from energon_stream.printable import counted
from energon_stream.storage import ListEntry, Store
from energon_stream.storage.in_order import ordered_map
from energon_stream.tar.format import is_windows_file, split_name
from energon_stream.write.part_values import MEDIA, extension
from energon_stream.write.sources import source
from energon_stream.write.sources.source import KEY, SPLITS, Row, Section, Source
from energon_stream.write.tar_shard import check_utf8

_log = logging.getLogger(__name__)
_BYTES = 64 << 20
_READERS = 16
CLASS_NAME = "class.txt"
_ABOUT = re.compile(
    r"(read.?me|licen[cs]e|notice)(\.(md|txt|rst|html))?", re.IGNORECASE
)  # files about the others
_NUMBERED = re.compile(r"\d+\..").match


class _SampleFile(NamedTuple):
    part: str
    path: str
    size: int
    etag: str | None


class _FileGroup(NamedTuple):
    key: str
    files: tuple[_SampleFile, ...]
    number: int | None  # of the class
    class_name: str = ""

    @property
    def has_media(self) -> bool:
        return any(extension(file.path) in MEDIA for file in self.files)


@dataclass(frozen=True)
class FolderSource(Source):
    """All files below a folder, sorted by key.

    ``classes`` says whether the folders are the samples' classes. None: if each sample is one file, and all
    are in two or more folders beside each other. Files that belong to no picture or sound are refused then.
    """

    kind: ClassVar[str] = "folder"
    takes: ClassVar[tuple[str, ...]] = ()
    has_columns: ClassVar[bool] = False
    classes: bool | None = None

    def sections(self) -> list[Section]:
        samples = list(_samples(self.spec.open().list()))
        if not samples:
            raise SourceError(
                "the folder has no files with an extension", where=self.spec.url, hint="check the path"
            )
        is_open = self.classes is None
        if is_open:
            self._refuse_mixtures(samples)
        if self.classes or (is_open and _are_classes(samples)):
            samples = _with_classes(samples)
        if self.shuffle:
            random.Random(len(samples)).shuffle(samples)
        return list(_runs(samples))

    def _refuse_mixtures(self, samples: list[_FileGroup]) -> None:
        tops = {sample.key.partition("/")[0] for sample in samples if "/" in sample.key}
        beside = {posixpath.basename(folder) for folder in _siblings(samples)}
        for names in (tops, beside):
            if len(names) > 1 and SPLITS.issuperset(names):
                raise SourceError(
                    f"the folders {', '.join(sorted(names))} would be mixed, which look like split parts",
                    where=self.spec.url,
                    hint="convert each to a dataset of its own; with classes=False, all are one",
                )
        beside_media = {file.part for sample in samples if sample.has_media for file in sample.files}
        alone = [s for s in samples if beside_media and beside_media.isdisjoint(f.part for f in s.files)]
        if alone:
            what = f"such as that of {alone[0].files[0].path!r:.200}"
            if extension(alone[0].files[0].path) in {"heic", "heif"}:
                raise SourceError(
                    f"{counted(len(alone), 'sample')} would have pictures that cannot be decoded, {what}",
                    where=self.spec.url,
                    hint="save them as JPEG, or leave them out; with classes=False, their bytes stay as they are",
                )
            raise SourceError(
                f"{counted(len(alone), 'sample')} would have no picture or recording, {what}",
                where=self.spec.url,
                hint="files of a sample have one name in one folder: convert annotations of many files as a CSV or "
                "JSONL table with a column of their paths; with classes=False, such files are samples of their own",
            )

    def parts(self, sections: Iterable[Section]) -> set[str]:
        return {file.part for section in sections for sample in section.place for file in sample.files}

    def rows(self, section: Section, first: int, columns: Collection[str] | None) -> Iterator[Row]:
        store = open_once(self.spec)
        samples = section.place[first:]
        yield from ordered_map(partial(_read, store, columns), samples, 1 if store.is_local else _READERS)


def _samples(entries: Iterator[ListEntry]) -> Iterator[_FileGroup]:
    """Yield the samples of a listing, sorted by key."""
    files, without = [], []
    for entry in entries:
        check_utf8("name of the file", entry.path)
        path = entry.path.replace("\\", "/")  # as some programs unpack archives that Windows made
        found = split_name(path)
        if is_windows_file(path) or any(part.startswith(".") for part in path.split("/")):
            continue
        if found is None or _ABOUT.fullmatch(posixpath.basename(path)):
            without.append(entry.path)
            continue
        files.append((found[0], _SampleFile(found[1].lower(), entry.path, entry.meta.size, entry.meta.etag)))
    # Files of a sample may be numbered, but hardly all of them: cat.0.jpg and cat.1.jpg are two samples.
    named = {key for key, file in files if _NUMBERED(file.part) is None}
    files = [item if item[0] in named else _of_its_own(*item) for item in files]
    if files and without:
        said = "left out %s, such as %r: samples have files with extensions, no README, and no folder __like_this__"
        _log.warning(said, counted(len(without), "file"), without[0])
    for key, group in groupby(sorted(files), key=lambda item: item[0]):
        parts = tuple(file for _, file in group)
        twice = next((b for a, b in pairwise(parts) if a.part == b.part), None)
        if twice is not None:
            raise SourceError(
                f"the sample {key!r:.80} has two files for the part {twice.part!r}",
                where=twice.path,
                hint="rename one of them",
            )
        yield _FileGroup(key, parts, None)


def _of_its_own(key: str, file: _SampleFile) -> tuple[str, _SampleFile]:
    """Move the numbers at the beginning of a part to the key, which has no dots."""
    numbers, part = re.fullmatch(r"((?:\d+\.)+)(.+)", file.part).groups()  # type: ignore[union-attr]
    return f"{key}_{numbers[:-1].replace('.', '_')}", file._replace(part=part)


def _siblings(samples: list[_FileGroup]) -> set[str]:
    """Return the folders of samples if they are beside each other; none if some are not."""
    folders = {posixpath.dirname(sample.key) for sample in samples}
    return folders if "" not in folders and len({posixpath.dirname(each) for each in folders}) == 1 else set()


def _are_classes(samples: list[_FileGroup]) -> bool:
    if any(len(sample.files) > 1 for sample in samples):
        return False
    if len(folders := {posixpath.dirname(sample.key) for sample in samples}) > 1 and not _siblings(samples):
        _log.warning(
            "%d folders are no classes, as they lie at several places; `energon-stream convert --classes` makes "
            "them classes",
            len(folders),
        )
    return len(_siblings(samples)) > 1


def _with_classes(samples: list[_FileGroup]) -> list[_FileGroup]:
    folders = [posixpath.dirname(sample.key) for sample in samples]
    numbers = {name: number for number, name in enumerate(sorted({*folders}))}
    names = {folder: posixpath.basename(folder) for folder in numbers}
    if len({*names.values()}) < len(names):  # folders of one name at several places
        names = {folder: folder for folder in numbers}
    return [
        sample._replace(number=numbers[folder], class_name=names[folder])
        for sample, folder in zip(samples, folders, strict=True)
    ]


def _runs(samples: list[_FileGroup]) -> Iterator[Section]:
    begin = size = 0
    for number, sample in enumerate(samples, 1):
        size += sum(file.size for file in sample.files)
        if number - begin == source.SECTION_ROWS or size >= _BYTES or number == len(samples):
            run = tuple(samples[begin:number])
            version = xxhash.xxh3_64_hexdigest(repr(run).encode())
            name = posixpath.dirname(run[0].files[0].path) or "the folder"
            yield Section(name, len(run), size, version, begin, run)
            begin, size = number, 0


def _read(store: Store, columns: Collection[str] | None, sample: _FileGroup) -> Row:
    row: dict[str, object] = {KEY: sample.key}
    for file in sample.files:
        if columns is None or file.part in columns:
            row[file.part] = bytes(store.get(file.path, etag=file.etag).data)
    if sample.number is not None:
        row |= {"cls": sample.number, CLASS_NAME: sample.class_name}
    return row
