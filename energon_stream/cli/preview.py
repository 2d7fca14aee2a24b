"""``energon-stream preview``: print samples, one after another."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import click

from energon_stream.cli.options import (
    dataset_arguments,
    dataset_config_option,
    find_split_parts,
    split_parts_option,
)
from energon_stream.cli.terminal import echo, echo_text, emit, wants_json
from energon_stream.errors import DatasetError, FatalSampleError
from energon_stream.index.dataset import dataset_kind, read_metadata
from energon_stream.samples import METADATA_FIELDS
from energon_stream.storage import StoreSpec

_MOST = 10
"""Samples of a JSON document, unless the user gives a number."""

_LONGEST = 1000
"""Characters of a text, and items of a list, that are shown."""


@click.command()
@dataset_arguments
@split_parts_option
@dataset_config_option
@click.option(
    "--pictures/--no-pictures",
    default=None,
    help="Draw images and frames, lay out JSON and texts. [default: on a terminal]",
)
@click.option(
    "--count",
    type=click.IntRange(min=1),
    help="Print so many samples, and ask nothing. [default: ask; 10 with --json]",
)
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
    most = _MOST if wants_json() and count is None else count
    if pictures is None:
        pictures = sys.stdout.isatty()
    metadata = None
    if dataset_kind(path) == "webdataset":
        metadata = read_metadata(StoreSpec(path, storage_options), dataset_config=dataset_config)
    failures: list[Exception] = []
    splits = find_split_parts(path, split_parts, storage_options, metadata)
    numbered = (
        found
        for split in splits
        for found in enumerate(_samples(path, split, dataset_config, storage_options, failures))
    )
    if wants_json():
        shown = [_described(sample) for _, sample in islice(numbered, most)]
        emit({"samples": shown, "failures": [str(failure) for failure in failures]})
    else:
        _show(islice(numbered, most), pictures, asks=most is None)
    if failures:
        raise click.ClickException(f"{len(failures)} samples cannot be made.")


def _show(numbered: Iterator[tuple[int, Any]], pictures: bool, asks: bool) -> None:
    for number, sample in numbered:
        click.echo(f"Sample {number}")
        _show_sample(sample, pictures)
        if asks and not _goes_on():
            click.echo("Exiting Preview")
            break


def _show_sample(sample: Any, pictures: bool) -> None:
    for value, line in zip(_shown(sample).values(), describe(sample), strict=True):
        echo(line)
        if pictures:
            from energon_stream.cli.pictures import draw_value

            for drawn in draw_value(value):
                click.echo(f"   {drawn}", color=True)


def _goes_on() -> bool:
    try:
        return click.confirm("Continue?", default=False)
    except click.Abort:  # the end of the input, or Ctrl-C
        click.echo()
        return False


def _samples(
    path: str,
    split: str,
    dataset_config: str,
    storage_options: dict[str, Any] | None,
    failures: list[Exception],
) -> Iterator[Any]:
    """Yield decoded samples; show and collect errors of those that fail."""
    from energon_stream.config import get_val_dataset
    from energon_stream.worker import WorkerConfig

    def note(error: Exception, sample: Any, sources: Any = None) -> None:
        failures.append(error)
        echo_text(error, err=True)

    config = WorkerConfig(0, 1, 0, global_error_handler=note)
    try:
        yield from get_val_dataset(
            path,
            batch_size=None,
            split_part=split,
            worker_config=config,
            dataset_config=dataset_config,
            storage_options=storage_options,
        )
    except (DatasetError, FatalSampleError) as error:
        note(error, None)


def describe(sample: Any) -> Iterator[str]:
    """Yield a line for the key of a sample, and for each of its fields or parts.

    Example:
        >>> from energon_stream import CrudeSample
        >>> list(describe(CrudeSample(__key__="a", raw=b"123")))
        [" - __key__ (<class 'str'>): 'a'", " - raw (<class 'bytes'>): 3 bytes"]
    """
    for name, value in _shown(sample).items():
        yield f" - {name} ({type(value)}): {_text(value)}"


def _described(sample: Any) -> dict[str, dict[str, str]]:
    """Return type and text of each field, by its name."""
    return {
        name: {"type": type(value).__name__, "value": _text(value)} for name, value in _shown(sample).items()
    }


def _shown(sample: Any) -> dict[str, Any]:
    hidden = {*METADATA_FIELDS, "__shard__"} - {"__key__"}
    values = sample if isinstance(sample, Mapping) else _fields(sample)
    return {name: value for name, value in values.items() if name not in hidden}


def _fields(sample: Any) -> dict[str, Any]:
    if not dataclasses.is_dataclass(sample):
        return {"sample": sample}
    return {field.name: getattr(sample, field.name) for field in dataclasses.fields(sample)}


def _text(value: Any) -> str:
    """Describe a value by its size and form if it is large."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"{len(value)} bytes"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{type(value).__name__}(shape={tuple(value.shape)}, dtype={value.dtype})"
    if hasattr(value, "mode") and hasattr(value, "size"):
        return f"{type(value).__name__}(mode={value.mode}, size={value.size})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name!r}: {_text(item)}" for name, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        more = f", … ({len(value)} items)" if len(value) > _LONGEST else ""
        return "[" + ", ".join(map(_text, value[:_LONGEST])) + more + "]"
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text)} characters)"
