"""``energon-stream when``: the steps of a run in which a sample was, or will be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from energon_stream.cli.options import json_option, storage_option
from energon_stream.cli.terminal import echo, emit
from energon_stream.lineage.run import open_run

if TYPE_CHECKING:
    from energon_stream.lineage.answers import Occurrence


@click.command()
@click.argument("run")
@storage_option
@click.option("--sample", "key", required=True, metavar="KEY", help="Key, with or without its tar.")
@click.option("--until", type=int, help="One past the last step. [default: the recorded steps]")
@json_option
def when(
    run: str, storage_options: dict[str, Any] | None, key: str, until: int | None, as_json: bool
) -> None:
    """Print the steps and ranks in which a sample was, or will be.

    RUN is the folder that the loader got as run=.
    """
    found = open_run(run, storage_options=storage_options).when(key, until=until)
    emit(as_json, {"steps": [each.as_dict() for each in found]}, lambda: _print(key, found))


def _print(key: str, found: list[Occurrence]) -> None:
    if not found:
        echo(f"{key} is in none of these steps.")
    for each in found:
        how = "" if each.recorded else ", planned"
        echo(f"Step {each.step}, rank {each.rank}: batch {each.batch} of stream {each.stream}{how}")
