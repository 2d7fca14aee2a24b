"""A second writer of prepared datasets, independent of the library's: it uses the standard library only.

It writes the files of Megatron-Energon 7.4 (``.info.json``, ``split.yaml``, ``dataset.yaml``,
``index.sqlite``, ``index.uuid``, ``*.tar.idx``), and finds samples with ``tarfile``. Tests compare the
library's readers and writers with it.
"""

from __future__ import annotations

import json
import re
import sqlite3
import struct
import tarfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

__all__ = ["ReferenceSample", "read_tar", "write_reference_dataset"]

_SAMPLE_NAME = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
# Anchored: 7.4.1 was measured to skip `__meta__/x.json`, but to take `__meta__.json` and `d/__m__/x.json`.
_META_NAME = re.compile(r"__[^/]*__(?:/|$)")
_SCHEMA = """
CREATE TABLE samples (
  tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL UNIQUE, sample_index INTEGER NOT NULL,
  byte_offset INTEGER, byte_size INTEGER);
CREATE TABLE sample_parts (
  tar_file_id INTEGER, sample_index INTEGER, part_name TEXT,
  content_byte_offset INTEGER, content_byte_size INTEGER);
CREATE INDEX idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index);
CREATE INDEX idx_sample_parts_seq ON sample_parts(tar_file_id, sample_index, content_byte_offset);
CREATE INDEX idx_sample_parts_full ON sample_parts(
  tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size);
"""
_CAPTIONING = """\
sample_type:
  __module__: megatron.energon
  __class__: CaptioningSample
field_map:
  image: jpg
  caption: txt
"""


@dataclass(slots=True)
class ReferenceSample:
    """A sample of a tar: key, offset of its first header, and (part, payload offset, size) of its parts."""

    key: str
    offset: int
    parts: list[tuple[str, int, int]] = field(default_factory=list)


def read_tar(path: str | os.PathLike[str]) -> tuple[list[ReferenceSample], int]:
    """Return the samples of a tar, and the offset of its end-of-archive records."""
    samples: list[ReferenceSample] = []
    with tarfile.open(path, "r:") as tar:
        for member in tar:
            match = _SAMPLE_NAME.match(member.name)
            if not member.isreg() or match is None or _META_NAME.match(member.name):
                continue
            key, part = match.groups()
            if not samples or samples[-1].key != key:
                samples.append(ReferenceSample(key, member.offset))
            samples[-1].parts.append((part, member.offset_data, member.size))
        return samples, tar.offset


def write_reference_dataset(
    folder: str | os.PathLike[str],
    tars: Sequence[str | os.PathLike[str]],
    *,
    split: Mapping[str, Sequence[str]] | None = None,
    exclude: Sequence[str] = (),
    dataset_yaml: str = _CAPTIONING,
) -> Path:
    """Write ``.nv-meta`` and the ``.tar.idx`` files of tars that lie below a folder.

    Args:
        folder: Root of the dataset.
        tars: Paths of the tars, below ``folder``, in the order of their ids.
        split: Shard names (relative, braces allowed) per split part; default: all in ``train``.
        exclude: Entries of ``exclude`` in ``split.yaml``.
        dataset_yaml: Text of ``dataset.yaml``; default: ``jpg`` and ``txt`` as ``CaptioningSample``.

    Returns:
        The folder.
    """
    root = Path(folder)
    meta = root / ".nv-meta"
    meta.mkdir(exist_ok=True)
    names = [Path(tar).relative_to(root).as_posix() for tar in tars]
    counts: dict[str, int] = {}
    (meta / "index.sqlite").unlink(missing_ok=True)
    database = sqlite3.connect(meta / "index.sqlite")
    database.executescript(_SCHEMA)
    for tar_id, name in enumerate(names):
        samples, end = read_tar(root / name)
        counts[name] = len(samples)
        offsets = [sample.offset for sample in samples] + [end]
        (root / name).with_suffix(".tar.idx").write_bytes(struct.pack(f"<{len(offsets)}Q", *offsets))
        for index, sample in enumerate(samples):
            size = offsets[index + 1] - sample.offset
            database.execute(
                "INSERT INTO samples VALUES (?,?,?,?,?)", (tar_id, sample.key, index, sample.offset, size)
            )
            database.executemany(
                "INSERT INTO sample_parts VALUES (?,?,?,?,?)",
                [(tar_id, index, *part) for part in sample.parts],
            )
    database.commit()
    database.close()
    info = {"energon_version": "7.4.1", "shard_counts": counts}
    (meta / ".info.json").write_text(json.dumps(info, indent=2), encoding="utf-8")
    (meta / "split.yaml").write_text(_split_yaml(split or {"train": names, "val": [], "test": []}, exclude))
    (meta / "dataset.yaml").write_text(dataset_yaml)
    (meta / "index.uuid").write_text(str(uuid.uuid4()))
    return root


def _split_yaml(split: Mapping[str, Sequence[str]], exclude: Sequence[str]) -> str:
    def block(key: str, items: Sequence[str], indent: str) -> str:
        lines = "".join(f"{indent}- {item}\n" for item in items)
        return f"{indent}{key}:\n{lines}" if items else f"{indent}{key}: []\n"

    parts = "".join(block(part, items, "  ") for part, items in split.items())
    return f"split_parts:\n{parts}{block('exclude', exclude, '')}"
