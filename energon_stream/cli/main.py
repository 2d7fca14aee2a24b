"""The groups of commands: they import commands when they are used, and word errors for the command line."""

from __future__ import annotations

import errno
import importlib
import re
from collections.abc import Collection
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from importlib import metadata
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from energon_stream import conventions
from energon_stream.cli.terminal import printable_messages
from energon_stream.cli.words import WORDS, in_words, with_names_of_energon
from energon_stream.errors import (
    CacheDirectoryError,
    ConfigError,
    EnergonStreamError,
    MissingPackageError,
    UntrustedCodeError,
    UntrustedUrlError,
)
from energon_stream.printable import as_sentence, printable
from energon_stream.system_errors import remedy

INTERRUPTED = 130
"""Exit status of a command that Ctrl-C or SIGTERM has ended."""

_NOT_OF_THE_CALL = CacheDirectoryError, MissingPackageError, UntrustedCodeError, UntrustedUrlError
"""Kinds of :class:`ConfigError` that tell of the machine or the data."""


class _WrongCall(click.ClickException):
    """The arguments of a command cannot work."""

    exit_code = 2


_ALL = frozenset(name for commands in WORDS["sections"].values() for name in commands)


def _docs() -> str:
    """Return the address of the documentation in pyproject.toml, or else its folder in the repository."""
    with suppress(metadata.PackageNotFoundError):
        urls = metadata.metadata("energon-stream").get_all("Project-URL", [])
        return next((url.partition(", ")[2] for url in urls if url.startswith("Documentation,")), "docs")
    return "docs"


class _Terminated(KeyboardInterrupt):
    """SIGTERM came."""


def terminate(number: int, frame: Any) -> NoReturn:
    """Treat a signal as Ctrl-C."""
    raise _Terminated


class _Group(click.Group):
    """Shows the library's errors as one line, in terms of flags. Any other exception keeps its traceback."""

    def __init__(self, *args: Any, names: Collection[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        shown = ((section, each.items()) for section, each in WORDS["sections"].items())
        found = {section: {name: text for name, text in each if name in names} for section, each in shown}
        self.sections = {section: each for section, each in found.items() if each}
        self.table = {name: text for each in self.sections.values() for name, text in each.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        name = WORDS["modules"].get(cmd_name, cmd_name.partition("-")[0])
        module = importlib.import_module(f"energon_stream.cli.{name}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return with_names_of_energon(cmd_name, command) if self.name == "energon" else command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or suggest one; give it its arguments in its own words."""
        typed = args[0]
        if typed not in self.table and typed[:1] != "-" and not ctx.resilient_parsing:
            near = get_close_matches(typed.lower()[:80], self.table)
            near.sort(key=lambda name: name[0] != typed[0].lower())
            hint = f"Did you mean {' or '.join(near)}?" if near else "--help lists the commands."
            elsewhere = WORDS["elsewhere"]
            if typed.lower() in elsewhere or not near:
                for word in get_close_matches(typed.lower()[:80], elsewhere, 1):
                    hint = elsewhere[word].replace("DOCS", _docs())
            hint = "It is a command of energon-stream." if typed in _ALL else hint
            raise click.UsageError(f"No such command {typed!r}. {hint}", ctx)
        name, command, rest = super().resolve_command(ctx, args)
        return name, command, in_words(name or "", rest, quiet=ctx.resilient_parsing)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete names of commands without importing any."""
        named = [item for item in self.table.items() if item[0].startswith(incomplete)]
        items = [CompletionItem(name, help=text) for name, text in named]
        return items + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        wide = max(map(len, self.table))
        for section, commands in self.sections.items():
            with formatter.section(section):
                formatter.write_dl([(name.ljust(wide), text) for name, text in commands.items()])

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help_text(ctx, formatter)
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(f"Documentation: {_docs()}")

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with printable_messages():
                return super().invoke(ctx)
        except EnergonStreamError as error:
            is_of_call = isinstance(error, ConfigError) and not isinstance(error, _NOT_OF_THE_CALL)
            shown = _WrongCall if is_of_call else click.ClickException
            raise shown(printable(in_flags(str(error), _flags_of(self, ctx)))) from error
        except OSError as error:
            if error.errno in (None, errno.EPIPE):  # click ends quietly where nobody reads any more
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
            if ctx.invoked_subcommand in WORDS["go_on"]:
                click.echo(WORDS["go_on"][ctx.invoked_subcommand], err=True)
            ctx.exit(INTERRUPTED)


def _flags_of(group: click.Group, ctx: click.Context) -> dict[str, str]:
    """Flags of the invoked command and of its subcommands, by argument."""
    command = group.get_command(ctx, ctx.invoked_subcommand or "")
    commands = [command, *getattr(command, "commands", {}).values()]
    options = [option for each in commands if each is not None for option in each.params]
    flags = {o.name: o.opts[0] for o in options if isinstance(o, click.Option) and o.name}
    for name, flag in WORDS["flags"].items():
        if any(known.startswith(flag.rstrip("…")) for known in [*flags.values()]):
            flags[name] = flag
    return flags


_ARGUMENT = r"[a-z_]+=(?:'[^']*'(?: or '[^']*')?|\[[^]]*\]|\w*\([^)]*\)|[\w…-]*)"


def _as_options(match: re.Match[str]) -> str:
    pairs = re.findall(r"'(\w+)': ([^,]+)", match[2])
    return " ".join(f"{match[1]} {name}={value.replace('True', 'true')}" for name, value in pairs)


def _as_flag(flag: str, off: str, value: str) -> str:
    return flag.replace("--", "--no-", 1) if off else f"{flag} {value}".rstrip()


def in_flags(text: str, flags: dict[str, str]) -> str:
    """Replace arguments of Python functions by flags: ``force=True``, ``split_config=``, ``cache_dir``.

    Of an argument for which the command has no flag, the text says that it is one of Python.
    """
    names = "|".join(sorted(map(re.escape, flags), key=len, reverse=True))
    given = rf"\b({names})=(?:True\b|(False\b)|\[?([\w']+)\]?)?"
    text = re.sub(given, lambda match: _as_flag(flags[match[1]], *match.groups("")[1:]), text)
    text = re.sub(rf"\b([Pp]ass {_ARGUMENT}(?:(?:, | and ){_ARGUMENT})*)", r"\1 in Python", text)
    # A word without "_" may be plain English.
    whole = rf"(?<![\w./-])({names})(?![\w./=-])"
    text = re.sub(whole, lambda match: flags[match[1]] if "_" in match[1] else match[1], text)
    return re.sub(r"(--[\w-]*storage-option) ?\{([^{}]*)\}", _as_options, text)


_SETTINGS = {"help_option_names": ["-h", "--help"], "show_default": True}
_version_option = partial(click.version_option, None, "-V", "--version", package_name="energon-stream")


@click.group(cls=_Group, names=_ALL, context_settings=_SETTINGS)
@_version_option(message="%(package)s %(version)s")
def main() -> None:
    """Start: convert → browse → train → top.

    Makes, shows and reshapes datasets in folders or on object storage; plans and follows training with them.
    """


@click.group(
    cls=_Group, names=WORDS["groups"]["energon"], context_settings=_SETTINGS, invoke_without_command=True
)
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


def __getattr__(name: str) -> click.Command:
    """Return a command by Megatron-Energon's name of it, such as ``info_command``, with its options."""
    command = energon.get_command(click.Context(energon), name.removesuffix("_command").replace("_", "-"))
    if command is None or not name.endswith("_command"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return command
