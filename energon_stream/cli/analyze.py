"""``energon-stream analyze-debug``: how the samples of debug logs are visited."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from energon_stream.cli.options import COUNT, NUMBER, ExistingPath, flag, json_option, option
from energon_stream.cli.terminal import emit, wants_json
from energon_stream.errors import ConfigError
from energon_stream.printable import counted

if TYPE_CHECKING:
    from energon_stream.compat.debug_analysis import DebugLogs, LoggedLoader


@click.command("analyze-debug")
@click.argument("log_paths", nargs=-1, type=ExistingPath())
@option("--heatmap-path", default="heatmap.png", type=click.Path(dir_okay=False, path_type=Path))
@option("--heatmap-steps", default=1000, type=COUNT)
@option("--heatmap-samples", default=1000, type=COUNT)
@option("--heatmap-gain", default=10.0)
@flag("--force-loading-order")
@option("--include-modality", default="train")
@option("--skip", default=0, type=NUMBER)
@flag("--no-colors")
@json_option
def analyze_debug(
    log_paths: tuple[Path, ...],
    heatmap_path: Path,
    heatmap_steps: int,
    heatmap_samples: int,
    heatmap_gain: float,
    force_loading_order: bool,
    include_modality: str,
    skip: int,
    no_colors: bool,
) -> None:
    """Show in which order samples were loaded.

    LOG_PATHS are debug logs (WorkerConfig(worker_debug_path=…, worker_log_level=1)), or folders with them.
    The picture has a column for each step and a row for each sample, in the order of their first visits,
    with a color for each rank. Random order shows as noise, and repeated order as lines.
    """
    from energon_stream.compat.debug_analysis import (
        VisitTable,
        find_logs,
        heatmap,
        modes_of,
        read_logs,
        write_heatmap,
    )

    modes = modes_of(include_modality)
    files = find_logs(log_paths)
    logs = read_logs(files)
    echo = partial(click.echo, err=wants_json())
    echo(counted(len(files), "log") + (f", {logs.broken} lines cannot be read" if logs.broken else ""))
    loader = None if force_loading_order else _choose(logs, modes)
    if loader is None or (logs.reads and not loader.visits):
        if loader is not None:
            echo("The batches have no keys; the picture shows the order of reading.")
        visits = [visit for mode, visit in logs.reads if mode is None or mode in modes]
    else:
        visits = loader.visits
    table = VisitTable.of(visits, skip)
    several, shared = table.repeated()
    echo(f"Found {counted(table.num_samples, 'unique sample key')}, {counted(table.num_steps, 'step')}")
    echo(f"{counted(several, 'sample')} came more than once, {shared} of them on more than one rank")
    image = heatmap(
        table, steps=heatmap_steps, samples=heatmap_samples, gain=heatmap_gain, colors=not no_colors
    )
    write_heatmap(heatmap_path, image)
    height, width, _ = image.shape
    echo(f"Wrote heatmap to {heatmap_path}")
    echo(f"x-axis: {counted(table.num_steps, 'step')}, {table.num_steps / width:g} for each column")
    echo(f"y-axis: {counted(table.num_samples, 'sample')}, {table.num_samples / height:g} for each row")
    document = {
        "logs": len(files),
        "broken_lines": logs.broken,
        "samples": table.num_samples,
        "steps": table.num_steps,
        "repeated": several,
        "repeated_on_several_ranks": shared,
        "heatmap": str(heatmap_path),
    }
    emit(document)


def _choose(logs: DebugLogs, modes: list[str]) -> LoggedLoader:
    """Return the loader to show; ask if there are several."""
    loaders = {number: loader for number, loader in logs.loaders.items() if loader.mode in modes}
    for number, loader in sorted(logs.loaders.items()):
        click.echo(f"  loader {number}: {loader}", err=wants_json())
    if not loaders:
        raise ConfigError(
            f"the logs have no loader of {' or '.join(modes)}", hint="choose others with --include-modality"
        )
    if len(loaders) == 1:
        return next(iter(loaders.values()))
    names = click.Choice([str(number) for number in sorted(loaders)])
    return loaders[int(click.prompt("Loader to show", type=names, err=wants_json()))]
