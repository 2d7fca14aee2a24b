"""Options that several commands share."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from energon_stream.errors import ConfigError
from energon_stream.index.media import MediaFilter

if TYPE_CHECKING:
    from energon_stream.index.media_tables import MediaReport

path_argument = click.argument("path")


def _parse(ctx: click.Context, option: click.Parameter, values: tuple[str, ...]) -> dict[str, Any] | None:
    options: dict[str, Any] = {}
    for item in values:
        key, equals, value = item.partition("=")
        if not equals:
            raise click.BadParameter(f"{item!r} is not KEY=VALUE")
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    return options or None


storage_option = click.option(
    "--storage-option",
    "storage_options",
    multiple=True,
    callback=_parse,
    metavar="KEY=VALUE",
    help="Option of the file system, such as endpoint_url=http://…; JSON values are parsed. Repeatable.",
)


progress_option = click.option(
    "--progress/--no-progress",
    default=None,
    help="Show progress: a bar on a terminal, a line a minute elsewhere. [default: on a terminal only]",
)


def media_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the three options that select media files; :func:`media_filter` reads them."""
    for option in (
        click.option(
            "--media-metadata-by-glob",
            metavar="PATTERN,…",
            help="Index the size of images with matching names: samplekey.part, or paths in a plain folder.",
        ),
        click.option(
            "--media-metadata-by-header",
            is_flag=True,
            help="Index the size of all files that begin like an image.",
        ),
        click.option(
            "--media-metadata-by-extension",
            is_flag=True,
            help="Index the size of all files with an image's extension.",
        ),
    ):
        command = option(command)
    return command


def media_filter(by_glob: str | None, by_header: bool, by_extension: bool) -> MediaFilter | None:
    """Return the selected filter, or None. Raises ConfigError if several are selected."""
    if (by_glob is not None) + by_header + by_extension > 1:
        raise ConfigError("several --media-metadata-by-… options are given", hint="give one of them")
    if by_glob is not None:
        return MediaFilter("GLOB", tuple(by_glob.split(",")))
    if by_header:
        return MediaFilter("HEADER")
    return MediaFilter("EXTENSION") if by_extension else None


def show_media(report: MediaReport | None) -> None:
    """Print how many media files were indexed."""
    if report is None:
        return
    click.echo(f"Stored media metadata of {report.stored} files.")
    if report.skipped_av:
        click.echo(
            f"Skipped {report.skipped_av} audio and video files: their metadata is not available.", err=True
        )
    if report.unreadable:
        click.echo(
            f"{len(report.unreadable)} files are not images, the first is {report.unreadable[0]}.", err=True
        )


def show_size(size: int) -> str:
    """Return a number of bytes with a unit."""
    number = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"
