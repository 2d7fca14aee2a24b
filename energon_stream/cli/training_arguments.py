"""Options and arguments of the commands that follow the plan of a training."""

from __future__ import annotations

from typing import Any, get_args

import click

from energon_stream.arguments import MAX_SAMPLES_PER_SEQUENCE, SHUFFLE_BUFFER_SIZE
from energon_stream.cli.options import (
    dataset_arguments,
    dataset_config_option,
    find_cache,
    option_group,
    parsed,
    split_config_option,
)
from energon_stream.config.planned_packs import PlannedPacking
from energon_stream.errors import ConfigError
from energon_stream.schedule.planned import Overlong
from energon_stream.worker import WorkerConfig

order_options = option_group(
    click.option("--split", "split_part", default="train", help="Split part, or split of a metadataset."),
    click.option("--batch-size", type=int, help="Samples of a step."),
    click.option("--shuffle-buffer-size", default=SHUFFLE_BUFFER_SIZE, help="As in training; 1 for none."),
    click.option(
        "--max-samples-per-sequence",
        default=MAX_SAMPLES_PER_SEQUENCE,
        callback=parsed(lambda number: number or None),
        help="As in training; 0 for None.",
    ),
    click.option("--parallel-shard-iters", type=int, help="As in training."),
    click.option("--shuffle-over-epochs-multiplier", default=1, help="As in training."),
    click.option(
        "--parts",
        metavar="NAME,…",
        callback=parsed(lambda text: text.split(",")),
        help="Parts that training reads, if it names them.",
    ),
    click.option(
        "--subset",
        metavar="FIRST,LAST",
        callback=parsed(lambda text: [int(end) if end.isdecimal() else end for end in text.split(",")]),
        help="Share of the data: 10%,50% or 0,1000 or 1000,end.",
    ),
    split_config_option,
    dataset_config_option,
)
"""The options that determine the order of samples."""


training_options = option_group(
    click.option("--world-size", default=1, help="Data-parallel ranks of the job."),
    click.option("--num-workers", default=4, help="Workers of a rank."),
    click.option("--num-streams", default=0, show_default="ranks times workers", help="Streams of the job."),
    click.option("--seed-offset", default=0, help="As in training."),
    order_options,
)
"""The options that determine a training's plan. :func:`find_config` takes some of them."""

training_arguments = option_group(
    dataset_arguments, training_options, click.option("--rank", default=0, help="Rank of the job.")
)
"""The path of a training and its options. Give their values to :func:`find_training`."""

packing_options = option_group(
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
"""The options of planned packing. Give their values to :func:`find_packing`."""


def find_config(rank: int, options: dict[str, Any]) -> WorkerConfig:
    """Return a rank's configuration, and remove its options from those of the training."""
    world_size, workers = options.pop("world_size"), options.pop("num_workers")
    streams, seed = options.pop("num_streams"), options.pop("seed_offset")
    return WorkerConfig(rank, world_size, workers, seed_offset=seed, num_streams=streams)


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


def require_batch_size(batch_size: int | None, why: str = "steps are counted in samples") -> int:
    """Return the value of ``--batch-size``, without which a command cannot work. Raises ConfigError."""
    if batch_size is None:
        raise ConfigError(f"--batch-size is missing: {why}")
    return batch_size
