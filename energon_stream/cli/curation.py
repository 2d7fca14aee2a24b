"""``energon-stream diff``, ``merge``, ``split``, ``sample`` and ``cost``: tools for whole datasets."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from energon_stream.cli.options import (
    COUNT,
    dataset_arguments,
    flag,
    json_option,
    option,
    parallel_engine_options,
    progress_option,
    seed_option,
    shard_size_options,
    share_option,
    storage_option,
)
from energon_stream.cli.terminal import echo, echo_text, emit
from energon_stream.errors import ConfigError, ObjectNotFoundError
from energon_stream.printable import counted
from energon_stream.progress import Progress

if TYPE_CHECKING:
    from energon_stream.tools.curation.diff import DatasetDiff


@click.command()
@click.argument("first")
@click.argument("second")
@storage_option
@progress_option
@option("--content/--no-content", default=True)
@json_option
@parallel_engine_options
def diff(first: str, second: str, progress: bool | None, **options: Any) -> None:
    """Compare two datasets: shards, keys, parts of all samples, and metadata.

    Samples are matched by key, in whatever shards they are. The exit status is 1 if anything differs.
    """
    from energon_stream.tools.curation.diff import diff_datasets

    with Progress(unit="tar", enabled=progress) as shown:
        found = diff_datasets(first, second, on_done=shown.reach, **options)
    emit(found.as_json(), lambda: _show(first, second, found))
    if not found.is_equal:
        raise click.exceptions.Exit(1)


def _show(first: str, second: str, found: DatasetDiff) -> None:
    for name, shards in ((first, found.only_first_shards), (second, found.only_second_shards)):
        for shard in shards:
            echo(f"Only in {name}: {shard}")
    for shard, (before, after) in found.counts.items():
        echo(f"{shard}: {before} and {after} samples")
    for what, number, keys in (
        (f"only in {first}", found.only_first, found.only_first_keys),
        (f"only in {second}", found.only_second, found.only_second_keys),
        ("in both, with other parts", found.changed, found.changed_keys),
    ):
        if number:
            more = ", …" if number > len(keys) else ""
            echo(f"{counted(number, 'sample')} {what}: {', '.join(keys)}{more}")
    for name in found.metadata:
        echo(f"{name} differs")
    if found.same_samples:
        click.echo("The samples are the same.")


@click.command()
@click.argument("sources", nargs=-1, required=True)
@click.argument("target")
@storage_option
@progress_option
@parallel_engine_options
@json_option
def merge(sources: tuple[str, ...], target: str, progress: bool | None, **options: Any) -> None:
    """Join datasets to a new one, TARGET, which has copies of their shards.

    To read several datasets as one without copying, name them in a metadataset.
    """
    from energon_stream.tools.curation.derive import merge_datasets

    with Progress(unit="tar", enabled=progress) as shown:
        counts = merge_datasets(sources, target, on_done=shown.reach, **options)
    samples = sum(counts.values())
    document = {"target": target, "samples": samples, "shards": counts}
    emit(document, lambda: echo(f"{target}: {counted(samples, 'sample')} in {counted(len(counts), 'shard')}"))


@click.command()
@dataset_arguments
@click.argument("targets", nargs=-1, required=True, metavar="NAME=TARGET…")
@option("--ratio", metavar="NAME=SHARE,…")
@option("--keys", multiple=True, metavar="NAME=FILE")
@option("--rest", metavar="NAME")
@seed_option
@shard_size_options
def split(
    path: str,
    targets: tuple[str, ...],
    ratio: str | None,
    keys: tuple[str, ...],
    **options: Any,
) -> None:
    """Divide the samples of a dataset among new datasets, at random or by lists of keys."""
    from energon_stream.tools.curation.derive import split_dataset

    shares = None if ratio is None else _pairs("--ratio", ratio.split(","))
    try:
        numbers = None if shares is None else {name: float(share) for name, share in shares.items()}
    except ValueError as error:
        raise ConfigError(f"--ratio is {ratio!r:.80}", hint="Use numbers: train=9,val=1.") from error
    found = split_dataset(
        path,
        _pairs("a target", targets),
        ratio=numbers,
        keys={name: _lines(file) for name, file in _pairs("--keys", keys).items()} if keys else None,
        **options,
    )
    lines = "\n".join(f"{name}: {counted(count, 'sample')}" for name, count in found.items())
    emit({"samples": found}, lambda: echo_text(lines))


@click.command()
@dataset_arguments
@click.argument("target")
@option("--count", type=COUNT)
@share_option()
@option("--keys", metavar="FILE")
@seed_option
@shard_size_options
def sample(path: str, target: str, keys: str | None, **options: Any) -> None:
    """Make a small dataset, TARGET, of some samples of a large one. Only their bytes are fetched."""
    from energon_stream.tools.curation.derive import sample_dataset

    wanted = None if keys is None else _lines(keys)
    count = sample_dataset(path, target, keys=wanted, **options)
    document = {"target": target, "samples": count}
    emit(document, lambda: echo(f"{target}: {counted(count, 'sample')}"))


@click.command()
@dataset_arguments
@option("--name", required=True)
@option("--function", metavar="MODULE:FUNCTION")
@option("--from-media", "media", metavar="FORMULA")
@option("--table", metavar="FILE")
@option("--column")
@flag("--force")
@progress_option
@parallel_engine_options
def cost(path: str, name: str, progress: bool | None, **options: Any) -> None:
    """Write the cost of each sample, such as its tokens, beside the index.

    PATH is a prepared dataset. Shards that have costs already, and have not changed, are not read again.
    """
    from energon_stream.tools.curation.compute_costs import compute_costs

    with Progress(unit="tar", enabled=progress) as shown:
        report = compute_costs(path, name, on_done=shown.reach, **options)
    emit(
        asdict(report),
        lambda: echo(
            f"{counted(report.samples, 'sample')} in {counted(report.shards, 'shard')}, "
            f"of which {report.computed} were read; "
            f"{name}: {report.total:,.0f} in all, {report.largest:,.0f} at most"
        ),
    )


def _pairs(what: str, texts: tuple[str, ...] | list[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals or not value or name in pairs:
            raise ConfigError(f"{what} is {text!r:.80}", hint="Use NAME=VALUE, each name once.")
        pairs[name] = value
    return pairs


def _lines(file: str) -> list[str]:
    try:
        return [line for line in Path(file).read_text().splitlines() if line]
    except (OSError, UnicodeDecodeError) as error:
        kind = ObjectNotFoundError if isinstance(error, FileNotFoundError) else ConfigError
        raise kind(f"the list of keys cannot be read: {error}", where=file, hint="check the path") from error
