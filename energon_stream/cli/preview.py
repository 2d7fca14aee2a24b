"""``energon-stream preview``: print samples, one after another."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import click

from energon_stream.cli.options import (
    dataset_config_option,
    find_split_parts,
    path_argument,
    split_parts_option,
    storage_option,
)
from energon_stream.cli.terminal import echo, echo_text
from energon_stream.errors import DatasetError, FatalSampleError
from energon_stream.index.dataset import dataset_kind, read_metadata
from energon_stream.samples import METADATA_FIELDS
from energon_stream.storage import StoreSpec

_LONGEST = 1000
"""Characters of a text, and items of a list, that are shown."""


@click.command()
@path_argument
@storage_option
@split_parts_option
@dataset_config_option
def preview(
    path: str, storage_options: dict[str, Any] | None, split_parts: str | None, dataset_config: str
) -> None:
    """Print the samples of a dataset or metadataset, one after another.

    The command asks after each sample whether to go on; the end of the input means no. Images and other large
    values are described. The exit status is 1 if samples cannot be made.
    """
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
    for number, sample in numbered:
        click.echo(f"Sample {number}")
        for line in describe(sample):
            echo(line)
        if not _goes_on():
            click.echo("Exiting Preview")
            break
    if failures:
        raise click.ClickException(f"{len(failures)} samples cannot be made.")


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
    from energon_stream.recipe import get_val_dataset
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
    hidden = {*METADATA_FIELDS, "__shard__"} - {"__key__"}
    values = sample if isinstance(sample, Mapping) else _fields(sample)
    for name, value in values.items():
        if name not in hidden:
            yield f" - {name} ({type(value)}): {_text(value)}"


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
