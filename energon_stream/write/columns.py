"""Maps the columns of a source to parts, and makes keys."""

from __future__ import annotations

import string
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from energon_stream.errors import (
    ColumnError,
    ConfigError,
    MissingFileError,
    ObjectNotFoundError,
    StorageError,
)
from energon_stream.tar.format import split_name
from energon_stream.write.part_values import Read, parts_of_value, takes
from energon_stream.write.sources.source import KEY, Row
from energon_stream.write.tar_shard import is_part_name

_HINTS = {
    str: "if it is the path of a file, give files=[COLUMN]; else map it to txt or json",
    dict: "map it to json, or one of its members, such as COLUMN.bytes=jpg",
    list: "if it has paths of files, give files=[COLUMN]; else map it to json, or numbers to npy",
    bytes: "map it to a part of its own, such as COLUMN=jpg or COLUMN=bin",
}


@dataclass(frozen=True, slots=True)
class PartFrom:
    """A part, and the columns that it is made of.

    It is the value of a column, a JSON object of columns, a text with columns in braces, or the file or files
    that a column has the path or a list of paths of.
    """

    part: str  # ``auto`` for the extension of each value
    columns: tuple[str, ...]  # or dotted paths into them
    how: Literal["value", "object", "template", "file"] = "value"
    template: str = ""

    def __str__(self) -> str:
        of = {"value": self.columns[0] if self.columns else "", "template": repr(self.template)}
        text = of.get(self.how) or f"{'the file ' if self.how == 'file' else ''}{', '.join(self.columns)}"
        return f"{text} → {self.part}"


@dataclass(frozen=True, slots=True)
class ColumnMap:
    """Parts by column."""

    parts: tuple[PartFrom, ...] | None  # None if columns are parts already, by name
    key: str = ""  # template or column of the key; empty for the row's number
    names: tuple[str, ...] = ()  # columns that a row may lack: it has no value there

    @property
    def needed(self) -> frozenset[str] | None:
        """Columns that are needed, as they are named and by the first name of their path; None for all."""
        if self.parts is None:
            return None
        names = {name for part in self.parts for name in part.columns} | set(_names_in(self.key))
        return frozenset(names | {name.partition(".")[0] for name in names} | {KEY})

    def sample(self, row: Row, where: str, number: str, read: Read) -> dict[str, Any]:
        """Return the sample of a row. Its key is ``number`` if it has no other."""
        row = dict.fromkeys(self.names) | dict(row) if self.names else row
        sample: dict[str, Any] = {KEY: self._key(row, where, number)}
        if self.parts is None:
            return sample | {name: value for name, value in row.items() if name != KEY}
        for part in self.parts:
            for name, data in self._encode(part, row, where, read):
                if name in sample:
                    raise ColumnError(
                        f"{where}: two columns are the part {name!r:.80}", hint="map one otherwise"
                    )
                sample[name] = data
        if len(sample) == 1:
            raise ColumnError(f"{where}: no column has a value", hint="leave the row out of the source")
        return sample

    def _key(self, row: Row, where: str, number: str) -> str:
        if not self.key:
            return str(row.get(KEY, number))
        value = _text(self.key, row, where) if "{" in self.key else _value(row, self.key, where)
        if not isinstance(value, (str, int)) or value == "":
            raise ColumnError(
                f"{where}: the key {self.key!r:.80} is {value!r:.80}",
                hint="give key= a column of texts or numbers",
            )
        if split_name(f"{value}.x") != (str(value), "x"):
            raise ColumnError(
                f"{where}: the key {value!r:.80} has a dot in its last component",
                hint="leave an extension out: key='{COLUMN:stem}'",
            )
        return str(value)

    def _encode(self, part: PartFrom, row: Row, where: str, read: Read) -> list[tuple[str, bytes]]:
        name = part.part
        value: Any = None
        try:
            if part.how == "template":
                value = _text(part.template, row, where)
            elif part.how == "object":
                value = {column: _value(row, column, where) for column in part.columns}
            else:
                value = _value(row, part.columns[0], where)
            if part.how == "file":
                paths = value if isinstance(value, list) else [value] if value else []
                if not all(isinstance(path, str) for path in paths):
                    raise TypeError("it is not a path, or a list of paths")
                files = [{"bytes": read(path), "path": path} for path in paths if path]
                value = (files if isinstance(value, list) else files[0]) if files else None
            return list(parts_of_value(name, value, read))
        except ObjectNotFoundError as error:
            raise MissingFileError(
                f"{where}: the file of the column {part.columns[0]!r:.80} does not exist",
                where=error.where,
                hint="paths are relative to the table, or to files_root=; leave rows of lost files out of the table",
            ) from error
        except StorageError as error:
            error.add_note(f"{where}, column {part.columns[0]!r:.80}")
            raise
        except (TypeError, ValueError) as error:
            if isinstance(error, ColumnError):
                raise
            columns = ", ".join(f"{column!r:.80}" for column in part.columns)
            hint = next((hint for kind, hint in _HINTS.items() if isinstance(value, kind)), takes(name))
            known = error if isinstance(error, ConfigError) else ConfigError(str(error), hint=hint)
            raise ColumnError(
                f"{where}: the column {columns} does not fit the part {name!r:.80}: {known.what}",
                where=known.where,
                hint=known.hint,
            ) from error


