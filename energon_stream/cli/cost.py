"""``energon-stream cost``: write one number a sample beside the index, for planned packing."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from energon_stream.cli.options import dataset_arguments, flag, parallel_engine_options, progress_option
from energon_stream.cli.terminal import echo, emit
from energon_stream.progress import Progress
from energon_stream.tools.curation.compute_costs import compute_costs


@click.command()
@dataset_arguments
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
@flag("--force", help="Read all shards again, also those that have costs.")
@progress_option
@parallel_engine_options
def cost(path: str, name: str, progress: bool | None, **options: Any) -> None:
    """Write the cost of each sample, such as its tokens, beside the index.

    PATH is a prepared dataset. Shards that have costs already, and have not changed, are not read again.
    """
    with Progress(unit="tar", enabled=progress) as shown:
        report = compute_costs(path, name, on_done=shown.reach, **options)
    emit(
        asdict(report),
        lambda: echo(
            f"{report.samples} samples in {report.shards} shards, of which {report.computed} were read; "
            f"{name}: {report.total:,.0f} in all, {report.largest:,.0f} at most"
        ),
    )
