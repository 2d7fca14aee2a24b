"""Plans a conversion: the sections of each part of the new dataset, and a preview of samples."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, islice
from typing import Any

import xxhash

from energon_stream.errors import ConfigError, EmptyDatasetError, SourceError
from energon_stream.storage import StoreSpec
from energon_stream.write.columns import ColumnMap, parse_columns
from energon_stream.write.guess import guess_columns
from energon_stream.write.part_values import AUTO
from energon_stream.write.sources.detect import open_source
from energon_stream.write.sources.source import KEY, OF_SOME, Row, Section, Source, source_access
from energon_stream.write.tar_shard import MAX_SIZE, SampleEncoder

PREVIEW_ROWS = 8
_MOST_NAMES = 1000  # of columns that rows may lack
_SEED = 0  # of the order of sections
_FILL = 0.9  # share of a tar that a part should fill, by estimate, so that few have a tiny second tar


@dataclass(frozen=True, slots=True)
class ConvertPlan:
    """The work of a conversion. It depends on source and options alone, not on the number of processes."""

    source: Source
    columns: ColumnMap
    sections: tuple[Section, ...]
    starts: tuple[tuple[str, int], ...]  # arguments of :func:`row_key` for each section
    parts: tuple[int, ...]  # first section of each part of the new dataset, and the number of all sections
    preview: tuple[dict[str, Any], ...]  # the first samples
    left_out: tuple[str, ...]  # columns that the first rows have, and that become no part

    @property
    def rows(self) -> int | None:
        """Number of rows; None if some section does not know its own."""
        counts = [section.rows for section in self.sections]
        return None if None in counts else sum(count or 0 for count in counts)

    @property
    def part_names(self) -> list[str]:
        """Names of the parts of samples: those of the preview, and others that may come."""
        shown = {name for sample in self.preview for name in sample if not name.startswith("__")}
        mapped = {part.part for part in self.columns.parts or () if part.part != AUTO}
        return sorted(shown | mapped | self.source.parts(self.sections))

    @property
    def num_parts(self) -> int:
        """Number of parts of the new dataset."""
        return len(self.parts) - 1

    def signature(self) -> str:
        """Return what changes with the content of the source, and with what is made of it."""
        listed = [(each.name, each.rows, each.version, each.first_row) for each in self.sections]
        columns = None if self.columns.parts is None else [asdict(part) for part in self.columns.parts]
        document = [self.source.kind, listed, columns, self.columns.key, self.parts]
        return xxhash.xxh3_128_hexdigest(json.dumps(document).encode())


@source_access()
def plan_conversion(
    url_or_path: str | os.PathLike[str],
    *,
    kind: str | None = None,
    columns: Mapping[str, str] | None = None,
    files: Collection[str] = (),
    key: str | None = None,
    max_size: int = MAX_SIZE,
    max_count: int | None = None,
    shuffle: bool = True,
    source_storage_options: Mapping[str, Any] | None = None,
    files_root: str | os.PathLike[str] | None = None,
    **options: Any,
) -> ConvertPlan:
    """Return what :func:`convert_dataset` would do, with a preview of the first samples. Nothing is written.

    Takes the arguments of :func:`convert_dataset` that say what is read, and raises the same errors.
    """
    root = None if files_root is None else StoreSpec(os.fspath(files_root), source_storage_options)
    spec = StoreSpec(os.fspath(url_or_path), source_storage_options)
    source = open_source(spec, kind, files=root, shuffle=shuffle, **options)
    given = {"files": files, "files_root": files_root} | options
    if unused := [name for name in OF_SOME if given.get(name) and name not in source.takes]:
        what = f"{unused[0]}= is given, but the source is of the format {source.kind}"
        raise ConfigError(what, where=source.spec.url, hint="leave it out")
    listed = source.sections()
    order = [*range(len(listed))]
    if shuffle:
        random.Random(_SEED).shuffle(order)
    listed_starts = key_starts(listed)  # keys are numbers in the source, whatever the order
    sections: tuple[Section, ...] = tuple(listed[number] for number in order)
    starts: tuple[tuple[str, int], ...] = tuple(listed_starts[number] for number in order)
    places = (
        (number, place, row)
        for number, section in enumerate(sections)
        for place, row in enumerate(source.rows(section, 0, None))
    )
    first = [*islice(places, PREVIEW_ROWS)]
    names = dict.fromkeys(name for _, _, row in first for name in row)
    others: list[Row] = []  # that bring more columns; all rows are read where any may
    if any(map(source.may_lack_columns, sections)):
        for _, _, row in places:
            if len(names) < _MOST_NAMES and not names.keys() >= row.keys():
                others.append(row)
                names |= dict.fromkeys(row)
    if not first:
        raise EmptyDatasetError("the source has no rows", where=source.spec.url, hint="check the path")
    if columns:
        mapped = parse_columns(columns, files=files, key=key)
    elif not source.has_columns:
        mapped = ColumnMap(None, key or "")
    else:
        rows = [*(row for _, _, row in first), *others]
        hints, has_paths = source.hints(), source.has_paths
        mapped = guess_columns(rows, hints=hints, has_paths=has_paths, files=files, key=key)
        names_files = any(part.how == "file" for part in mapped.parts or ())
        if not names_files and (found := source.unnamed_file()):
            raise SourceError(
                f"the table names no file, and the folder has some, such as {found!r:.200}",
                where=source.spec.url,
                hint="add a column with their paths to the table; to convert it alone, name the table's file",
            )
    needed = mapped.needed
    if any(map(source.may_lack_columns, sections)):
        mapped = replace(mapped, names=tuple(name for name in names if name != KEY))
    left_out = tuple(name for name in names if needed is not None and name not in needed)
    preview = tuple(
        mapped.sample(row, sections[n].row_name(place), row_key(*starts[n], place), source.read_file)
        for n, place, row in first
    )
    encoder = SampleEncoder()
    mean = sum(encoder.encode(sample).size for sample in preview) / len(preview)
    parts = _group(sections, mean, all_columns=not left_out, max_size=max_size, max_count=max_count)
    return ConvertPlan(source, mapped, sections, starts, parts, preview, left_out)


def key_starts(sections: Sequence[Section]) -> list[tuple[str, int]]:
    """Return two arguments of :func:`row_key` for each section.

    Rows are numbered in the source, or in each section if some section does not know how many it has.
    """
    if any(section.rows is None for section in sections):
        return [(f"{number:06d}-", 0) for number in range(len(sections))]
    firsts = accumulate((section.rows or 0 for section in sections), initial=0)
    return [("", first) for first, _ in zip(firsts, sections, strict=False)]


def row_key(begin: str, first_row: int, row: int) -> str:
    """Return the key of a row of a section that has no other: its number."""
    return f"{begin}{first_row + row:09d}"


def _group(
    sections: Sequence[Section], mean: float, *, all_columns: bool, max_size: int, max_count: int | None
) -> tuple[int, ...]:
    """Return the first section of each part, and the number of sections: as many as fill a tar.

    ``mean`` is the size of a sample, by which sections are estimated that know their rows.
    """
    firsts, size, count = [0], 0.0, 0
    for number, section in enumerate(sections):
        estimate = max((section.rows or 0) * mean, section.size if all_columns else 0)
        rows = section.rows or 0
        is_full = size + estimate > _FILL * max_size or (max_count is not None and count + rows > max_count)
        if number > firsts[-1] and (is_full or section.rows is None):
            firsts.append(number)
            size, count = 0.0, 0
        size, count = size + estimate, count + rows
    return (*firsts, len(sections))
