"""The groups of commands: they import commands when they are used, and word errors for the command line."""

from __future__ import annotations

import errno
import importlib
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from energon_stream import conventions
from energon_stream.cli.terminal import printable_messages
from energon_stream.errors import EnergonStreamError
from energon_stream.printable import as_sentence, printable
from energon_stream.system_errors import remedy

INTERRUPTED = 130
"""Exit status of a command that Ctrl-C or SIGTERM has ended."""

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
    "bench": "Measure how fast training reads its data, with several settings.",
    "browse": "Show a dataset in a web browser.",
    "cache": "Inspect, verify and clear a node's cache.",
    "completion": "Print a script that completes commands in bash, zsh or fish.",
    "convert": "Write MDS, LitData, Parquet, Hugging Face, CSV, JSONL or plain files as tars.",
    "cost": "Write one number a sample, such as its tokens, for planned packing.",
    "demo-data": "Write the small datasets that the documents use, and serve them as S3.",
    "diff": "Compare two datasets.",
    "doctor": "Find out whether a dataset can be read, how fast, and with which settings.",
    "explain": "Show the requests of training steps, and why each is made.",
    "merge": "Join datasets to a new one.",
    "plan": "Show what the first steps of training read and cost, and how well they shuffle.",
    "prewarm": "Fill a node's cache before training.",
    "repair": "Write odd or damaged tars anew as a sound dataset.",
    "sample": "Make a small dataset of a large one.",
    "split": "Divide a dataset.",
    "table": "Add, list and remove the tables of views.",
    "top": "Show the loaders of a job as they work.",
    "when": "Show in which steps of a run a sample was.",
    "which": "Show which samples were in a step of a run.",
    "simulate": "Predict the speed of training from a store.",
}

_MODULES = {
    **dict.fromkeys(("cost", "diff", "merge", "sample", "split"), "curation"),
    **dict.fromkeys(("explain", "plan"), "simulate"),
    **dict.fromkeys(("when", "which"), "lineage"),
    "bench": "doctor",
}
"""Modules of commands that have none of their own."""

_FLAGS = {
    "cache": "--cache-dir",
    "allow_slow": "--allow-slow",
    "columns": "--map",
    "files": "--file",
    "kind": "--from",
    "force": "--force-overwrite",
    "media_filter": "--media-metadata-by-…",
    "split_patterns": "--split-parts",
    "workers": "--num-workers",
}
"""Flags that are named otherwise than the argument of the function that they are passed to."""

_GO_ON = {
    "convert": "Run the command again: complete tars stay, and it goes on after them.",
    "prepare": "The dataset is as it was. Run the command again: it goes on, and reads no tar twice.",
    "prepare-media": "Run the command again: it begins with the first file.",
    "merge": "Run the command again: it goes on with the next shard.",
    "prewarm": "Run the command again: it keeps what it has fetched and goes on.",
    "repair": "Run the command again: it goes on after the last complete shard.",
    "sample": "Run the command again: it goes on after the last complete shard.",
    "split": "Run the command again: it goes on after the last complete shard.",
}
"""Advice after an interruption, for commands that change something."""


class _Terminated(KeyboardInterrupt):
    """SIGTERM came."""


def terminate(number: int, frame: Any) -> NoReturn:
    """Treat a signal as Ctrl-C."""
    raise _Terminated


class _Group(click.Group):
    """Shows the library's errors as one line, in terms of flags. Any other exception keeps its traceback."""

    def __init__(self, *args: Any, table: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.table: dict[str, str] = dict(sorted(table.items()))  # help texts by command

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        name = _MODULES.get(cmd_name, cmd_name.partition("-")[0])
        module = importlib.import_module(f"energon_stream.cli.{name}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete names of commands without importing any."""
        named = [item for item in self.table.items() if item[0].startswith(incomplete)]
        items = [CompletionItem(name, help=text) for name, text in named]
        return items + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self.table.items()))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with printable_messages():
                return super().invoke(ctx)
        except EnergonStreamError as error:
            raise click.ClickException(printable(in_flags(str(error), _flags_of(self, ctx)))) from error
        except OSError as error:
            if error.errno in (
                None,
                errno.EPIPE,
            ):  # click ends quietly where nobody reads its output any more
                raise
            hint = remedy(error)
            raise click.ClickException(
                printable(f"{error}. {as_sentence(hint)}" if hint else str(error))
            ) from error
        except click.Abort:  # Ctrl-C or the end of the input at a question; all are asked before work begins
            click.echo("\nStopped before all questions were answered. Nothing was changed.", err=True)
            click.echo("Run the command again; --help lists options that answer the questions.", err=True)
            ctx.exit(1)
        except KeyboardInterrupt as signal:
            click.echo("\nTerminated." if isinstance(signal, _Terminated) else "\nInterrupted.", err=True)
            if ctx.invoked_subcommand in _GO_ON:
                click.echo(_GO_ON[ctx.invoked_subcommand], err=True)
            ctx.exit(INTERRUPTED)


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


_SETTINGS = {"help_option_names": ["-h", "--help"], "show_default": True}
_version_option = partial(click.version_option, None, "-V", "--version", package_name="energon-stream")


@click.group(cls=_Group, table=_ALL, context_settings=_SETTINGS)
@_version_option(message="%(package)s %(version)s")
def main() -> None:
    """Prepare and inspect datasets in folders or on object storage."""


@click.group(cls=_Group, table=_OF_ENERGON, context_settings=_SETTINGS, invoke_without_command=True)
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
