"""``energon-stream demo-data``: the data of the documents, and a local S3 that has it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from energon_stream.cli.options import flag, json_option, option
from energon_stream.cli.terminal import echo, emit, wants_json

if TYPE_CHECKING:
    from energon_stream.testing.demo_data import DemoData


@click.command()
@click.argument("folder")
@click.argument("command", nargs=-1)
@flag("--serve")
@option("--port", type=int)
@option("--like", multiple=True)
@json_option
def demo_data(
    folder: str, command: tuple[str, ...], serve: bool, port: int | None, like: tuple[str, ...]
) -> None:
    """Write the small datasets that the documents use into FOLDER, in seconds.

    What FOLDER has already stays as it is. With --serve, a FOLDER that has files is served as it is.

    --serve runs a COMMAND that finds FOLDER as s3://data; put -- before one with options. Without a COMMAND,
    it prints the environment variables with which programs find it; paste that line into another terminal.

    --like takes cc12m, finevideo, librispeech, llava-onevision, nemotron-vlm-v2 or obelics: made-up data in
    the layout of the real dataset, with its oddities, on which its recipe can be tried.
    """
    from energon_stream.testing.demo_data import serve_demo_data, write_demo_data

    if command and not serve:
        raise click.UsageError(f"{command[0]!r} is run beside a store: add --serve.")
    if command and wants_json():
        raise click.UsageError(f"--json goes with {command[0]!r}: put -- before it.")
    if like or not (serve and os.path.isdir(folder) and os.listdir(folder)):
        found = write_demo_data(folder, like)
    if not serve:
        emit({"datasets": [asdict(data) for data in found]}, lambda: _show(found))
        return
    if command:
        with serve_demo_data(folder, port or 0) as environment:
            sys.exit(_run(command, environment))
    with (
        contextlib.suppress(KeyboardInterrupt),
        serve_demo_data(folder, 9123 if port is None else port) as environment,
    ):
        line = " ".join(f"{name}={value}" for name, value in environment.items())
        echo(f"s3://data is {folder}, until Ctrl-C. Paste this line into another terminal:", err=True)
        emit({"environment": environment}, lambda: echo(f"export {line}"))
        threading.Event().wait()


def _run(command: tuple[str, ...], environment: dict[str, str]) -> int:
    """Run a program with further variables, and return its status. Ctrl-C is left to the program."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        with subprocess.Popen(command, env=os.environ | environment) as child:
            try:
                status = child.wait()
            except KeyboardInterrupt:  # SIGTERM
                child.terminate()
                raise
    except OSError as error:
        raise click.UsageError(f"{command[0]!r} cannot be run: {error.strerror}.") from error
    finally:
        signal.signal(signal.SIGINT, before)
    return status if status >= 0 else 128 - status


def _show(found: list[DemoData]) -> None:
    width = max(len(data.path) for data in found)
    for data in found:
        echo(f"{data.path:{width}}  {data.what if data.missing is None else f'left out: {data.missing}'}")
