"""A measurement as a picture, and as a page."""

from __future__ import annotations

import base64
import io
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

    from energon_stream.tools.doctor.measure import BenchReport

_BAR, _LEFT, _WIDTH = 26, 260, 900
_COLUMNS = ("settings", "samples/s", "MB/s", "first batch", "requests", "what limits it")


def picture(report: BenchReport) -> Image:
    """Return a bar for each run, as an RGB picture; the recommended one is dark."""
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (_WIDTH, _BAR * (len(report.runs) + 1)), "white")
    draw = ImageDraw.Draw(image)
    draw.text((_LEFT, 7), "samples a second", fill="black")
    fastest = max(run.samples_per_second for run in report.runs) or 1.0
    for row, run in enumerate(report.runs, 1):
        top = row * _BAR
        end = _LEFT + int((_WIDTH - _LEFT - 80) * run.samples_per_second / fastest)
        colour = (20, 60, 130) if run is report.best else (150, 180, 215)
        draw.text((6, top + 7), str(run.setting), fill="black")
        draw.rectangle((_LEFT, top + 3, end, top + _BAR - 4), fill=colour)
        draw.text((end + 6, top + 7), f"{run.samples_per_second:,.0f}", fill="black")
    return image


def page(report: BenchReport) -> str:
    """Return a page in HTML, which needs no other file."""
    data = io.BytesIO()
    picture(report).save(data, "PNG")
    bars = base64.b64encode(data.getvalue()).decode("ascii")
    rows = [
        (
            str(run.setting),
            f"{run.samples_per_second:,.0f}",
            f"{run.bytes_per_second / 1e6:,.1f}",
            f"{run.first_batch_seconds:.2f} s",
            f"{run.requests:,}",
            run.verdict,
        )
        for run in report.runs
    ]
    head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Speed of a dataset</title>'
        "<style>body{font:15px sans-serif;max-width:70em;margin:2em auto}"
        "td,th{padding:2px 12px;text-align:left}</style>"
        f"<h1>{escape(report.url)}</h1>"
        f'<img alt="samples a second of each run" src="data:image/png;base64,{bars}">'
        f"<table><tr>{head}</tr>{body}</table>"
        f"<h2>Recommended settings</h2><pre>get_train_dataset(…, {escape(report.code)})</pre></html>\n"
    )
