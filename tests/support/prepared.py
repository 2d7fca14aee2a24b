"""Datasets of equal tars are prepared once: tests build the same small ones again and again."""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path
from typing import Any

from energon_stream.testing import datasets

_MOST_BYTES = 4 << 20  # of a dataset's files; hashing larger ones saves less


def prepare_once() -> None:
    """Let the builders of ``energon_stream.testing.datasets`` write what preparing equal tars has written, if
    this process has done that before. The files are the same, because preparing has no other input.
    """
    prepare = datasets.prepare_as
    kept: dict[bytes, dict[str, bytes]] = {}

    def files(root: Path) -> dict[str, Path]:
        return {path.relative_to(root).as_posix(): path for path in sorted(root.rglob("*")) if path.is_file()}

    @functools.wraps(prepare)
    def prepare_as(
        folder: str | os.PathLike[str], split_ratio: tuple[int, int, int], yaml: dict[str, Any]
    ) -> Path:
        root = Path(folder)
        before = files(root)
        is_new = not any(name.startswith(".nv-") or name.endswith(".idx") for name in before)
        if not is_new or sum(path.stat().st_size for path in before.values()) > _MOST_BYTES:
            return prepare(folder, split_ratio, yaml)
        digest = hashlib.blake2b(repr((split_ratio, yaml, [*before])).encode())
        for path in before.values():
            digest.update(hashlib.blake2b(path.read_bytes()).digest())
        if (written := kept.get(digest.digest())) is None:
            prepare(folder, split_ratio, yaml)
            new = {name: path for name, path in files(root).items() if name not in before}
            kept[digest.digest()] = {name: path.read_bytes() for name, path in new.items()}
            return root
        for name, data in written.items():
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).write_bytes(data)
        return root

    datasets.prepare_as = prepare_as
