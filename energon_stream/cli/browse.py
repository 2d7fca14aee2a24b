"""``energon-stream browse``: a web page on this machine that shows a dataset."""

from __future__ import annotations

import threading
from typing import Any

import click
from click.core import ParameterSource

from energon_stream.cli.options import NUMBER, option
from energon_stream.cli.recorded_run import find_packing
from energon_stream.cli.terminal import echo, emit
from energon_stream.cli.training_arguments import packing_options, require_batch_size, training_arguments

_BATCH_SIZE = 32
_NOTE = "Ctrl-C ends it. Who knows this URL can read the dataset on this machine."
_OF_RUN = ("rank", "world_size", "num_workers", "num_streams", "seed_offset")


@click.command()
@training_arguments
@packing_options
@option("--port", default=0)
@option("--step", type=NUMBER)
def browse(
    path: str,
    storage_options: dict[str, Any] | None,
    port: int,
    step: int | None,
    batch_size: int | None,
    **options: Any,
) -> None:
    """Show a dataset or metadataset in a web browser: pictures, players, texts, search, filters and steps.

    The page is served on 127.0.0.1 until Ctrl-C, to those who know its URL. It reads, and writes nothing. The
    options of the training say which samples a step has.
    """
    from energon_stream.tools.browse import serving
    from energon_stream.tools.browse.training import Run, StepFinder

    find_packing(options)
    if step is not None:
        batch_size = require_batch_size(batch_size)
    of_run = {name: options.pop(name) for name in _OF_RUN}
    names = {name: options.pop(name) for name in ("split_config", "dataset_config")}
    run = Run(step, batch_size or _BATCH_SIZE, **of_run, options=options)
    source = click.get_current_context().get_parameter_source
    if any(
        source(name) == ParameterSource.COMMANDLINE for name in (*_OF_RUN, *options, "step", "batch_size")
    ):
        StepFinder(path, {**options, "storage_options": storage_options, **names}).open(run)  # or say why not
    with serving(path, port=port, run=run, storage_options=storage_options, **names) as served:
        document = {"url": served.url, "port": served.port, "token": served.token}
        emit(document, lambda: echo(f"{path} is shown at {served.url}"), lambda: echo(_NOTE))
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            click.echo("\nStopped.", err=True)
