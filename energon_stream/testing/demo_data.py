"""The data of the documents: small, the same everywhere, in a folder and as ``s3://data``.

``energon-stream demo-data FOLDER`` writes it, and ``--serve`` serves it.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
import wave
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from energon_stream.errors import ConfigError, MissingPackageError
from energon_stream.imports import of_extra
from energon_stream.index.jsonl_index import prepare_jsonl
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import (
    CAPTIONING_YAML,
    CRUDE_YAML,
    dataset_with_media,
    prepared_text_dataset,
    write_shards,
)
from energon_stream.testing.media_files import VideoFile, tone
from energon_stream.testing.public_data import PUBLIC
from energon_stream.testing.s3server import S3Server

BUCKET = "data"
_SHAPES = ("circle", "square", "triangle")
_COLOURS = ("red", "green", "blue", "yellow", "purple", "orange", "white")
_GROUNDS = ("black", "gray", "navy", "teal")
_SIZE = (64, 48)
_PHOTOS = 60
_HERTZ = 16_000
_MIX = """__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    blend:
      - {weight: 3, path: captions}
      - {weight: 1, path: texts}
  val: {path: captions}
"""


@dataclass(frozen=True, slots=True)
class DemoData:
    """One of the datasets.

    Attributes:
        path: Its folder or file.
        what: What it is, in words.
        missing: What to install to have it; None if it is there.
    """

    path: str
    what: str
    missing: str | None = None


def write_demo_data(folder: str | os.PathLike[str], like: Collection[str] = ()) -> list[DemoData]:
    """Write the data that the documents use into a folder, and return the list of it.

    What exists is left as it is. A dataset whose package is missing is left out.

    Args:
        folder: Made if missing.
        like: Write small copies of these public datasets instead, for the recipes: ``cc12m``, ``finevideo``,
            ``librispeech``, ``llava-onevision``, ``nemotron-vlm-v2``, ``obelics``.

    Raises:
        ConfigError: There is no copy of that name.

    Example:
        >>> from energon_stream.testing.demo_data import write_demo_data
        >>> [data.what for data in write_demo_data(".") if data.path.endswith("texts")]
        ['64 texts in 8 tars, prepared as TextSample']
    """
    if unknown := set(like) - set(PUBLIC):
        raise ConfigError(f"no copy like {sorted(unknown)}", hint=f"choose of {', '.join(PUBLIC)}")
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    chosen = {name: PUBLIC[name] for name in like} or _ALL
    return [
        DemoData(str(root / name), what, _write(root, name, write)) for name, (what, write) in chosen.items()
    ]


def _write(root: Path, name: str, write: Callable[[Path], object]) -> str | None:
    if (root / name).exists():
        return None
    with tempfile.TemporaryDirectory(dir=root, prefix=".writing-") as place:
        try:
            write(Path(place, name))
        except MissingPackageError as error:
            return error.hint
        for file in sorted(os.listdir(place), reverse=True):  # files about it first
            os.replace(Path(place, file), root / file)
    return None


@contextmanager
def serve_demo_data(folder: str | os.PathLike[str], port: int = 0) -> Iterator[dict[str, str]]:
    """Serve a folder as ``s3://data`` on a port of this machine; 0 takes a free one.

    Yields the environment variables with which programs find it. Further buckets last as long as the block.

    Example:
        >>> from energon_stream.testing.demo_data import serve_demo_data
        >>> with serve_demo_data(".") as environment:
        ...     sorted(environment)
        ['AWS_ACCESS_KEY_ID', 'AWS_ENDPOINT_URL', 'AWS_REGION', 'AWS_SECRET_ACCESS_KEY']
    """
    with tempfile.TemporaryDirectory() as root:
        Path(root, BUCKET).symlink_to(Path(folder).resolve())
        with S3Server(root, port=port) as server:
            yield {
                "AWS_ENDPOINT_URL": server.endpoint_url,
                "AWS_ACCESS_KEY_ID": "demo",
                "AWS_SECRET_ACCESS_KEY": "demo",
                "AWS_REGION": "us-east-1",
            }


def _picture(number: int) -> tuple[str, str, bytes]:
    """Return a shape, a caption, and a JPEG of it."""
    from PIL import Image, ImageDraw

    shape = _SHAPES[number % 3]
    colour, ground = _COLOURS[number % 7], _GROUNDS[number // 7 % 4]
    image, left, top = Image.new("RGB", _SIZE, ground), 8 + number * 5 % 24, 6 + number * 11 % 12
    box, draw = (left, top, left + 24, top + 24), ImageDraw.Draw(image)
    if shape == "circle":
        draw.ellipse(box, fill=colour)
    elif shape == "square":
        draw.rectangle(box, fill=colour)
    else:
        draw.polygon([(left, top + 24), (left + 24, top + 24), (left + 12, top)], fill=colour)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90)
    return shape, f"a {colour} {shape} on {ground}", file.getvalue()


def _parts(number: int) -> dict[str, bytes]:
    _, caption, jpeg = _picture(number)
    return {"jpg": jpeg, "txt": caption.encode()}


def _captions(path: Path) -> None:
    write_shards(path, shards=8, samples_per_shard=8, parts=_parts)
    prepare_dataset(str(path), split_ratio=(6, 1, 1), dataset_yaml=CAPTIONING_YAML)


def _crude(path: Path) -> None:
    def parts(number: int) -> dict[str, bytes]:
        found = _parts(number)
        about = {"index": number, "caption": found["txt"].decode()}
        return {**found, "json": json.dumps(about).encode()}

    write_shards(path, shards=8, samples_per_shard=8, parts=parts)
    prepare_dataset(str(path), split_ratio=(6, 1, 1), dataset_yaml=CRUDE_YAML)


def _plain_tars(path: Path) -> None:
    write_shards(path, shards=4, samples_per_shard=16, parts=_parts)


def _texts(path: Path) -> None:
    prepared_text_dataset(path, split_ratio=(6, 1, 1), shards=8, samples_per_shard=8)


def _lines(path: Path) -> None:
    path.write_text("".join(f'{{"id": {number}, "text": "line {number}"}}\n' for number in range(32)))
    prepare_jsonl(str(path))


def _photos(path: Path) -> None:
    for number in range(_PHOTOS):
        shape, caption, jpeg = _picture(number)
        file = path / f"{shape}/{number:03}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(jpeg)
        file.with_suffix(".txt").write_text(caption)


def _table(path: Path) -> None:
    rows = []
    for number in range(_PHOTOS):
        shape, caption, _ = _picture(number)
        file = f"photos/{shape}/{number:03}.jpg"
        rows.append({"id": f"photo-{number}", "file": file, "caption": caption, "year": 2000 + number % 20})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _parquet(path: Path) -> None:
    with of_extra("parquet"):
        import pyarrow
        import pyarrow.parquet
    _, captions, files = zip(*map(_picture, range(_PHOTOS)), strict=True)
    table = pyarrow.table({"image": files, "caption": captions})
    pyarrow.parquet.write_table(table, path, row_group_size=20)


def _mds(path: Path) -> None:
    with of_extra("mds"):
        from streaming import MDSWriter
    with MDSWriter(out=str(path), columns={"image": "jpeg", "caption": "str"}) as writer:
        from PIL import Image

        for _, caption, jpeg in map(_picture, range(_PHOTOS)):
            writer.write({"image": Image.open(io.BytesIO(jpeg)), "caption": caption})


def _speech(path: Path) -> None:
    path.mkdir()
    for number in range(8):
        with wave.open(str(path / f"{number:03}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(_HERTZ)
            file.writeframes(tone(_HERTZ * (number % 3 + 1), _HERTZ, 1).tobytes())
        (path / f"{number:03}.txt").write_text(f"a tone of {number % 3 + 1} seconds")


def _videos(path: Path) -> None:
    path.mkdir()
    for number in range(8):
        VideoFile(frames=25 + 5 * number, audio_codec="aac").write(path / f"{number:03}.mp4")
        line = {"question": "How many frames?", "answer": str(25 + 5 * number)}
        (path / f"{number:03}.json").write_text(json.dumps(line))


def _recordings(path: Path) -> None:
    files = {f"{n}.flac": VideoFile(frames=0, audio_codec="flac", audio_seconds=4.0) for n in range(2)}
    line = {"text": "a tone"}
    dataset_with_media(path, "recordings", files, lambda n: {"file": f"{n % 2}.flac", "at": n % 3, **line})


def _video_qa(path: Path) -> None:
    files = {f"{n}.mp4": VideoFile(frames=100) for n in range(2)}
    line = {"question": "Where is it?", "answer": "left"}
    dataset_with_media(path, "videos", files, lambda n: {"file": f"{n % 2}.mp4", "at": n % 3, **line})


_ALL: dict[str, tuple[str, Callable[[Path], object]]] = {
    "captions": ("64 pictures with captions in 8 tars, prepared as CaptioningSample", _captions),
    "texts": ("64 texts in 8 tars, prepared as TextSample", _texts),
    "crude": ("64 pictures with captions and JSON, prepared without a type", _crude),
    "tars": ("64 pictures with captions in 4 WebDataset tars, not prepared", _plain_tars),
    "mix.yaml": ("captions and texts, blended 3 to 1", lambda path: path.write_text(_MIX)),
    "lines.jsonl": ("32 JSON lines, prepared", _lines),
    "photos": ("60 jpg and txt files in folders", _photos),
    "photos.jsonl": ("a table of these files", _table),
    "photos.parquet": ("the same in Parquet", _parquet),
    "photos-mds": ("the same in MosaicML's MDS", _mds),
    "speech": ("8 wav and txt files", _speech),
    "videos": ("8 mp4 and json files", _videos),
    "clip.mp4": ("a video of 2 seconds, with sound", lambda path: VideoFile(audio_codec="aac").write(path)),
    "audio": ("recordings, and transcripts that name them", _recordings),
    "video_qa": ("videos, and questions that name them", _video_qa),
}
"""What each is, and what writes it, by name."""