def parse_columns(
    columns: Mapping[str, str], *, files: Collection[str] = (), key: str | None = None
) -> ColumnMap:
    """Return the map for what the user wrote.

    Args:
        columns: Part by column. A column may be a dotted path into a struct, several with commas, which
            become a JSON object, or a template with columns in braces.
        files: Columns that are paths of files, or lists of these; those without a part get the extension of
            each file.
        key: Column or template of the key; None for the row's number.

    Raises:
        ConfigError: A part cannot be one, or two columns have the same.

    Example:
        >>> found = parse_columns({"image": "jpg", "{title}: {text}": "txt", "width,height": "json"})
        >>> print(*found.parts, sep="; ")
        image → jpg; '{title}: {text}' → txt; width, height → json
    """
    given = {**columns, **{name: "auto" for name in files if name not in columns}}
    parts = [
        _parse(column, part.removeprefix("."), column in files) for column, part in given.items() if part
    ]
    names = [part.part for part in parts]
    twice = next((name for name in names if names.count(name) > 1 and name != "auto"), None)
    if twice is not None:
        raise ConfigError(
            f"two columns are mapped to the part {twice!r:.80}",
            hint=f"name one of them otherwise, such as first.{twice}",
        )
    if not parts:
        raise ConfigError("no column is mapped to a part", hint="name the part of a column in columns=")
    return ColumnMap(tuple(parts), key or "")


def _parse(column: str, part: str, is_file: bool) -> PartFrom:
    if not is_part_name(part):
        raise ConfigError(f"{part!r:.80} cannot be a part", hint="use an extension, such as jpg or left.png")
    if is_file:
        return PartFrom(part, (column,), "file")
    if "{" in column:
        return PartFrom(part, tuple(_names_in(column)), "template", column)
    names = tuple(name.strip() for name in column.split(","))
    if len(names) > 1:
        if part.rpartition(".")[2] not in ("json", "jsn"):
            raise ConfigError(
                f"several columns cannot be {part!r:.80}", hint="map them to json, or one by one"
            )
        return PartFrom(part, names, "object")
    return PartFrom(part, names)


class _Template(string.Formatter):
    """Texts with columns in braces. A column is looked up as data: no attribute of an object is read."""

    def __init__(self, row: Row, where: str) -> None:
        self._row, self._where = row, where

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, str]:
        return _value(self._row, field_name, self._where), field_name

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec == "stem":  # without the extension, as in a sample's key
            folder, slash, name = str(value).rpartition("/")
            return folder + slash + name.partition(".")[0]
        return str(super().format_field(value, format_spec))


def _text(template: str, row: Row, where: str) -> str:
    try:
        return _Template(row, where).vformat(template, (), {})
    except (ValueError, TypeError) as error:
        if isinstance(error, ColumnError):
            raise
        raise ColumnError(
            f"{where}: the template {template!r:.80} cannot be filled: {error}",
            hint="use braces around columns, such as '{id:08d}'",
        ) from error


def _names_in(template: str) -> list[str]:
    if "{" not in template:
        return [template] if template else []
    try:
        return [name for _, name, _, _ in string.Formatter().parse(template) if name]
    except ValueError as error:
        raise ConfigError(f"{template!r:.80} is not a template: {error}", hint="write '{column}'") from error


def _value(row: Row, path: str, where: str) -> Any:
    """Return the value at a column, or at a dotted path into one; None if a struct on the way is None."""
    if path in row:
        return row[path]
    value: Any = row
    for name in path.split("."):
        if value is None:
            return None
        if not isinstance(value, Mapping) or name not in value:
            raise ColumnError(
                f"{where}: there is no column {path!r:.80}",
                hint=f"the columns are {', '.join(map(str, row))}"[:300],
            )
        value = value[name]
    return value
