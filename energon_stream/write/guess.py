"""Guesses the parts of columns by type, name and first values, and the sample type by the parts."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from energon_stream.write.columns import ColumnMap, PartFrom
from energon_stream.write.finish import CRUDE
from energon_stream.write.part_values import AUTO, IMAGES, VIDEOS, extension, is_file_path, value_extension
from energon_stream.write.sources.source import KEY, Row
from energon_stream.write.typed_samples import FIELD_MAPS

_TEXTS = ("caption", "text", "txt")
_USUAL: Mapping[str, Collection[str]] = {
    **{field: (part,) for fields in FIELD_MAPS.values() for field, part in fields.items()},
    "image": IMAGES,
    "video": VIDEOS,
    "label_name": ("class.txt",),
}
_LABELS = ("label", "cls", "class", "class_id", "target")


def guess_columns(
    rows: Sequence[Row],
    *,
    hints: Mapping[str, str],
    has_paths: bool,
    files: Collection[str] = (),
    key: str | None = None,
) -> ColumnMap:
    """Return a map for the first rows of a source.

    Files, images and arrays become parts of their own, one text that is no identifier is ``txt``, one label
    is ``cls``, and all other columns are an object in ``json``. ``hints`` are parts by column that the source
    knows. ``has_paths`` says whether texts may be paths of files; ``files`` and ``key`` are as for
    :func:`~energon_stream.write.columns.parse_columns`.

    Example:
        >>> row = {"image": b"\\xff\\xd8\\xff", "caption": "a dog", "width": 3, "height": 4}
        >>> print(*guess_columns([row], hints={}, has_paths=False).parts, sep="; ")
        image → jpg; caption → txt; width, height → json
    """
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in (KEY, key)]
    parts: list[PartFrom] = []
    rest: list[str] = []
    for name in names:
        values = [row[name] for row in rows if row.get(name) is not None]
        kinds = {hints[name]} if name in hints else {value_extension(value) for value in values}
        spaces = name.lower() not in _TEXTS
        paths = [path for value in values for path in (value if isinstance(value, list) else [value])]
        are_paths = bool(paths) and all(isinstance(p, str) and is_file_path(p, spaces) for p in paths)
        is_path = name in files or (has_paths and are_paths)
        if is_path:
            kinds = {extension(str(path)) or AUTO for path in paths}
        if kinds and None not in kinds:
            part = str(*kinds) if len(kinds) == 1 else AUTO
            parts.append(PartFrom(part, (name,), "file" if is_path else "value"))
        else:
            rest.append(name)
    labels = (name for name in rest if name in _LABELS)
    label = next((n for n in labels if all(re.fullmatch(r"-?\d+", str(row.get(n))) for row in rows)), None)
    for column, part in ((_text(rest, rows, label), "txt"), (label, "cls")):
        if column is not None:
            parts.append(PartFrom(part, (column,)))
            rest.remove(column)
    if rest:
        parts.append(PartFrom("json", tuple(rest), "object"))
    return ColumnMap(tuple(_unique(parts)), key or "")


def _text(rest: list[str], rows: Sequence[Row], label: str | None) -> str | None:
    others = [name for name in rest if name != label]
    texts = [name for name in others if all(isinstance(row.get(name), (str, type(None))) for row in rows)]
    texts = [name for name in texts if not re.fullmatch(r"(?i)(.*_)?(id|uid|uuid|key|hash)", name)]
    named = [name for name in texts if name.lower() in _TEXTS]
    return named[0] if named else texts[0] if len(texts) == 1 else None


def _unique(parts: Sequence[PartFrom]) -> Iterator[PartFrom]:
    """Put the column's name before a part that several columns would be."""
    kinds = [part.part for part in parts]
    for part in parts:
        if kinds.count(part.part) > 1 and part.how != "object":
            part = replace(part, part=f"{re.sub(r'[^a-zA-Z0-9_-]', '_', part.columns[0])}.{part.part}")
        yield part


def guess_field_map(fields: Mapping[str, bool], parts: Collection[str]) -> tuple[dict[str, str], list[str]]:
    """Return a part for each field of a sample type, and the required fields without a part.

    ``fields`` says which are required. The part has the field's name, also before an extension, or else the
    name that the library writes for such a field.

    Example:
        >>> guess_field_map({"image": True, "label": False, "context": True}, ["jpg", "png", "cls", "json"])
        ({'image': 'jpg,png', 'label': 'cls'}, ['context'])
    """
    found = {}
    for name in fields:
        own = sorted(part for part in parts if name in (part.lower(), part.lower().rpartition(".")[0]))
        usual = sorted(part for part in parts if part.lower() in _USUAL.get(name, ()))
        if len(own) == 1 or (usual and not own):
            found[name] = ",".join(own or usual)
    return found, [name for name, is_needed in fields.items() if is_needed and name not in found]


def guess_dataset_yaml(shapes: Collection[tuple[str, ...]]) -> Mapping[str, Any]:
    """Return the content of ``dataset.yaml`` for samples that have these parts: a sample type if one fits
    all of them, else crude samples.

    Example:
        >>> guess_dataset_yaml([("jpg", "txt"), ("png", "txt")])["field_map"]
        {'image': 'jpg,png', 'caption': 'txt'}
    """
    images = sorted({part for shape in shapes for part in shape if part in IMAGES})
    rest = {tuple(part for part in shape if part not in IMAGES) for shape in shapes}
    one_image = all(sum(part in IMAGES for part in shape) == 1 for shape in shapes)
    known = {
        ("txt",): "CaptioningSample",
        ("cls",): "ImageClassificationSample",
        ("class.txt", "cls"): "ImageClassificationSample",
        (): "ImageSample",
    }
    if len(rest) == 1 and one_image and (found := known.get(next(iter(rest)))):
        name, fields = found, {**FIELD_MAPS[found], "image": ",".join(images)}
        fields |= {"label_name": "class.txt"} if rest == {("class.txt", "cls")} else {}
    elif rest == {("txt",)} and not images:
        name, fields = "TextSample", {**FIELD_MAPS["TextSample"]}
    else:
        return CRUDE
    return {"sample_type": {"__module__": "megatron.energon", "__class__": name}, "field_map": fields}
