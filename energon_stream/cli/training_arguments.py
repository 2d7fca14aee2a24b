"""Options and arguments of the commands that follow the plan of a training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import click

from energon_stream.cli.options import (
    find_cache,
    find_config,
    json_option,
    path_argument,
    require_batch_size,
    storage_option,
    training_options,
)
from energon_stream.config.planned_packs import PlannedPacking
from energon_stream.errors import ConfigError
from energon_stream.schedule.planned import Overlong

_OPTIONS = (
    click.option(
        "--pack-cost", metavar="NAME", help="Costs by which training packs; --batch-size counts packs then."
    ),
    click.option("--pack-capacity", type=int, help="As in training: the largest sum of a pack's costs."),
    click.option("--pack-window", type=int, help="As in training. [default: 8]"),
    click.option(
        "--pack-load", type=click.Choice(["quadratic", "linear"]), help="As in training. [default: quadratic]"
    ),
    click.option(
        "--pack-overlong", type=click.Choice(get_args(Overlong)), help="As in training. [default: error]"
    ),
    click.option("--global-batch-size", type=int, help="As in training: packs of a global step."),
)


def packing_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of planned packing; give their values to :func:`find_packing`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def find_packing(options: dict[str, Any]) -> None:
    """Replace the options of planned packing by ``packing``, if they were given.

    Raises ConfigError if one is missing or impossible.
    """
    names = ("cost", "capacity", "window", "load", "overlong")
    given = {name: options.pop(f"pack_{name}") for name in names}
    given["global_batch_size"] = options.pop("global_batch_size")
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        return
    if not {"cost", "capacity"} <= set(given):
        raise ConfigError("--pack-cost and --pack-capacity go together", hint="Give both, as in training.")
    options["packing"] = PlannedPacking(**given)


def training_arguments(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the path of a training and its options; give their values to :func:`find_training`."""
    rank = click.option("--rank", default=0, show_default=True, help="Rank of the job.")
    return path_argument(storage_option(training_options(rank(json_option(command)))))


def find_training(options: dict[str, Any], why: str = "steps are counted in samples") -> dict[str, Any]:
    """Return the arguments for functions such as ``explain``; ``why`` they need the batch size.

    Raises ConfigError if an option is missing or impossible.
    """
    if "pack_cost" in options:
        find_packing(options)
    if "cache_dir" in options:
        options["cache"] = find_cache(options.pop("cache_dir")) or False
    batch_size = require_batch_size(options.pop("batch_size"), why)
    config = find_config(options.pop("rank"), options)
    return {"batch_size": batch_size, "worker_config": config, **options}
