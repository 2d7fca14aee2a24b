"""``energon-stream doctor``: whether a dataset can be read, how fast, and with which settings."""

from __future__ import annotations

from typing import Any

import click

from energon_stream.cli.options import cache_option, dataset_arguments, find_cache
from energon_stream.cli.terminal import echo, emit, wants_json
from energon_stream.tools.doctor import Diagnosis, diagnose


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
