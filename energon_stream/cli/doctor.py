"""``energon-stream doctor`` and ``bench``: whether a dataset can be read, how fast, with which settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from energon_stream.cli.options import Command, cache_option, dataset_arguments, find_cache, picture_option
from energon_stream.cli.terminal import echo, emit, wants_json
from energon_stream.cli.training_arguments import order_options, require_batch_size
from energon_stream.tools.doctor import BenchRun, Diagnosis, diagnose
from energon_stream.tools.doctor import bench as measure
from energon_stream.tools.doctor.measure import page, save_picture


@click.command()
@dataset_arguments
@cache_option
@click.option("--seconds", default=2.0, help="Time of each of the four measurements of speed.")
def doctor(path: str, storage_options: dict[str, Any] | None, cache_dir: str | None, seconds: float) -> None:
    """Find out whether a dataset can be read, how fast, and with which settings.

    PATH is a dataset, metadataset, tars, or a folder of them. Looks at the server's clock and region,
    credentials, the metadata of each dataset, latency and rate by number of requests at one time, the cache's
    disk, and limits of this machine. Nothing is written to the store. Exits with status 1 if training cannot
    work.
    """
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


def _numbers_option(flag: str, default: str | None, metavar: str, text: str) -> Command:
    def parse(ctx: click.Context, option: click.Parameter, value: str | None) -> list[int] | None:
        try:
            return None if value is None else [int(number) for number in value.split(",")]
        except ValueError:
            raise click.BadParameter(f"{value!r} is no list of numbers, such as 1,2,4") from None

    return click.option(flag, callback=parse, default=default, metavar=metavar, help=text)


@click.command()
@dataset_arguments
@order_options
@click.option("--seconds", default=60.0, help="Time of all runs together.")
@_numbers_option("--workers", None, "N,…", "Workers to try. [default: 0,1,2,4,… processors]")
@_numbers_option("--in-flight", "16,64,128", "N,…", "Requests of a process at one time to try.")
@_numbers_option("--request-mib", "1,6,16", "MIB,…", "Largest requests to try, in MiB.")
@click.option("--html", type=click.Path(dir_okay=False, writable=True), help="Write a report to this file.")
@picture_option("Draw the runs.")
def bench(
    path: str,
    batch_size: int | None,
    workers: list[int] | None,
    in_flight: list[int],
    request_mib: list[int],
    html: str | None,
    picture: str | None,
    **options: Any,
) -> None:
    """Measure how fast training reads PATH with several settings, and print those to use.

    Reads as training with these options does, without a cache, and decodes samples. Each setting is changed
    in turn: workers, requests at one time, size of requests.
    """
    found = measure(
        path,
        batch_size=require_batch_size(batch_size, "batches are measured"),
        num_workers=workers,
        max_in_flight=in_flight,
        max_request=[size << 20 for size in request_mib],
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
    echo(f"{run.setting!s:40}{run.samples_per_second:12,.0f} samples/s{rate:10,.1f} MB/s")
