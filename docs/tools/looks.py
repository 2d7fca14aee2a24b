"""Photographs what one looks at: ``python docs/tools/looks.py [FOLDER] [NAME …]``. Needs chromium.

Writes ``docs/pictures/*.png``: the screens of ``plan``, ``top``, ``bench``, ``doctor``, ``browse``, printed
batches and statistics, and pages of the site that ``make docs`` built; wide and narrow, light and dark.
A NAME is the first word of some of these: ``plan``.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
from click.testing import CliRunner
from PIL import Image
from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME
from rich.text import Text

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests" / "support"))

from chromium import open_tab  # noqa: E402

import energon_stream  # noqa: E402
from energon_stream.cli.main import main as cli  # noqa: E402
from energon_stream.prepare.prepare import prepare_dataset  # noqa: E402
from energon_stream.testing.datasets import CRUDE_YAML, prepared_binary_dataset, write_shards  # noqa: E402
from energon_stream.testing.media_files import VideoFile  # noqa: E402
from energon_stream.testing.s3server import S3Server  # noqa: E402
from energon_stream.tools.browse import serving  # noqa: E402
from energon_stream.tools.browse.training import Run  # noqa: E402
from energon_stream.tools.top import read_board  # noqa: E402
from energon_stream.tools.top.screen import TopApp  # noqa: E402

WIDE, NARROW = (1100, 760), (390, 760)
MOST_BYTES = 150_000
DRAWN = "svg" if (Path(energon_stream.__file__).parent / "tools" / "plots.py").exists() else "png"
FLAG, WORKERS = ("--picture", "--num-workers") if DRAWN == "svg" else ("--png", "--workers")  # older words
PLUS = "+xml" if DRAWN == "svg" else ""
NAMES = ("rings", "stripes", "waves")
ORDER = ["--shuffle-buffer-size", "500", "--max-samples-per-sequence", "50"]
SITE = {"front": "index.html", "tasks": "docs/index.html", "api": "docs/reference/api/datasets.html"}
UNSHUFFLED = ["--shuffle-buffer-size", "1", "--max-samples-per-sequence", "0"]
ORDERS = {
    "in-order": [*UNSHUFFLED, "--parallel-shard-iters", "1"],
    "shuffled": [*ORDER, "--parallel-shard-iters", "4"],
    "well-shuffled": ["--shuffle-buffer-size", "2000", "--max-samples-per-sequence", "10"],
}
PRINTED = """
from energon_stream import WorkerConfig, get_loader, get_train_dataset
import itertools
dataset = get_train_dataset(%r, batch_size=8, shuffle_buffer_size=100, max_samples_per_sequence=10,
                            worker_config=WorkerConfig(0, 1, 0))
with get_loader(dataset) as loader:
    for batch in itertools.islice(loader, 4):
        pass
    %s
