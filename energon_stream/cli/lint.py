"""``energon-stream lint``: check that tars, indices and metadata agree, and that the samples can be made."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from energon_stream.cli.options import (
    dataset_arguments,
    dataset_config_option,
    find_split_parts,
    option,
    parallel_engine_options,
    part_option,
    progress_option,
    seed_option,
    share_option,
    split_config_option,
    split_parts_option,
)
from energon_stream.cli.preview import failure_text, make_samples
from energon_stream.cli.terminal import echo, echo_text, emit, wants_json
from energon_stream.conventions import conventions
from energon_stream.errors import ConfigError, EnergonStreamError
from energon_stream.printable import counted
from energon_stream.progress import Progress

if TYPE_CHECKING:
    from energon_stream.engine.cluster import RayEngine
    from energon_stream.engine.processes import LocalEngine
    from energon_stream.index.bad_samples import BadList
    from energon_stream.index.dataset import DatasetMetadata
    from energon_stream.tools.lint.report import LintReport


@click.command()
@dataset_arguments
@progress_option
@split_parts_option
@dataset_config_option
@split_config_option
@option("--decode/--no-decode", default=True)
@share_option(default=1.0)
@seed_option
@option("--bad", metavar="FILE")
@part_option
@parallel_engine_options
def lint(
    path: str,
    progress: bool | None,
    split_parts: list[str] | None,
    engine: LocalEngine | RayEngine,
    bad: str | None,
    **options: Any,
) -> None:
    """Check tars against their indices, and decode all parts of all samples.

    PATH is a dataset, a folder of tars that are not prepared, tars such as a/{0..9}.tar, or a metadataset,
    of which only the samples are checked. Nothing that is wrong ends the check: all problems are listed. The
    exit status is 1 if there are any.
    """
    from energon_stream.engine.cluster import RayEngine
    from energon_stream.index.bad_samples import BadList, write_bad_samples
    from energon_stream.index.dataset import dataset_kind
    from energon_stream.tools.lint.check_dataset import lint_dataset

    share = options["share"]
    if conventions() == "energon" and not wants_json():
        click.echo("Checking the index files...")
    metadata = _metadata_of_files(path, options) if dataset_kind(path) == "webdataset" else None
    if metadata is not None or dataset_kind(path) not in ("webdataset", "tars"):
        if share < 1 or options["part"] is not None or isinstance(engine, RayEngine):
            hint = "check all samples of it, or the datasets in it one by one"
            raise ConfigError("this option needs a folder of tars", where=path, hint=hint)
        shared = {name: options[name] for name in ("storage_options", "split_config", "dataset_config")}
        decoded = options["decode"]
        splits = find_split_parts(path, split_parts, options["storage_options"], metadata) if decoded else []
        found = BadList()
        counts = {
            split: _check_samples(path, split, shared, engine.processes or 0, progress, found)
            for split in splits
        }
        samples = found.samples
        clean = not any(count["failed"] for count in counts.values())
        emit({"clean": clean, "splits": counts})
    else:
        on_problem = None if wants_json() else partial(echo_text, err=True)
        with Progress(unit="tar", enabled=progress) as shown:
            report = lint_dataset(
                path,
                split_parts=split_parts,
                engine=engine,
                on_done=shown.reach,
                on_problem=on_problem,
                **options,
            )
        emit(report.as_json(), lambda: _show(report, share))
        clean, samples = report.is_clean, report.bad_samples()
    if bad is not None:
        write_bad_samples(bad, samples, storage_options=options["storage_options"])
    if not clean:
        raise click.exceptions.Exit(1)


def _metadata_of_files(path: str, options: dict[str, Any]) -> DatasetMetadata | None:
    """Return the metadata of a prepared folder of files that are no tars; None for all else."""
    from energon_stream.index.dataset import read_metadata
    from energon_stream.index.file_format import find_format
    from energon_stream.index.info_files import read_info
    from energon_stream.storage import StoreSpec

    spec = StoreSpec(path, options["storage_options"])
    with suppress(EnergonStreamError):  # which checking the tars says
        if any(map(find_format, read_info(spec.open()))):
            names = {name: options[name] for name in ("split_config", "dataset_config")}
            return read_metadata(spec, **names)
    return None


def _show(report: LintReport, share: float) -> None:
    verified = ", all samples compared with their checksums" if report.has_checksums else ""
    if share < 1:
        verified = f", {share:.3%} of the samples looked at"
    click.echo(
        f"{counted(report.samples, 'sample')} in {counted(report.shards, 'shard')}, "
        f"{counted(report.bad_shards, 'shard')} with errors{verified}"
    )
    for remark in report.remarks:
        echo_text(remark, err=True)
    for split, made in report.made.items():
        echo(f"{split}: {counted(made, 'sample')} made, {counted(report.failed[split], 'error')}")
    if report.refused:
        click.echo(f"Not decoded, as pickles may run code: {counted(report.refused, 'part')}.")


def _note_failure(path: str, error: Exception, sample: Any, sources: Any = None) -> None:
    """Show the error of a sample that fails, in any process, and count it as a byte of a file."""
    with open(path, "ab") as file:
        file.write(b".")
    echo_text(failure_text(error, sample), err=True)


def _check_samples(
    path: str, split: str, options: dict[str, Any], workers: int, progress: bool | None, bad: BadList
) -> dict[str, int]:
    """Count the samples of a split that can be made, and that fail."""
    from energon_stream.temporary_folders import temporary_folder

    samples = 0
    with temporary_folder(use="lint") as folder:
        noted = os.path.join(folder, "failures")
        open(noted, "wb").close()
        with Progress(unit="sample", enabled=progress) as shown:
            note = partial(_note_failure, noted)
            for _ in make_samples(path, split, note, workers, bad, **options):
                samples += 1
                shown.advance()
        errors = os.path.getsize(noted)
    if not wants_json():
        echo(f"{split}: {counted(samples, 'sample')} made, {counted(errors, 'error')}")
    return {"made": samples, "failed": errors}
