"""The groups of commands: they import commands when they are used, and word errors for the command line."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import click

from energon_stream import conventions
from energon_stream.cli.terminal import printable_messages
from energon_stream.errors import EnergonStreamError
from energon_stream.printable import printable

_OF_ENERGON = {
    "analyze-debug": "Picture the order of samples in debug logs.",
    "checkpoint": "Inspect saved states; deal them to other ranks.",
    "info": "Show what a dataset contains.",
    "lint": "Check tars, indices and samples.",
    "mount": "Show a dataset as a folder of files.",
    "prepare": "Index a folder of tars.",
    "prepare-media": "Index the size of images.",
    "preview": "Print samples, one after another.",
}
"""Help texts of Megatron-Energon's commands, so that ``--help`` imports none of them."""

_ALL = _OF_ENERGON | {
    "cache": "Inspect, verify and clear a node's cache.",
    "explain": "Show the requests of training steps, and why each is made.",
    "prewarm": "Fill a node's cache before training.",
    "simulate": "Predict the speed of training from a store.",
}

_FLAGS = {
    "cache": "--cache-dir",
    "allow_slow": "--allow-slow",
    "force": "--force-overwrite",
    "media_filter": "--media-metadata-by-…",
    "split_patterns": "--split-parts",
    "workers": "--num-workers",
}
"""Flags that are named otherwise than the argument of the function that they are passed to."""

_GO_ON = {
    "prepare": "Run the command again: it begins with the first tar.",
    "prepare-media": "Run the command again: it begins with the first file.",
    "prewarm": "Run the command again: it keeps what it has fetched and goes on.",
}
"""Advice after an interruption, for commands that change something."""


class _Group(click.Group):
    """Shows the library's errors as one line, in terms of flags. Any other exception keeps its traceback."""

    def __init__(self, *args: Any, table: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.table = dict(sorted(table.items()))  # help texts by command

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        module = importlib.import_module(f"energon_stream.cli.{cmd_name.partition('-')[0]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self.table.items()))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with printable_messages():
                return super().invoke(ctx)
        except EnergonStreamError as error:
            raise click.ClickException(printable(in_flags(str(error), _flags_of(self, ctx)))) from error
        except click.Abort:  # Ctrl-C or the end of the input at a question; all are asked before work begins
            click.echo("\nStopped before all questions were answered. Nothing was changed.", err=True)
            click.echo("Run the command again; --help lists options that answer the questions.", err=True)
            ctx.exit(1)
        except KeyboardInterrupt:
            click.echo("\nInterrupted.", err=True)
            if ctx.invoked_subcommand in _GO_ON:
                click.echo(_GO_ON[ctx.invoked_subcommand], err=True)
            ctx.exit(130)


def _flags_of(group: click.Group, ctx: click.Context) -> dict[str, str]:
    """Flags of the invoked command and of its subcommands, by argument."""
    command = group.get_command(ctx, ctx.invoked_subcommand or "")
    commands = [command, *getattr(command, "commands", {}).values()]
    options = [option for each in commands if each is not None for option in each.params]
    return {o.name: o.opts[0] for o in options if isinstance(o, click.Option) and o.name} | _FLAGS


def in_flags(text: str, flags: dict[str, str]) -> str:
    """Replace arguments of Python functions by flags: ``force=True``, ``split_config=``, ``cache_dir``."""
    names = "|".join(sorted(map(re.escape, flags), key=len, reverse=True))
    text = re.sub(rf"\b({names})=(?:True\b)?", lambda match: flags[match[1]], text)
    # A word without "_" may be plain English.
    whole = rf"(?<![\w./-])({names})(?![\w./=-])"
    return re.sub(whole, lambda match: flags[match[1]] if "_" in match[1] else match[1], text)


_HELP = {"help_option_names": ["-h", "--help"]}
_version_option = partial(click.version_option, None, "-V", "--version", package_name="energon-stream")


@click.group(cls=_Group, table=_ALL, context_settings=_HELP)
@_version_option(message="%(package)s %(version)s")
def main() -> None:
    """Prepare and inspect datasets in folders or on object storage."""


@click.group(cls=_Group, table=_OF_ENERGON, context_settings=_HELP, invoke_without_command=True)
@_version_option(message="%(package)s %(version)s, with the commands of megatron-energon 7.4.1")
@click.pass_context
def energon(ctx: click.Context) -> None:
    """Megatron-Energon's commands, for datasets in folders or on object storage.

    They follow its conventions. energon-stream has the same commands, and more.
    """
    before = conventions.conventions()
    conventions.set_default("energon")
    ctx.call_on_close(partial(conventions.set_default, before))
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
