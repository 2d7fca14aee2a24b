"""``energon-stream repair``: write odd or damaged tars anew as a sound dataset."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, get_args

import click

from energon_stream.cli.options import (
    engine_options,
    flag,
    json_option,
    new_split_options,
    option,
    progress_option,
    show_size,
    source_storage_option,
    storage_option,
    tmp_path_option,
    written_shards_options,
)
from energon_stream.cli.terminal import echo, emit
from energon_stream.printable import counted
from energon_stream.progress import Progress
from energon_stream.tools.repair import DottedKeys, Duplicates

if TYPE_CHECKING:
    from energon_stream.tools.repair.repair_dataset import RepairReport

_SHOWN = 3  # names of a kind


@click.command()
@click.argument("source")
@click.argument("destination")
@option("--dotted-keys", type=click.Choice(get_args(DottedKeys)), default="auto")
@option("--duplicates", type=click.Choice(get_args(Duplicates)), default="rename")
@option("--encoding")
@flag("--frames")
@written_shards_options
@flag("--dry-run")
@json_option
@engine_options()
@new_split_options
@tmp_path_option
@source_storage_option
@storage_option
@progress_option
def repair(source: str, destination: str, progress: bool | None, **options: Any) -> None:
    """Write the whole samples of odd tars to DESTINATION, ready for training, and report what was changed.

    SOURCE is a folder with tars, or a path of tars; it is only read. Tars may be cut off, joined, compressed,
    damaged or unsorted, and have links, files of operating systems and names that are not UTF-8. The report
    is in .nv-meta/repair.json, too. A run that was stopped goes on when the command is run again.
    """
    from energon_stream.tools.repair.repair_dataset import repair_dataset

    with Progress(unit="step", enabled=progress) as shown:
        report = repair_dataset(source, destination, progress=shown.reach, **options)
    emit(asdict(report), lambda: _show(report))


def _show(report: RepairReport) -> None:
    from energon_stream.tools.repair.sound_samples import DROPPED, KINDS

    written = f"{counted(report.shards, 'shard')}, {show_size(report.size)}"
    of = f"{report.samples} of {counted(len(report.tars), 'tar')}, {report.dropped} dropped"
    echo(f"Samples: {of} ({written if report.shards else 'nothing written yet'})")
    for kind, text in KINDS.items():
        if kind in report.changes:
            found = [f"{tar.path}: {name}" for tar in report.tars for name in tar.names.get(kind, ())]
            shown = found if kind in ("unreadable_tar", *DROPPED) else found[:_SHOWN]
            echo(f"{report.changes[kind]:>9} {text}")
            for name in shown[:100]:
                echo(f"          {name}")
    for note in report.notes:
        echo(f"Note: {note}")
