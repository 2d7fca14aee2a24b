"""The ``energon-stream`` command."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import click

from energon_stream.cli.info import info
from energon_stream.cli.lint import lint
from energon_stream.cli.prepare import prepare
from energon_stream.errors import EnergonStreamError

__all__ = ["main"]


class _Group(click.Group):
    """Shows the library's errors as one line; anything else is a bug and keeps its traceback."""

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


main.add_command(prepare)
main.add_command(info)
main.add_command(lint)
