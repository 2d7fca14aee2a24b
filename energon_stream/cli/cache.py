"""``energon-stream cache``: inspect, verify and clear a node's cache."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, get_args

import click

from energon_stream.cli.options import (
    TIME_WITH_UNIT,
    cache_option,
    json_option,
    option,
    option_group,
    require_cache,
    show_size,
)
from energon_stream.cli.terminal import echo, emit
from energon_stream.errors import ConfigError, ObjectNotFoundError, StorageError
from energon_stream.printable import counted
from energon_stream.progress import Progress

if TYPE_CHECKING:
    from energon_stream.cache.directory import CacheDirectory
    from energon_stream.cache.maintenance import CachedDataset, CachedObject, VerifyReport


def _open(cache_dir: str | None) -> CacheDirectory:
    from energon_stream.cache.directory import CacheDirectory

    directory = CacheDirectory(require_cache(cache_dir).directory)
    if not directory.exists():
        raise ObjectNotFoundError("there is no cache here", where=directory.directory, hint="check the path")
    return directory


_directory = option_group(cache_option, json_option, directory=_open)
"""The command gets the directory of the cache, which must exist, as ``directory``."""


@click.group()
def cache() -> None:
    """Inspect, verify and clear a node's cache.

    All commands are safe while training runs.
    """


@cache.command()
@cache_option
@json_option
def path(cache_dir: str | None) -> None:
    """Show the directory in effect."""
    directory = str(require_cache(cache_dir).directory)
    emit({"directory": directory}, lambda: click.echo(directory))


@cache.command()
@click.argument("dataset", required=False)
@_directory
def ls(dataset: str | None, directory: CacheDirectory) -> None:
    """List datasets, or the objects of DATASET (its root URL)."""
    from energon_stream.cache.maintenance import list_datasets, list_objects

    if dataset is None:
        datasets = list_datasets(directory)
        document = {"datasets": [found._asdict() for found in datasets]}
        emit(document, lambda: _show_datasets(datasets))
        return
    objects = list(list_objects(directory, _root_folder(directory, dataset)))
    emit({"objects": [each._asdict() for each in objects]}, lambda: _show_objects(objects))


def _show_datasets(datasets: list[CachedDataset]) -> None:
    for found in datasets:
        used = " (in use)" if found.in_use else ""
        content = f"{show_size(found.bytes)} of {counted(found.objects, 'object')}"
        echo(f"{found.url}: {content}, last use {_time(found.last_use)}{used}")


def _show_objects(objects: list[CachedObject]) -> None:
    for each in objects:
        share = f"{show_size(each.bytes)} of {show_size(each.size)}"
        echo(f"{each.path} {each.etag}: {share}, last use {_time(each.last_use)}")


@cache.command()
@cache_option
@json_option
def stats(cache_dir: str | None) -> None:
    """Show how full the cache is."""
    from energon_stream.cache.maintenance import list_datasets

    config, directory = require_cache(cache_dir), _open(cache_dir)
    datasets, usage = list_datasets(directory), directory.ledger.usage()
    document = {
        "directory": str(config.directory),
        "quota": config.quota,
        "counted_bytes": None if usage is None else usage.bytes,
        "bytes": sum(found.bytes for found in datasets),
        "blocks": sum(found.blocks for found in datasets),
        "objects": sum(found.objects for found in datasets),
        "kept": _kept(directory),
        "free_bytes": shutil.disk_usage(config.directory).free,
        "datasets": [found._asdict() for found in datasets],
    }
    emit(document, lambda: _show_stats(document, datasets))


def _kept(directory: CacheDirectory) -> dict[str, dict[str, int]]:
    """Return number and bytes of the kept files, by kind."""
    from energon_stream.cache.kept_files import KeptKind, list_kept

    found = {kind: {"files": 0, "bytes": 0} for kind in get_args(KeptKind)}
    for kept in list_kept(directory.directory):
        found[kept.kind]["files"] += 1
        found[kept.kind]["bytes"] += kept.bytes
    return found


def _show_stats(found: dict[str, Any], datasets: list[CachedDataset]) -> None:
    quota, since_start, bytes_on_disk = found["quota"], found["counted_bytes"], found["bytes"]
    click.echo(f"Directory: {found['directory']}")
    click.echo(f"Quota: {'not set here' if quota is None else show_size(quota)}")
    since = "nothing since the machine started" if since_start is None else show_size(since_start)
    click.echo(f"Counted: {since}")
    blocks, objects = found["blocks"], found["objects"]
    of = f"{counted(blocks, 'block')} of {counted(objects, 'object')}"
    click.echo(f"On disk: {show_size(bytes_on_disk)} in {of}")
    kept = found["kept"]
    numbers = ", ".join(f"{each['files']} {kind}" for kind, each in kept.items())
    click.echo(f"Kept beside them: {show_size(sum(each['bytes'] for each in kept.values()))} in {numbers}")
    click.echo(f"Free on that disk: {show_size(found['free_bytes'])}")
    for each in datasets:
        echo(f"  {each.bytes / max(1, bytes_on_disk):6.1%}  {show_size(each.bytes):>9}  {each.url}")


@cache.command()
@_directory
def verify(directory: CacheDirectory) -> None:
    """Hash all blocks, remove damaged ones, and count the bytes anew.

    Exits with status 1 if a block was damaged.
    """
    from energon_stream.cache.maintenance import list_datasets, verify_cache

    total = sum(found.bytes for found in list_datasets(directory))
    with _named_errors(directory), Progress(total, unit="B") as shown:
        report = verify_cache(directory, shown.advance)
    emit(report._asdict(), lambda: _show_verified(report))
    if not report.counted:
        click.echo("The bytes were not counted anew, because other processes kept writing.", err=True)
    if report.damaged:
        raise SystemExit(1)


def _show_verified(report: VerifyReport) -> None:
    click.echo(
        f"Intact: {counted(report.blocks, 'block')} with {show_size(report.bytes)}; damaged: {report.damaged}"
    )
    if report.damaged:
        click.echo("Damaged blocks were removed; their bytes are fetched again when they are needed.")


@cache.command()
@_directory
@option("--dataset", metavar="URL")
@option("--older-than", type=TIME_WITH_UNIT)
def clear(directory: CacheDirectory, dataset: str | None, older_than: float | None) -> None:
    """Remove everything, one dataset, or what was not used for long.

    Running processes continue, and fetch removed bytes again when they need them. Indices of plain tars that
    they use stay.
    """
    from energon_stream.cache.maintenance import clear_cache

    root_folder = None if dataset is None else _root_folder(directory, dataset)
    with _named_errors(directory):
        report = clear_cache(directory, root_folder, unused_for=older_than)
    kept = f" and {report.kept_files} kept files" if report.kept_files else ""
    removed = f"Removed {counted(report.blocks, 'block')}{kept}, {show_size(report.bytes)}"
    emit(report._asdict(), lambda: click.echo(removed))


def _root_folder(directory: CacheDirectory, url: str) -> str:
    from energon_stream.cache.maintenance import list_datasets
    from energon_stream.cache.object_identity import clean_url

    folder = directory.root_folder(clean_url(url))
    if folder not in directory.root_folders():
        hint = f"It has: {', '.join(found.url for found in list_datasets(directory)) or 'none'}."
        raise ConfigError(f"the cache has no dataset {url}", where=directory.directory, hint=hint)
    return folder


@contextmanager
def _named_errors(directory: CacheDirectory) -> Iterator[None]:
    from energon_stream.cache.locks import Busy

    try:
        yield
    except Busy as error:
        problem = "another process holds a lock for too long"
        hint = "Find the process that hangs, and try again."
        raise StorageError(problem, where=directory.directory, hint=hint) from error
    except OSError as error:
        problem = f"the cache cannot be changed: {error.strerror}"
        raise StorageError(problem, where=directory.directory) from error


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds)) if seconds else "never"
