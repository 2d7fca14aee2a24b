"""``energon-stream table``: add, list and remove the tables beside the index, which views read."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from energon_stream.cli.options import dataset_arguments, flag, option
from energon_stream.cli.terminal import echo, emit
from energon_stream.printable import counted

if TYPE_CHECKING:
    from energon_stream.prepare.add_tables import TableReport


@click.command()
@dataset_arguments
@click.argument("file", required=False)
@option("--name")
@flag("--media")
@option("--remove", metavar="NAME")
def table(
    path: str, file: str | None, name: str | None, media: bool, remove: str | None, **options: Any
) -> None:
    """Put a table of values beside the index of a dataset, for views.

    PATH is a prepared dataset. FILE is a Parquet file with a row for each sample, in the order of the index,
    or with a column __key__. Without FILE, the tables of the dataset are listed.
    """
    from energon_stream.prepare.add_tables import add_media_table, add_table, list_tables, remove_table

    if (file is not None) + media + (remove is not None) > 1:
        raise click.UsageError("give only one of FILE, --media and --remove")
    if name is not None and file is None and not media:
        raise click.UsageError("--name is for a table that is added; give FILE or --media")
    if remove is not None:
        remove_table(path, remove, **options)
        emit({"removed": remove}, lambda: echo(f"removed {remove}"))
        return
    found: tuple[TableReport, ...]
    if file is not None:
        found = (add_table(path, file, name=name or "samples", **options),)
    elif media:
        found = (add_media_table(path, name=name or "media", **options),)
    else:
        found = list_tables(path, **options)
    emit({"tables": [{"name": each.name, **asdict(each)} for each in found]}, lambda: _show(found))


def _show(tables: tuple[TableReport, ...]) -> None:
    if not tables:
        echo("the dataset has no tables")
    for each in tables:
        columns = ", ".join(f"{name} ({kind})" for name, kind in each.columns.items())
        warning = "" if each.fits else "; OLDER THAN THE INDEX: add it again"
        echo(f"{each.name}: {counted(each.rows, 'row')} of {columns}{warning}")
