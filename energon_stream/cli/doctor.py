"""``energon-stream doctor`` and ``bench``: whether a dataset can be read, how fast, with which settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from energon_stream.cli.options import (
    COUNT,
    NUMBER,
    SIZE,
    TIME,
    cache_option,
    dataset_arguments,
    file_option,
    find_cache,
    option,
    picture_option,
    several,
)
from energon_stream.cli.terminal import echo, emit, wants_json
from energon_stream.cli.training_arguments import order_options, require_batch_size

if TYPE_CHECKING:
    from energon_stream.tools.doctor import BenchRun, Diagnosis


@click.command()
@dataset_arguments
@cache_option
@option("--seconds", type=TIME, default=2.0)
def doctor(path: str, storage_options: dict[str, Any] | None, cache_dir: str | None, seconds: float) -> None:
    """Find out whether a dataset can be read, how fast, and with which settings.

    PATH is a dataset, metadataset, tars, or a folder of them. Looks at the server's clock and region,
    credentials, the metadata of each dataset, latency and rate by number of requests at one time, the cache's
    disk, and limits of this machine. Nothing is written to the store. Exits with status 1 if training cannot
    work.
    """
    from energon_stream.tools.doctor import diagnose

    found = diagnose(
        path,
        storage_options=storage_options,
        cache=find_cache(cache_dir),
        seconds=seconds,
        on_finding=None if wants_json() else echo,
    )
    emit(found.as_json(), lambda: _show(found))
    if not found.is_healthy:
        raise SystemExit(1)


def _show(found: Diagnosis) -> None:
    if found.speeds:
        echo("")
        echo("requests at one time      MB/s   ms a request")
        for speed in found.speeds:
            rate, took = speed.bytes_per_second / 1e6, speed.seconds_a_request * 1000
            echo(f"{speed.in_flight:20}{rate:10,.1f}{took:15,.1f}")
        arguments = ", ".join(f"{name}={value}" for name, value in found.settings.items())
        echo("")
        echo(f"Settings: get_train_dataset(…, read_options=ReadOptions({arguments}))")
    echo(found.verdict)


@click.command()
@order_options
@option("--seconds", type=TIME, default=60.0)
@option("--num-workers", type=several(NUMBER))
@option("--max-in-flight", type=several(COUNT), default="16,64,128")
@option("--max-request", type=several(SIZE), default="1MiB,6MiB,16MiB")
@file_option("--html")
@picture_option
def bench(
    path: str,
    batch_size: int | None,
    num_workers: list[int] | None,
    max_in_flight: list[int],
    max_request: list[int],
    html: str | None,
    picture: str | None,
    **options: Any,
) -> None:
    """Measure how fast training reads PATH with several settings, and print those to use.

    Reads as training with these options does, without a cache, and decodes samples. Each setting is changed
    in turn: workers, requests at one time, size of requests.
    """
    from energon_stream.tools.doctor import bench as measure
    from energon_stream.tools.doctor.measure import page, save_picture

    found = measure(
        path,
        batch_size=require_batch_size(batch_size, "batches are measured"),
        num_workers=num_workers,
        max_in_flight=max_in_flight,
        max_request=max_request,
        on_run=None if wants_json() else _show_run,
        **options,
    )
    if html is not None:
        Path(html).write_text(page(found), encoding="utf-8")
    if picture is not None:
        save_picture(found, picture)
    code = f"Settings: get_train_dataset(…, {found.code})"
    emit(found.as_json(), lambda: echo(found.verdict), lambda: echo(code))


def _show_run(run: BenchRun) -> None:
    rate = run.bytes_per_second / 1e6
    echo(f"{run.setting!s:40}{run.samples_per_second:12,.0f} samples/s{rate:10,.1f} MB/s received")
