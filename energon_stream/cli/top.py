"""``energon-stream top``: a live view of the loaders of a job."""

from __future__ import annotations

import shlex
import shutil
import sys
from functools import partial

import click

from energon_stream.cli.options import flag, json_option, option
from energon_stream.cli.terminal import emit, wants_json
from energon_stream.errors import ConfigError


@click.command()
@click.argument("folder", required=False)
@flag("--once")
@json_option
@flag("--web")
@option("--port", default=8000)
def top(folder: str | None, once: bool, web: bool, port: int) -> None:
    """Show the loaders that write their statistics to FOLDER: rates, waiting, requests, cache, slowest rank.

    Train with ENERGON_STREAM_STATS_DIR=FOLDER. It is the default of FOLDER here, too.
    """
    from energon_stream.tools.top.board import find_folder, read_board

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
