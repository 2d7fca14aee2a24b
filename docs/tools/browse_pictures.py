"""Makes the pictures of docs/guides/browse.md: `python docs/tools/browse_pictures.py`. Needs chromium."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import CRUDE_YAML, write_shards
from energon_stream.testing.media_files import VideoFile
from energon_stream.tools.browse import serving
from energon_stream.tools.browse.training import Run

FOLDER = Path(__file__).parents[1] / "guides" / "pictures"
NAMES = ("rings", "stripes", "waves")
COLOURS = 64  # of a picture, which keeps it small


def image(number: int) -> bytes:
    """Return a picture of rings, stripes or waves."""
    x, y = np.meshgrid(np.linspace(-1, 1, 240), np.linspace(-1, 1, 180))
    phase, many = number * 0.7, 3 + number % 5
    forms = np.hypot(x, y), x + y, x + 0.3 * np.sin(4 * y + phase)
    wave = np.sin(many * np.pi * forms[number % 3] + phase) * 0.5 + 0.5
    tint = 0.5 + 0.5 * np.cos(number + np.array([0.0, 2.1, 4.2]))
    pixels = (255 * wave[..., None] * tint).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=88)
    return buffer.getvalue()


def parts(number: int) -> dict[str, bytes]:
    about = {"shape": NAMES[number % 3], "count": 3 + number % 5}
    caption = f"{about['count']} {about['shape']}, number {number}"
    return {"jpg": image(number), "txt": caption.encode(), "json": json.dumps(about).encode()}


def photograph(url: str, name: str, profile: str) -> None:
    """Write a picture of a page, with few colours."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("there is no chromium; apt-get install chromium")
    target = FOLDER / name
    command = [browser, "--headless", "--disable-gpu", f"--user-data-dir={profile}", "--hide-scrollbars"]
    command += ["--no-sandbox"] if os.geteuid() == 0 else []
    command += ["--virtual-time-budget=20000", "--window-size=1100,760", f"--screenshot={target}", url]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=240)
    with Image.open(target) as found:
        small = found.convert("RGB").quantize(COLOURS)
    small.save(target, optimize=True)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as tmp:
        clip = Path(tmp) / "clip.webm"
        VideoFile(codec="libvpx", audio_codec="libopus", audio_rate=48_000, size=(320, 240)).write(clip)
        os.chdir(tmp)
        with_clip = {30: {"webm": clip.read_bytes()}}
        write_shards(
            "shapes", shards=4, samples_per_shard=30, parts=lambda i: parts(i) | with_clip.get(i, {})
        )
        prepare_dataset("shapes", split_ratio=(3, 1, 0), dataset_yaml=CRUDE_YAML)
        run = Run(num_workers=0, options={"shuffle_buffer_size": 100, "max_samples_per_sequence": 10})
        with serving("shapes", run=run) as served:
            views = {
                "browse-samples.png": "",
                "browse-step.png": "#step=7&batch_size=12&num_workers=0",
                "browse-sample.png": "#first=30&open=0.30",
            }
            for name, view in views.items():
                photograph(served.url + view, name, f"{tmp}/profile")


if __name__ == "__main__":
    main()
