"""Builders of small datasets: real tars with deterministic content, for tests and examples.

``prepared_*`` functions also write ``.nv-meta``, with the library's own writer.
"""

from __future__ import annotations

import functools
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from energon_stream.errors import ConfigError
from energon_stream.index.shard_names import split_by_ratio
from energon_stream.rng import derive_key

if TYPE_CHECKING:
    from energon_stream.testing.media_files import VideoFile

Parts = Callable[[int], Mapping[str, bytes]]
"""Content of a sample by its number in the dataset: part name (as in ``jpg``) to bytes."""

CAPTIONING_YAML: dict[str, Any] = {
    "sample_type": {"__module__": "megatron.energon", "__class__": "CaptioningSample"},
    "field_map": {"image": "jpg", "caption": "txt"},
}
TEXT_YAML: dict[str, Any] = {
    "sample_type": {"__module__": "megatron.energon", "__class__": "TextSample"},
    "field_map": {"text": "txt"},
}
CRUDE_YAML: dict[str, Any] = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}

_EXTENSIONS = {"JPEG": "jpg", "PNG": "png"}


def random_bytes(size: int, *key: int | str) -> bytes:
    """Return incompressible bytes that depend on ``key`` only."""
    return np.random.Generator(np.random.SFC64(derive_key(*key))).bytes(size)


def write_shards(
    folder: str | os.PathLike[str],
    *,
    shards: int,
    samples_per_shard: int,
    parts: Parts,
    name: str = "data-{:06d}.tar",
    key: str = "{:08d}",
    tar_format: int = tarfile.USTAR_FORMAT,
) -> list[Path]:
    """Write tars of samples, and return their paths. The other builders use it.

    Args:
        folder: Folder of the tars; made if missing.
        shards: Number of tars.
        samples_per_shard: Number of samples of each tar.
        parts: Content of sample ``i`` of the dataset, counted through the shards.
        name: Format string of a tar's path below ``folder``, with the shard's number.
        key: Format string of a sample's key, with the sample's number.
        tar_format: ``tarfile.USTAR_FORMAT``, ``GNU_FORMAT`` or ``PAX_FORMAT``.

    Raises:
        ConfigError: No shards or no samples.

    Example:
        >>> from energon_stream.testing.datasets import write_shards
        >>> tars = write_shards("new", shards=2, samples_per_shard=3, parts=lambda i: {"txt": b"text"})
        >>> [tar.name for tar in tars]
        ['data-000000.tar', 'data-000001.tar']
    """
    if shards < 1 or samples_per_shard < 1:
        raise ConfigError(f"{shards} shards of {samples_per_shard} samples", hint="use 1 or more of both")
    paths = []
    for shard in range(shards):
        numbers = range(shard * samples_per_shard, (shard + 1) * samples_per_shard)
        members = (
            (f"{key.format(n)}.{part}", content) for n in numbers for part, content in parts(n).items()
        )
        paths.append(write_tar(Path(folder) / name.format(shard), members, tar_format))
    return paths


