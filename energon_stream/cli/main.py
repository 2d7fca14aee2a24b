"""The ``energon-stream`` command."""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import Any

import click

from energon_stream.errors import EnergonStreamError

__all__ = ["main"]

_COMMANDS = {
    "cache": "Look at a node's cache, verify it, take things out.",
    "checkpoint": "Look at saved states, deal them to other ranks.",
    "info": "Show what a dataset holds.",
    "lint": "Check tars, indices and samples.",
    "prepare": "Index a folder of tars.",
    "prepare-media": "Index the size of images.",
    "prewarm": "Fill a node's cache before training.",
}
"""What ``--help`` says of the commands, so that it imports none of them."""


class _Group(click.Group):
    """Imports a command when it is used, and shows the library's errors as one line.

    Anything else is a bug and keeps its traceback.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        command: click.Command = getattr(importlib.import_module(f"energon_stream.cli.{name}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except EnergonStreamError as error:
            raise click.ClickException(str(error)) from error


def _show_version(ctx: click.Context, option: click.Parameter, value: bool) -> None:
    if value:
        click.echo(f"energon-stream {importlib.metadata.version('energon-stream')}")
        ctx.exit()


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "-V",
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Prepare and inspect datasets in folders or on object storage."""