"""


class Studio:
    """Keeps what it photographs as small PNG files."""

    def __init__(self, tab, folder: Path) -> None:
        self._tab, self.folder = tab, folder
        folder.mkdir(parents=True, exist_ok=True)

    async def take(self, name: str, url: str, size=WIDE, *, dark=False, whole=True, ready="true") -> None:
        """Write a picture of a page."""
        await self._tab.show(url, *size, dark=dark, ready=f"document.readyState === 'complete' && {ready}")
        with Image.open(io.BytesIO(await self._tab.picture(whole))) as found:
            picture = found.convert("RGB")
        await self._tab.run("try { localStorage.clear() } catch {}")  # the site keeps its first colours
        picture = picture.crop((0, 0, picture.width, min(picture.height, 1600)))
        for colours in (128, 64, 32, 16):
            picture.quantize(colours).save(self.folder / f"{name}.png", optimize=True)
            if (self.folder / f"{name}.png").stat().st_size <= MOST_BYTES:
                return
        print(f"{name}.png has more than {MOST_BYTES} bytes", file=sys.stderr)

    async def both(self, name: str, url: str, sizes=(WIDE, NARROW), **options) -> None:
        """Write a page wide and narrow, light and dark."""
        for size, width in zip(sizes, ("wide", "narrow"), strict=True):
            for dark in (False, True):
                await self.take(
                    f"{name}-{width}-{'dark' if dark else 'light'}", url, size, dark=dark, **options
                )

    async def text(self, name: str, text: str, width: int, dark=True) -> None:
        """Write a text as a terminal of some columns shows it, in 40 lines at most."""
        console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
        console.print(Text(text), overflow="fold", no_wrap=False)
        theme = SVG_EXPORT_THEME if dark else DEFAULT_TERMINAL_THEME
        await self.svg(name, console.export_svg(title=f"{width} columns", theme=theme))

    async def svg(self, name: str, drawing: str) -> None:
        """Write a picture of a screen that rich or Textual drew, without the fonts that it would download."""
        drawing = re.sub(r"@font-face\s*{[^}]*}", "", drawing)
        width, height = map(float, re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawing).groups())
        size = (min(1000, int(width)), int(height * min(1.0, 1000 / width)))
        page = f"<!doctype html><style>body{{margin:0}}svg{{width:100%;display:block}}</style>{drawing}"
        await self.take(name, data_url(page), size)


def data_url(page: str) -> str:
    return f"data:text/html;charset=utf-8;base64,{base64.b64encode(page.encode()).decode()}"


def command(*arguments: str, columns: int = 80, apart: bool = False) -> str:
    """Return what a command prints, in a process of its own if ``apart``."""
    shown = f"$ energon-stream {' '.join(arguments)}\n"
    if apart:
        code = "from energon_stream.cli import run; run()"
        found = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
        )
        return shown + found.stdout
    result = CliRunner(env={"COLUMNS": str(columns)}).invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    return shown + result.output


def image(number: int) -> bytes:
    """Return a picture of rings, stripes or waves."""
    x, y = np.meshgrid(np.linspace(-1, 1, 240), np.linspace(-1, 1, 180))
    phase, many = number * 0.7, 3 + number % 5
    forms = np.hypot(x, y), x + y, x + 0.3 * np.sin(4 * y + phase)
    wave = np.sin(many * np.pi * forms[number % 3] + phase) * 0.5 + 0.5
    tint = 0.5 + 0.5 * np.cos(number + np.array([0.0, 2.1, 4.2]))
    buffer = io.BytesIO()
    Image.fromarray((255 * wave[..., None] * tint).astype(np.uint8)).save(buffer, "JPEG", quality=88)
    return buffer.getvalue()


def parts(number: int) -> dict[str, bytes]:
    about = {"shape": NAMES[number % 3], "count": 3 + number % 5}
    caption = f"{about['count']} {about['shape']}, number {number}"
    return {"jpg": image(number), "txt": caption.encode(), "json": json.dumps(about).encode()}


async def look_at_plan(studio: Studio, tmp: Path) -> None:
    prepared_binary_dataset(tmp / "tiles", shards=40, samples=20_000, payload_bytes=100)
    begin = ["plan", "tiles", "--steps", "600", "--batch-size", "32", "--num-workers", "0"]
    drawings = []
    for name, order in ORDERS.items():
        shown = command(*begin, *order, FLAG, f"{name}.{DRAWN}")
        found = Path(f"{name}.{DRAWN}").read_bytes()
        drawings.append(f"data:image/{DRAWN}{PLUS};base64,{base64.b64encode(found).decode()}")
        if DRAWN == "svg":
            shutil.copy(f"{name}.svg", studio.folder / f"plan-{name}.svg")
        if name == "shuffled":
            await studio.text("plan-text-80", shown, 80)
    style = (
        ":root{color-scheme:light dark}body{margin:12px;font-family:sans-serif}"
        "img{width:100%;max-width:560px;display:block;margin-bottom:12px}"
    )
    pictures = "".join(f'<img alt="" src="{drawing}">' for drawing in drawings)
    page = (
        f'<!doctype html><meta name="viewport" content="width=device-width"><style>{style}</style>{pictures}'
    )
    await studio.both("plan", data_url(page))


def stats_of(rank: int, pid: int, rate: float, waiting: float, cause: str, text: str, age=0.4) -> dict:
    wave = [
        max(0.0, rate * (1 + 0.25 * np.sin(place / 2 + rank) - (place > 17) * rank / 9))
        for place in range(30)
    ]
    recent = {
        "seconds": 1.0,
        "samples_per_second": rate,
        "waiting": waiting,
        "bytes": int(rate * 180_000),
        "requests": {"get": int(rate / 20)},
        "cache": {"hit_bytes": 3, "missed_bytes": 97} if rank == 2 else {"hit_bytes": 90, "missed_bytes": 10},
        "verdict": {"cause": cause, "text": text},
    }
    whole = {"rank": rank, "num_workers": 4, "retries": 3 * rank}
    about = {"host": socket.gethostname(), "pid": pid, "time": time.time() - age}
    return {**about, "recent": recent, "whole": whole, "history": wave}


KEEPS_UP = "the loader keeps up: the training loop waits 3% of the time, and works the rest"
LATENCY = (
    "data-bound, waiting 61% of the time: the store's latency, 84 ms a request; 88% of the time goes to waiting for "
    "the store; raise max_in_flight and byte_budget, or add workers"
)


async def look_at_top(studio: Studio, tmp: Path) -> None:
    alive = [subprocess.Popen(["sleep", "600"]) for _ in range(4)]
    dead = subprocess.Popen(["true"])
    dead.wait()
    folder = tmp / "stats"
    folder.mkdir()
    decode = (
        "data-bound, waiting 34% of the time: decoding, 71% of the workers' time; add workers, or decode less"
    )

    def write() -> None:
        found = [
            stats_of(0, alive[0].pid, 1240, 0.03, "consumer", KEEPS_UP),
            stats_of(1, alive[1].pid, 1196, 0.34, "decode", decode),
            stats_of(2, alive[2].pid, 702, 0.61, "store latency", LATENCY),
            stats_of(3, alive[3].pid, 1233, 0.04, "consumer", KEEPS_UP),
            stats_of(1, dead.pid, 990, 0.1, "consumer", KEEPS_UP, age=45),
        ]
        for number, each in enumerate(found):
            (folder / f"{number}.stats.json").write_text(json.dumps(each))

    try:
        for width in (60, 80, 120, 200):
            write()
            app = TopApp(partial(read_board, folder), "/shared/job-17/stats")
            async with app.run_test(size=(width, 18)) as pilot:
                await pilot.pause()
                await pilot.pause()
                await studio.svg(f"top-{width}", app.export_screenshot())
        for width in (60, 80, 120):
            write()
            await studio.text(
                f"top-once-{width}", command("top", str(folder), "--once", columns=width), width
            )
    finally:
        for process in alive:
            process.kill()
            process.wait()


async def look_at_bench(studio: Studio, tmp: Path) -> None:
    with S3Server(own_process=True) as server:
        folder = prepared_binary_dataset(tmp / "data", shards=8, samples=8000, payload_bytes=20_000)
        server.upload_folder(folder, "s3://bucket/data")
        server.shape(first_byte_latency=0.05)
        options = [
            f"--storage-option={key}={json.dumps(value)}" for key, value in server.storage_options.items()
        ]
        shown = command(
            *["bench", "s3://bucket/data", "--batch-size", "32", "--seconds", "14", WORKERS, "0,1,2"],
            *[*ORDER, "--html", "speed.html", FLAG, f"speed.{DRAWN}", *options],
            apart=True,
        )
    for option in options:
        shown = shown.replace(f" {option}", "")
    await studio.text("bench-text-80", shown, 80)
    await studio.both("bench", (tmp / "speed.html").as_uri())
    if DRAWN == "svg":
        shutil.copy("speed.svg", studio.folder / "bench.svg")
    for dark in (False, True):
        page = f'<!doctype html><style>:root{{color-scheme:light dark}}</style><img src="data:image/{DRAWN}{PLUS};base64,'
        page += f'{base64.b64encode(Path(f"speed.{DRAWN}").read_bytes()).decode()}">'
        await studio.take(
            f"bench-picture-{'dark' if dark else 'light'}", data_url(page), (900, 300), dark=dark
        )
    await studio.text("doctor-text-80", command("doctor", "data", "--seconds", "0.3", apart=True), 80)


async def look_at_browse(studio: Studio, tmp: Path) -> None:
    clip = tmp / "clip.webm"
    VideoFile(codec="libvpx", audio_codec="libopus", audio_rate=48_000, size=(320, 240)).write(clip)
    with_clip = {30: {"webm": clip.read_bytes()}}
    key = "2024-06/crawl-europe-west/shapes/{:08d}"
    write_shards(
        "shapes", shards=4, samples_per_shard=30, parts=lambda n: parts(n) | with_clip.get(n, {}), key=key
    )
    prepare_dataset("shapes", split_ratio=(3, 1, 0), dataset_yaml=CRUDE_YAML)
    run = Run(num_workers=0, options={"shuffle_buffer_size": 100, "max_samples_per_sequence": 10})
    ready = "document.querySelector('#status')?.textContent !== 'Reading …' && document.querySelector('nav button') && [...document.images].every(image => image.complete || image.getBoundingClientRect().top > innerHeight)"
    with serving("shapes", run=run) as served:
        views = {
            "samples": "",
            "step": "#step=7&batch_size=12&num_workers=0",
            "sample": "#first=30&open=0.30",
            "search": "#search=crawl",
        }
        for name, view in views.items():
            await studio.both(f"browse-{name}", served.url + view, ready=ready, whole=False)


async def look_at_printed(studio: Studio, tmp: Path) -> None:
    from energon_stream.testing.datasets import prepared_captioning_dataset

    prepared_captioning_dataset(tmp / "captions", shards=4, samples_per_shard=16)
    for name, what in (("batch", "print(batch)"), ("stats", "print(loader.stats().gather())")):
        found = subprocess.run(
            [sys.executable, "-c", PRINTED % ("captions", what)], capture_output=True, text=True, check=True
        )
        for width in (80, 120):
            await studio.text(f"print-{name}-{width}", f">>> {what}\n{found.stdout}", width)


async def look_at_site(studio: Studio, tmp: Path) -> None:
    if not (ROOT / ".site" / "html").exists():
        sys.exit("the site is not built: run `make docs` first")
    for name, page in SITE.items():
        await studio.both(
            f"site-{name}", (ROOT / ".site/html" / page).as_uri(), ((1280, 1000), (390, 1000)), whole=False
        )


LOOKS = {
    "plan": look_at_plan,
    "top": look_at_top,
    "bench": look_at_bench,
    "browse": look_at_browse,
    "print": look_at_printed,
    "site": look_at_site,
}


async def main(folder: Path, wanted: list[str]) -> None:
    if not LOOKS.keys() >= set(wanted):
        sys.exit(f"a NAME is one of {', '.join(LOOKS)}")
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        async with open_tab() as tab:
            studio = Studio(tab, folder)
            for each in wanted or LOOKS:
                (Path(name) / each).mkdir()
                with contextlib.chdir(Path(name) / each):
                    await LOOKS[each](studio, Path(name) / each)


if __name__ == "__main__":
    target = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT / "docs" / "pictures"
    asyncio.run(main(target, sys.argv[2:]))
