"""``energon-stream lint``: check that tars, indices and metadata agree, and that the samples can be made."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from energon_stream.cli.options import (
    dataset_config_option,
    engine_options,
    find_engine,
    find_split_parts,
    json_option,
    part_option,
    path_argument,
    progress_option,
    split_config_option,
    split_parts_option,
    storage_option,
)
from energon_stream.cli.terminal import echo, echo_text, emit
from energon_stream.conventions import conventions
from energon_stream.errors import ConfigError, DatasetError, FatalSampleError
from energon_stream.index.dataset import dataset_kind
from energon_stream.progress import Progress
from energon_stream.tools.lint.check_dataset import lint_dataset

if TYPE_CHECKING:
    from energon_stream.config.dataset_options import SharedOptions
    from energon_stream.tools.lint.report import LintReport


@click.command()
@path_argument
@storage_option
@progress_option
@split_parts_option
@dataset_config_option
@split_config_option
@click.option(
    "--parallel",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of processes that check shards.",
)
@click.option(
    "--decode/--no-decode",
    default=True,
    show_default=True,
    help="Also decode all parts, and make all samples.",
)
@click.option(
    "--sample-rate",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    help="Share of the samples that are looked at; only these are fetched.",
)
@click.option("--seed", default=0, help="Which samples --sample-rate takes.")
@json_option
@part_option
@engine_options
def lint(
    path: str,
    storage_options: dict[str, Any] | None,
    progress: bool | None,
    split_parts: str | None,
    dataset_config: str,
    split_config: str,
    parallel: int,
    decode: bool,
    sample_rate: float,
    seed: int,
    as_json: bool,
    part: Any,
    engine: str,
    ray_address: str | None,
) -> None:
    """Check tars against their indices, and decode all parts of all samples.

    PATH is a dataset, a folder of tars that are not prepared, tars such as a/{0..9}.tar, or a metadataset,
    of which only the samples are checked. Nothing that is wrong ends the check: all problems are listed. The
    exit status is 1 if there are any.
    """
    chosen = find_engine(engine, ray_address, parallel if parallel > 1 else 0)
    if conventions() == "energon" and not as_json:
        click.echo("Checking the index files...")
    if dataset_kind(path) in ("metadataset", "jsonl"):
        if sample_rate < 1 or part is not None or engine != "local":
            hint = "Check the datasets in it one by one."
            raise ConfigError("this option needs a folder of tars", where=path, hint=hint)
        options: SharedOptions = {
            "storage_options": storage_options,
            "split_config": split_config,
            "dataset_config": dataset_config,
        }
        splits = find_split_parts(path, split_parts, storage_options, None) if decode else []
        found = {split: _check_samples(path, split, options, parallel, progress, as_json) for split in splits}
        errors = sum(failed for _, failed in found.values())
        counts = {split: {"made": made, "failed": failed} for split, (made, failed) in found.items()}
        emit(as_json, {"clean": not errors, "splits": counts})
        raise click.exceptions.Exit(1 if errors else 0)
    with Progress(unit="tar", enabled=progress) as shown:
        report = lint_dataset(
            path,
            split_parts=None if split_parts is None else [name.strip() for name in split_parts.split(",")],
            split_config=split_config,
            dataset_config=dataset_config,
            decode=decode,
            sample_rate=sample_rate,
            seed=seed,
            part=part,
            engine=chosen,
            storage_options=storage_options,
            on_done=shown.reach,
            on_problem=None if as_json else lambda problem: echo_text(problem, err=True),
        )
    emit(as_json, report.as_json(), lambda: _show(report, sample_rate))
    if not report.is_clean:
        raise click.exceptions.Exit(1)


def _show(report: LintReport, sample_rate: float) -> None:
    verified = ", all samples compared with their checksums" if report.has_checksums else ""
    if sample_rate < 1:
        verified = f", {sample_rate:.3%} of the samples looked at"
    click.echo(
        f"{report.samples} samples in {report.shards} shards, {report.bad_shards} shards with errors{verified}"
    )
    for split, made in report.made.items():
        echo(f"{split}: {made} samples made, {report.failed[split]} errors")
    if report.refused:
        click.echo(f"{report.refused} parts are pickles, which were not decoded.")


@dataclass(frozen=True, slots=True)
class _Failures:
    """Handler of samples that fail, in any process. It shows errors, and counts them as bytes of a file."""

    path: str

    def __call__(self, error: Exception, sample: Any, sources: Any = None) -> None:
        with open(self.path, "ab") as file:
            file.write(b".")
        echo_text(error, err=True)

    def count(self) -> int:
        """Return the number of failures in all processes."""
        return os.path.getsize(self.path)


def _check_samples(
    path: str, split: str, options: SharedOptions, parallel: int, progress: bool | None, quiet: bool
) -> tuple[int, int]:
    """Make the samples of a split, and return how many were made, and how many failed. Too many failures in a
    row end the check.
    """
    from energon_stream.config import get_val_dataset
    from energon_stream.loader import get_loader
    from energon_stream.worker import WorkerConfig

    samples = 0
    with tempfile.NamedTemporaryFile(prefix="energon-lint-") as counted:
        note = _Failures(counted.name)
        config = WorkerConfig(0, 1, parallel if parallel > 1 else 0, global_error_handler=note)
        try:
            dataset = get_val_dataset(
                path, batch_size=None, split_part=split, worker_config=config, **options
            )
            with Progress(unit="sample", enabled=progress) as shown:
                for _ in dataset if parallel == 1 else get_loader(dataset):
                    samples += 1
                    shown.advance()
        except (DatasetError, FatalSampleError) as error:
            note(error, None)
        errors = note.count()
    if not quiet:
        echo(f"{split}: {samples} samples made, {errors} errors")
    return samples, errors
