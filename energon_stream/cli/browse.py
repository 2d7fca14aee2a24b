"""``energon-stream browse``: a web page on this machine that shows a dataset."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import click

from energon_stream.cli.options import (
    json_option,
    path_argument,
    require_batch_size,
    storage_option,
    training_options,
)
from energon_stream.cli.terminal import echo, emit

_BATCH_SIZE = 32
_OF_RUN = ("world_size", "num_workers", "num_streams", "seed_offset")


@click.command()
@path_argument
@storage_option
@training_options
@click.option("--port", default=0, show_default=True, help="TCP port on 127.0.0.1; 0 takes a free one.")
@click.option("--step", type=click.IntRange(0), help="Begin with this step of the run, counted from 0.")
@click.option("--rank", default=0, show_default=True, help="Rank of the job, for --step.")
@json_option
def browse(
    path: str,
    storage_options: dict[str, Any] | None,
    port: int,
    step: int | None,
    rank: int,
    batch_size: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Show a dataset or metadataset in a web browser: pictures, players, texts, search, filters and steps.

    The page is served on 127.0.0.1 until Ctrl-C, to those who know its URL. It reads, and writes nothing. The
    options of the training say which samples a step has.
    """
    from energon_stream.tools.browse import serving
    from energon_stream.tools.browse.training import Run

    if step is not None:
        batch_size = require_batch_size(batch_size)
    of_run = {name: options.pop(name) for name in _OF_RUN}
    names = {name: options.pop(name) for name in ("split_config", "dataset_config")}
    run = Run(step, batch_size or _BATCH_SIZE, rank, **of_run, options=options)
    with serving(path, port=port, run=run, storage_options=storage_options, **names) as served:
        lines = (
            f"{path} is shown at {served.url}",
            "Ctrl-C ends it. Who knows this URL can read the dataset on this machine.",
        )
        document = {"url": served.url, "port": served.port, "token": served.token}
        emit(as_json, document, *(partial(echo, line) for line in lines))
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            click.echo("\nStopped.", err=True)
