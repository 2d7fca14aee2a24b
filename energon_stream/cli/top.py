"""``energon-stream top``: a live view of the loaders of a job."""

from __future__ import annotations

import shlex
import shutil
import sys
from functools import partial

import click

from energon_stream.cli.options import flag, json_flag
from energon_stream.cli.terminal import emit, wants_json
from energon_stream.errors import ConfigError
from energon_stream.tools.top.board import find_folder, read_board


@click.command()
@click.argument("folder", required=False)
@flag("--once", help="Print the table once.")
@json_flag("Print one JSON object, once.")
@flag("--web", help="Show it in a browser, on a port of this machine only.")
@click.option("--port", default=8000, help="Port for --web.")
def top(folder: str | None, once: bool, web: bool, port: int) -> None:
    """Show the loaders that write their statistics to FOLDER: rates, waiting, requests, cache, slowest rank.

    Train with ENERGON_STREAM_STATS_DIR=FOLDER. It is the default of FOLDER here, too.
    """
    place = find_folder(folder)
    if web and (once or wants_json()):
        raise ConfigError("--web goes with neither --once nor --json", hint="Leave one of them out.")
    if wants_json():
        emit(read_board(place).as_json())
    elif once:
        click.echo(read_board(place).text(shutil.get_terminal_size((200, 0)).columns))
    elif web:
        _serve([sys.executable, "-m", "energon_stream", "top", str(place)], port)
    else:
        from energon_stream.tools.top.screen import TopApp

        read_board(place)  # fails before the screen is cleared
        TopApp(partial(read_board, place), str(place)).run()


def _serve(command: list[str], port: int) -> None:
    from energon_stream.imports import of_extra

    with of_extra("top"):
        from textual_serve.server import Server
    Server(shlex.join(command), host="127.0.0.1", port=port, title="energon-stream top").serve()
