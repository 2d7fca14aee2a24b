"""Output of the commands: names that come from data cannot steer the terminal, nor pass for other lines."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from energon_stream.printable import printable, printable_line


def echo(line: object, *, err: bool = False) -> None:
    """Write one line, to standard error if ``err``; control characters and ends of lines are written out."""
    click.echo(printable_line(str(line)), err=err)


def echo_text(text: object, *, err: bool = False) -> None:
    """Write a text of several lines, such as an error's, to standard error if ``err``."""
    click.echo(printable(str(text)), err=err)


def note_json(ctx: click.Context, option: click.Parameter, value: bool) -> None:
    """Keep the value of ``--json`` for the rest of the command."""
    ctx.meta[__name__] = value


def wants_json() -> bool:
    """Return whether the user asks for one JSON document. Call this in the command's thread."""
    return bool(click.get_current_context().meta[__name__])


def emit(document: Any, *show: Callable[[], object]) -> None:
    """Print a result: the document if the user wants JSON, otherwise what the functions print of it."""
    if wants_json():
        click.echo(json.dumps(document, default=str))
        return
    for each in show:
        each()


class _Printable(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


@contextmanager
def printable_messages() -> Iterator[None]:
    """Write out control characters in warnings, and in log messages that no handler of the user takes."""
    show, last = warnings.formatwarning, logging.lastResort
    before = None if last is None else last.formatter

    def formatted(*args: object, **options: object) -> str:
        return printable(show(*args, **options))  # type: ignore[arg-type] # those of the original

    warnings.formatwarning = formatted
    if last is not None:
        last.setFormatter(_Printable())
    try:
        yield
    finally:
        warnings.formatwarning = show
        if last is not None:
            last.setFormatter(before)
