"""``energon-stream demo-data``: the data of the documents, and a local S3 that has it."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from energon_stream.cli.options import flag, json_option, option
from energon_stream.cli.terminal import echo, emit

if TYPE_CHECKING:
    from energon_stream.testing.demo_data import DemoData


@click.command()
@click.argument("folder")
@flag("--serve")
@option("--port", default=9123)
@option("--like", multiple=True)
@json_option
def demo_data(folder: str, serve: bool, port: int, like: tuple[str, ...]) -> None:
    """Write the small datasets that the documents use into FOLDER, in seconds.

    What FOLDER has already stays as it is. --serve prints the environment variables with which programs find
    s3://data; paste that line into another terminal.

    --like takes cc12m, finevideo, librispeech, llava-onevision, nemotron-vlm-v2 or obelics: made-up data in
    the layout of the real dataset, with its oddities, on which its recipe can be tried.
    """
    from energon_stream.testing.demo_data import serve_demo_data, write_demo_data

    found = write_demo_data(folder, like)
    if not serve:
        emit({"datasets": [asdict(data) for data in found]}, lambda: _show(found))
        return
    with contextlib.suppress(KeyboardInterrupt), serve_demo_data(folder, port) as environment:
        line = " ".join(f"{name}={value}" for name, value in environment.items())
        echo(f"s3://data is {folder}, until Ctrl-C. Paste this line into another terminal:", err=True)
        emit({"environment": environment}, lambda: echo(f"export {line}"))
        threading.Event().wait()


def _show(found: list[DemoData]) -> None:
    width = max(len(data.path) for data in found)
    for data in found:
        echo(f"{data.path:{width}}  {data.what if data.missing is None else f'left out: {data.missing}'}")
