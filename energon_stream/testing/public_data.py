"""Small copies of public datasets: the layout, names and oddities of the real ones, with made-up contents."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from energon_stream.imports import of_extra
from energon_stream.testing.datasets import write_tar
from energon_stream.testing.media_files import VideoFile


def _picture(number: int, mode: str = "RGB", form: str = "JPEG", **options: Any) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    image = Image.new("RGB", (48, 32), (number * 37 % 256, number * 91 % 256, 128))
    image.convert(mode).save(file, form, **options)
    return file.getvalue()


def _table(path: Path, columns: dict[str, list[Any]], rows_per_group: int = 8) -> None:
    with of_extra("parquet"):
        import pyarrow
        import pyarrow.parquet
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=rows_per_group)


def write_like_img2dataset(
    path: Path, urls: list[str], failed: Callable[[int], bool], shard_size: int
) -> None:
    """Write tars as img2dataset does: pictures that it could not fetch leave a gap in the keys."""
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees, which resizing keeps
    for shard, start in enumerate(range(0, len(urls), shard_size)):
        members, rows = [], []
        for number in range(start, min(start + shard_size, len(urls))):
            key = f"{shard:05}{number - start:04}"
            caption = "" if number % 11 == 5 else f"picture {number}, “{number * 7}”\nfrom the web"
            row = {"key": key, "url": urls[number], "caption": caption, "exif": json.dumps({"Software": "x"})}
            rows.append({**row, "status": "failed_to_download" if failed(number) else "success"})
            if not failed(number):
                jpeg = _picture(
                    number, "L" if number % 7 == 3 else "RGB", exif=exif if number % 9 == 4 else b""
                )
                parts = {"jpg": jpeg, "json": json.dumps(rows[-1]).encode(), "txt": caption.encode()}
                members += [(f"{key}.{part}", content) for part, content in parts.items()]
        write_tar(path / f"{shard:05}.tar", members)
        _table(path / f"{shard:05}.parquet", {name: [row[name] for row in rows] for name in rows[0]})
        stats = {"count": len(rows), "successes": sum(row["status"] == "success" for row in rows)}
        (path / f"{shard:05}_stats.json").write_text(json.dumps(stats))


def _cc12m(path: Path) -> None:
    urls = [f"https://example.org/{number}.jpg" for number in range(56)]
    write_like_img2dataset(path, urls, lambda number: number % 5 == 2, shard_size=20)
    last = path / "00002.tar"  # the process ended while it wrote this one
    last.write_bytes(last.read_bytes()[:8500])
    (path / "00002_stats.json").unlink()
    (path / "00002.parquet").unlink()


def _conversation(number: int, image: bool) -> list[dict[str, str]]:
    question = "<image>\nWhat colour is it?" if image else "What is 1 + 1?"
    return [{"from": "human", "value": question}, {"from": "gpt", "value": f"answer {number}"}]


def _llava_onevision(path: Path) -> None:
    for subset, only_text in (("ai2d(gpt4v)", False), ("magpie_pro(l3_80b_mt)", True)):
        for part in range(2):
            numbers = range(part * 12, part * 12 + 12)
            images = [
                None
                if only_text or number == 7
                else {"bytes": _picture(number, ("RGB", "RGBA", "P", "L")[number % 4], "PNG"), "path": None}
                for number in numbers
            ]
            columns: dict[str, list[Any]] = {
                "id": [f"{number // 2:012}" for number in numbers],  # pictures with several conversations
                "image": images,
                "conversations": [
                    _conversation(n, i is not None) for n, i in zip(numbers, images, strict=True)
                ],
                "data_source": [subset] * 12,
            }
            if only_text:
                del columns["image"]
            _table(path / subset / f"train-{part:05}-of-00002.parquet", columns)


def _obelics(path: Path) -> None:
    images: list[list[str | None]] = []
    texts: list[list[str | None]] = []
    for number in range(16):
        places = [
            f"https://example.org/{number * 3 + at}.jpg" if at < number % 4 else None for at in range(4)
        ]
        images.append(places)
        texts.append(
            [f"paragraph {number}.{at}" if place is None else None for at, place in enumerate(places)]
        )
    metadata = [json.dumps([place and {"src": place} for place in places]) for places in images]
    general = [json.dumps({"url": f"https://example.org/page-{number}"}) for number in range(16)]
    columns: dict[str, list[Any]] = {
        "images": images,
        "metadata": metadata,
        "general_metadata": general,
        "texts": texts,
    }
    _table(path / "data/train-00000-of-00001.parquet", columns)
    urls = [place for places in images for place in places if place]
    write_like_img2dataset(path / "pictures", urls, lambda number: number % 6 == 1, shard_size=10)


def _finevideo(path: Path) -> None:
    videos, about, made = [], [], []
    path.parent.mkdir(parents=True, exist_ok=True)
    for frames in (75, 100):
        file = path.with_suffix(".mp4")
        VideoFile(frames=frames, audio_codec="aac").write(file)
        made.append(file.read_bytes())
        file.unlink()
    for number in range(6):
        videos.append(made[number % 2])
        scene = {"start_timestamp": "00:00:00.000", "end_timestamp": f"00:00:0{1 + number % 2}.500"}
        scenes = [{"sceneId": 1, "timestamps": scene, "title": f"scene of {number}"}]
        pairs = [{"question": "What happens?", "answer": f"number {number} moves"}]
        content = {"fps": 25.0, "qAndA": pairs, "scenes": scenes}
        about.append({"original_video_filename": f"{number}.mp4", "content_metadata": content})
    for part in range(2):
        half = slice(part * 3, part * 3 + 3)
        _table(path / f"data/train-{part:05}-of-00002.parquet", {"mp4": videos[half], "json": about[half]}, 2)


def _librispeech(path: Path) -> None:
    for speaker, chapter, number in ((84, 121123, 5), (84, 121550, 3), (174, 50561, 6)):
        folder = path / f"LibriSpeech/dev-clean/{speaker}/{chapter}"
        folder.mkdir(parents=True)
        lines = []
        for at in range(number):
            name = f"{speaker}-{chapter}-{at:04}"
            VideoFile(frames=0, audio_codec="flac", audio_seconds=1.0 + at / 2).write(folder / f"{name}.flac")
            lines.append(f"{name} THE WORDS OF {number - at}\n")
        (folder / f"{speaker}-{chapter}.trans.txt").write_text("".join(lines))


def _nemotron_vlm_v2(path: Path) -> None:
    from energon_stream.prepare.prepare import prepare_dataset

    subset = path / "sparsetables"
    lines = []
    for number in range(24):
        picture = {
            "type": "image",
            "image": f"train/png/{number}.png",
            "metadata": {"width": 48, "height": 32},
        }
        asked: list[dict[str, Any]] = [picture, {"type": "text", "text": "Transcribe the table."}]
        turns = [("user", asked), ("assistant", [{"type": "text", "text": f"| {number} |"}])]
        messages = [{"role": role, "content": content} for role, content in turns]
        lines.append(json.dumps({"id": f"table-{number}", "messages": messages}) + "\n")
    for shard in range(2):
        names = [(f"train/png/{n}.png", _picture(n, form="PNG")) for n in range(shard * 12, shard * 12 + 12)]
        write_tar(subset / f"media/shard_{shard:06}.tar", names)
    prepare_dataset(str(subset / "media"), split_ratio=(1, 0, 0))
    (subset / "sparsetables.jsonl").write_text("".join(lines))


PUBLIC: dict[str, tuple[str, Callable[[Path], object]]] = {
    "cc12m": ("pictures and captions, as img2dataset fetches CC12M and DataComp", _cc12m),
    "finevideo": ("videos with scenes and questions, as FineVideo", _finevideo),
    "librispeech": ("speech and transcripts, as LibriSpeech", _librispeech),
    "llava-onevision": ("conversations on pictures, as LLaVA-OneVision-Data", _llava_onevision),
    "nemotron-vlm-v2": ("conversations and pictures, as Nemotron-VLM-Dataset-v2", _nemotron_vlm_v2),
    "obelics": ("documents and pictures, as OBELICS", _obelics),
}
"""What each copy is, and what writes it, by name."""
