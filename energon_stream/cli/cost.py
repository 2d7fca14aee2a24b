"""``energon-stream cost``: write one number a sample beside the index, for planned packing."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from energon_stream.cli.options import (
    engine_options,
    find_engine,
    json_option,
    path_argument,
    progress_option,
    storage_option,
)
from energon_stream.cli.terminal import echo, emit
from energon_stream.progress import Progress
from energon_stream.tools.curation.compute_costs import compute_costs


@click.command()
@path_argument
@click.option("--name", required=True, help="Name of the costs, such as tokens.")
@click.option(
    "--function", metavar="MODULE:FUNCTION", help="Gets a sample's parts as bytes, returns its cost."
)
@click.option(
    "--from-media",
    "media",
    metavar="FORMULA",
    help="Take costs from fields of the media in the index, such as 'width * height / 196'.",
)
@click.option("--table", metavar="FILE", help="Take costs from a Parquet file with a row a sample.")
@click.option(
    "--column", help="Column of the file, by default NAME; without --table, of the tables beside the index."
)
@click.option(
    "--parallel",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of processes that read shards.",
)
@click.option("--force", is_flag=True, help="Read all shards again, also those that have costs.")
@storage_option
@progress_option
@json_option
@engine_options
def cost(
    path: str,
    name: str,
    function: str | None,
    media: str | None,
    table: str | None,
    column: str | None,
    parallel: int,
    force: bool,
    storage_options: dict[str, Any] | None,
    progress: bool | None,
    as_json: bool,
    engine: str,
    ray_address: str | None,
) -> None:
    """Write the cost of each sample, such as its tokens, beside the index.

    PATH is a prepared dataset. Shards that have costs already, and have not changed, are not read again.
    """
    chosen = find_engine(engine, ray_address, parallel if parallel > 1 else 0)
    with Progress(unit="tar", enabled=progress) as shown:
        report = compute_costs(
            path,
            name,
            function,
            media=media,
            table=table,
            column=column,
            engine=chosen,
            force=force,
            storage_options=storage_options,
            on_done=shown.reach,
        )
    emit(
        as_json,
        asdict(report),
        lambda: echo(
            f"{report.samples} samples in {report.shards} shards, of which {report.computed} were read; "
            f"{name}: {report.total:,.0f} in all, {report.largest:,.0f} at most"
        ),
    )