def write_tar(
    path: Path, members: Iterable[tuple[str, bytes]], tar_format: int = tarfile.USTAR_FORMAT
) -> Path:
    """Write a tar of files, each a name and bytes, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        for name, content in members:
            file.writelines((_header(name, len(content), tar_format), content, bytes(-len(content) % 512)))
        end = file.tell() + 2 * tarfile.BLOCKSIZE
        file.truncate(end + -end % tarfile.RECORDSIZE)
    return path


def _header(name: str, size: int, tar_format: int) -> bytes:
    """Return the header of a member; those of short names differ in the name and the checksum alone."""
    block = _header_of_tarfile("", size, tar_format)
    if not name.isascii() or len(name) > 100 or len(block) > tarfile.BLOCKSIZE:
        return _header_of_tarfile(name, size, tar_format)
    checksum = int(block[148:154], 8) + sum(name.encode())
    return name.encode().ljust(100, b"\0") + block[100:148] + b"%06o" % checksum + block[154:]


@functools.lru_cache(1024)
def _header_of_tarfile(name: str, size: int, tar_format: int) -> bytes:
    member = tarfile.TarInfo(name)
    member.size = size
    return member.tobuf(tar_format)  # type: ignore[arg-type]  # one of three numbers


def captioning_dataset(
    folder: str | os.PathLike[str],
    *,
    shards: int = 4,
    samples_per_shard: int = 25,
    size: tuple[int, int] = (16, 12),
    image_format: str = "JPEG",
    with_json: bool = False,
    name: str = "data-{:06d}.tar",
) -> list[Path]:
    """Write image and caption pairs: sample ``i`` is an image of one colour, captioned ``caption i``.

    ``size`` is the width and height of the images, ``image_format`` ``JPEG`` (part ``jpg``) or ``PNG``
    (part ``png``). ``with_json`` adds a part ``json`` with ``index`` and ``caption``. :func:`write_shards`
    explains the others.
    """
    if image_format not in _EXTENSIONS:
        raise ConfigError(f"no image format {image_format!r}", hint="use JPEG or PNG")

    def parts(index: int) -> dict[str, bytes]:
        caption = f"caption {index}"
        found = {_EXTENSIONS[image_format]: _picture(index, size, image_format), "txt": caption.encode()}
        if with_json:
            found["json"] = json.dumps({"index": index, "caption": caption}).encode()
        return found

    return write_shards(folder, shards=shards, samples_per_shard=samples_per_shard, parts=parts, name=name)


@functools.lru_cache(512)
def _picture(index: int, size: tuple[int, int], image_format: str) -> bytes:
    from PIL import Image

    buffer, colour = io.BytesIO(), tuple(random_bytes(3, "colour", index))
    Image.new("RGB", size, colour).save(buffer, image_format)
    return buffer.getvalue()


def binary_dataset(
    folder: str | os.PathLike[str], *, samples: int = 4000, payload_bytes: int = 40_000, shards: int = 8
) -> list[Path]:
    """Write samples of an incompressible ``bin`` of ``payload_bytes`` and a ``json`` of 80 bytes.

    ``samples`` is the number in the whole dataset, which is rounded down to a multiple of ``shards``. See
    :func:`write_shards`.
    """

    def parts(index: int) -> dict[str, bytes]:
        text = json.dumps({"index": index}).encode()
        return {"bin": random_bytes(payload_bytes, "payload", index), "json": text.ljust(80)}

    return write_shards(folder, shards=shards, samples_per_shard=samples // shards, parts=parts)


def prepared_captioning_dataset(
    folder: str | os.PathLike[str], *, split_ratio: tuple[int, int, int] = (8, 1, 1), **options: Any
) -> Path:
    """Write a :func:`captioning_dataset`, prepare it as ``CaptioningSample`` and return the folder.

    Example:
        >>> from energon_stream import WorkerConfig, get_val_dataset
        >>> from energon_stream.testing.datasets import prepared_captioning_dataset
        >>> folder = prepared_captioning_dataset("pairs", shards=10, samples_per_shard=4)
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> next(iter(get_val_dataset(folder, batch_size=2, worker_config=config))).caption
        ['caption ...', 'caption ...']
    """
    captioning_dataset(folder, **options)
    field_map = {"image": _EXTENSIONS[options.get("image_format", "JPEG")], "caption": "txt"}
    return prepare_as(folder, split_ratio, {**CAPTIONING_YAML, "field_map": field_map})


def prepared_binary_dataset(
    folder: str | os.PathLike[str], *, split_ratio: tuple[int, int, int] = (1, 0, 0), **options: Any
) -> Path:
    """Write a :func:`binary_dataset`, prepare it as ``CrudeWebdataset`` and return the folder."""
    binary_dataset(folder, **options)
    return prepare_as(folder, split_ratio, CRUDE_YAML)


def prepared_text_dataset(
    folder: str | os.PathLike[str],
    *,
    split_ratio: tuple[int, int, int] = (1, 0, 0),
    shards: int = 4,
    samples_per_shard: int = 25,
    text: str = "text {}",
) -> Path:
    """Write texts, each ``text`` with its number, prepare them as ``TextSample`` and return the folder."""
    parts: Parts = lambda index: {"txt": text.format(index).encode()}  # noqa: E731
    write_shards(folder, shards=shards, samples_per_shard=samples_per_shard, parts=parts)
    return prepare_as(folder, split_ratio, TEXT_YAML)


def dataset_with_media(
    folder: str | os.PathLike[str],
    name: str,
    files: Mapping[str, VideoFile],
    line: Callable[[int], Mapping[str, Any]],
) -> Path:
    """Write a folder of media, and a crude dataset of 16 samples; return the path of a metadataset of both.

    Args:
        folder: Folder of both; made if missing.
        name: Name of the folder of media, and of the auxiliary store that cookers get.
        files: The media files by name.
        line: Content of the part ``json`` of sample ``i``.

    Example:
        >>> from energon_stream.testing.datasets import dataset_with_media
        >>> from energon_stream.testing.media_files import VideoFile
        >>> path = dataset_with_media("new", "videos", {"a.mp4": VideoFile()}, lambda i: {"file": "a.mp4"})
        >>> path.name
        'mix.yaml'
    """
    root = Path(folder)
    (root / name).mkdir(parents=True)
    for file, form in files.items():
        form.write(root / name / file)
    samples = root / "samples"
    parts: Parts = lambda number: {"json": json.dumps(line(number)).encode()}  # noqa: E731
    write_shards(samples, shards=2, samples_per_shard=8, parts=parts, key="{:04d}")
    prepare_as(samples, (1, 0, 0), CRUDE_YAML)
    split = {"train": {"path": "samples", "aux": {name: f"filesystem://{name}"}}}
    mix = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": split}
    (root / "mix.yaml").write_text(json.dumps(mix))  # JSON is YAML
    return root / "mix.yaml"


def prepare_as(
    folder: str | os.PathLike[str], split_ratio: tuple[int, int, int], yaml: dict[str, Any]
) -> Path:
    """Prepare a folder of tars with a ``dataset.yaml`` of these keys, and return its path."""
    from energon_stream.prepare.prepare import prepare_dataset

    tars = sorted(Path(folder).rglob("*.tar"))
    whole = {name: len(part) for name, part in split_by_ratio([*map(str, tars)], split_ratio).items()}
    prepare_dataset(os.fspath(folder), split_ratio=whole, dataset_yaml=yaml)
    return Path(folder)
