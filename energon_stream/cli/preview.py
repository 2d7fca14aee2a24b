"""``energon-stream preview``: print samples, one after another."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from energon_stream.cli.options import (
    COUNT,
    dataset_arguments,
    dataset_config_option,
    find_split_parts,
    option,
    split_parts_option,
)
from energon_stream.cli.terminal import echo, echo_text, emit, wants_json
from energon_stream.errors import DatasetError, EnergonStreamError, FatalSampleError
from energon_stream.printable import counted, described

if TYPE_CHECKING:
    from energon_stream.index.bad_samples import BadList

_MOST = 10
"""Samples of a JSON document, unless the user gives a number."""


@click.command()
@dataset_arguments
@split_parts_option
@dataset_config_option
@option("--pictures/--no-pictures", default=None)
@option("--count", type=COUNT)
def preview(
    path: str,
    storage_options: dict[str, Any] | None,
    split_parts: list[str] | None,
    dataset_config: str,
    pictures: bool | None,
    count: int | None,
) -> None:
    """Print the samples of a dataset or metadataset, one after another.

    The command asks after each sample whether to go on; the end of the input means no. Images and other large
    values are described, and drawn on a terminal. The exit status is 1 if samples cannot be made.
    """
    from energon_stream.index.dataset import dataset_kind, read_metadata
    from energon_stream.storage import StoreSpec

    most = _MOST if wants_json() and count is None else count
    if pictures is None:
        pictures = sys.stdout.isatty()
    metadata = None
    if dataset_kind(path) == "webdataset":
        metadata = read_metadata(StoreSpec(path, storage_options), dataset_config=dataset_config)
    failures: list[Exception] = []

    told = set()

    def note(error: Exception, sample: Any, sources: Any = None) -> None:
        failures.append(error)
        text = failure_text(error)
        if text not in told:
            told.add(text)
            echo_text(text, err=True)

    options: dict[str, Any] = {"dataset_config": dataset_config, "storage_options": storage_options}
    numbered = (
        found
        for split in find_split_parts(path, split_parts, storage_options, metadata)
        for found in enumerate(make_samples(path, split, note, **options))
    )
    if wants_json():
        shown = [
            {
                name: {"type": type(value).__name__, "value": described(value)}
                for name, value in fields.items()
            }
            for fields in (_shown(sample) for _, sample in islice(numbered, most))
        ]
        emit({"samples": shown, "failures": [str(failure) for failure in failures]})
    else:
        _show(islice(numbered, most), pictures, asks=most is None)
    if failures:
        failed = sum(not isinstance(failure, FatalSampleError) for failure in failures) or 1
        raise click.ClickException(f"{counted(failed, 'sample')} cannot be made.")


def _show(numbered: Iterator[tuple[int, Any]], pictures: bool, asks: bool) -> None:
    for number, sample in numbered:
        click.echo(f"Sample {number}")
        for value, line in zip(_shown(sample).values(), describe(sample), strict=True):
            echo(line)
            if pictures:
                from energon_stream.cli.pictures import draw_value

                for drawn in draw_value(value):
                    click.echo(f"   {drawn}", color=True)
        if asks and not _goes_on():
            click.echo("Exiting Preview")
            break


def _goes_on() -> bool:
    try:
        return click.confirm("Continue?", default=False)
    except click.Abort:  # the end of the input, or Ctrl-C
        click.echo()
        return False


def make_samples(
    path: str,
    split: str,
    note: Callable[..., None],
    workers: int = 0,
    bad: BadList | None = None,
    **options: Any,
) -> Iterator[Any]:
    """Yield decoded samples; ``note`` gets the error of each that fails. Too many in a row end it.

    At the end, ``bad`` gets the samples that failed.
    """
    from energon_stream.config import get_val_dataset
    from energon_stream.loader import get_loader
    from energon_stream.worker import WorkerConfig

    config = WorkerConfig(0, 1, workers, global_error_handler=note)
    try:
        dataset = get_val_dataset(path, batch_size=None, split_part=split, worker_config=config, **options)
        loader = get_loader(dataset)
        try:
            yield from loader
        finally:
            if bad is not None:
                bad.add(loader.bad_samples())
    except (DatasetError, FatalSampleError) as error:
        note(error, None)


def failure_text(error: Exception, sample: Any = None) -> str:
    """Return the error of a sample in one line, with its class and place if the library did not raise it."""
    from energon_stream.pipeline.failure_notes import lines_of
    from energon_stream.pipeline.failures import field_of

    if isinstance(error, EnergonStreamError):
        return str(error)
    key = "" if sample is None else f"{field_of(sample, '__key__')}: "
    return f"{key}{type(error).__name__}: {error} ({lines_of(error)})"


def describe(sample: Any) -> Iterator[str]:
    """Yield a line for the key of a sample, and for each of its fields or parts.

    Example:
        >>> from energon_stream import CrudeSample
        >>> list(describe(CrudeSample(__key__="a", raw=b"123")))
        [" - __key__ (<class 'str'>): 'a'", " - raw (<class 'bytes'>): 3 bytes"]
    """
    for name, value in _shown(sample).items():
        yield f" - {name} ({type(value)}): {described(value)}"


def _shown(sample: Any) -> dict[str, Any]:
    """Return the fields or parts of a sample, and its key."""
    from energon_stream.samples import METADATA_FIELDS

    if isinstance(sample, Mapping):
        values = sample
    elif dataclasses.is_dataclass(sample):
        values = {field.name: getattr(sample, field.name) for field in dataclasses.fields(sample)}
    else:
        values = {"sample": sample}
    hidden = {*METADATA_FIELDS, "__shard__"} - {"__key__"}
    return {name: value for name, value in values.items() if name not in hidden}
