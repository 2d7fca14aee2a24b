"""Options that several commands share."""

from __future__ import annotations

import json
from typing import Any

import click

__all__ = ["path_argument", "storage_option"]

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
