"""Options and arguments of the commands that follow the plan of a training."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from energon_stream.arguments import MAX_SAMPLES_PER_SEQUENCE, SHUFFLE_BUFFER_SIZE
from energon_stream.cli.options import (
    COUNT,
    NUMBER,
    Decorator,
    dataset_config_option,
    find_cache,
    json_option,
    option,
    option_group,
    optional_path,
    parsed,
    split_config_option,
    storage_option,
)
from energon_stream.cli.recorded_run import find_packing, run_option
from energon_stream.errors import ConfigError

if TYPE_CHECKING:
    from energon_stream.worker import WorkerConfig


def _subset(text: str) -> list[int | str]:
    from energon_stream.config.subset import parse_subset

    ends = [int(end) if end.isdecimal() else end for end in text.split(",")]
    try:
        parse_subset(ends, "--subset")
    except ConfigError as error:
        hint = "Give a range, the smaller bound first: 10%,50% or 0,1000 or 1000,end."
        raise ConfigError(f"--subset {text!r:.80} is not a subset", hint=hint) from error
    return ends


order_options: Decorator = option_group(
    optional_path,
    run_option,
    storage_option,
    json_option,
    option("--split-part", default="train"),
    option("--batch-size", type=COUNT),
    option("--shuffle-buffer-size", type=NUMBER, default=SHUFFLE_BUFFER_SIZE),
    option(
        "--max-samples-per-sequence",
        type=NUMBER,
        default=MAX_SAMPLES_PER_SEQUENCE,
        callback=parsed(lambda number: number or None),
    ),
    option("--parallel-shard-iters", type=COUNT),
    option("--shuffle-over-epochs-multiplier", default=1),
    option("--parts", metavar="NAME,…", callback=parsed(lambda text: text.split(","))),
    option(
        "--subset",
        metavar="FIRST,LAST",
        callback=parsed(_subset),
    ),
    split_config_option,
    dataset_config_option,
)
"""The path of a training, and the options that determine the order of samples."""

training_options: Decorator = option_group(
    order_options,
    option("--world-size", type=COUNT, default=1),
    option("--num-workers", type=NUMBER, default=4),
    option("--num-streams", type=NUMBER, default=0, show_default="ranks times workers"),
    option("--seed-offset", default=0),
)
"""The path of a training, and what determines its plan. :func:`find_config` takes some of them."""

training_arguments: Decorator = option_group(training_options, option("--rank", type=NUMBER, default=0))
"""The same, for a rank. Give their values to :func:`find_training`."""


def _of_costs(name: str, metavar: str, parse: Callable[[str], Any] = str) -> Callable[[Any], Any]:
    """Return an option of planned packs that has one value, or values by the names of several costs."""

    def merged(ctx: click.Context, given: click.Parameter, values: tuple[str, ...]) -> Any:
        pairs = [value.rpartition("=") for value in values]
        if len(pairs) < 2 and not any(equals for _, equals, _ in pairs):
            return parse(values[0]) if values else None
        found = {
            key if equals or name != "--pack-cost" else value: parse(value) for key, equals, value in pairs
        }
        if "" in found or len(found) < len(pairs):
            raise click.BadParameter(
                "give each of several values the name of its cost: NAME=VALUE", ctx, given
            )
        return found

    return option(name, multiple=True, callback=merged, metavar=metavar)


packing_options: Decorator = option_group(
    _of_costs("--pack-cost", "[NAME=]COST"),
    _of_costs("--pack-capacity", "[NAME=]COUNT", lambda text: COUNT.convert(text, None, None)),
    option("--pack-window", type=COUNT),
    _of_costs("--pack-load", "[NAME=]quadratic|linear"),
    option("--pack-overlong", type=click.Choice(["error", "drop", "split"])),
    option("--global-batch-size", type=COUNT),
)
"""The options of planned packing. Give their values to ``find_packing``."""


def find_config(rank: int, options: dict[str, Any]) -> WorkerConfig:
    """Return a rank's configuration, and remove its options from those of the training."""
    from energon_stream.worker import WorkerConfig

    world_size, workers = options.pop("world_size"), options.pop("num_workers")
    streams, seed = options.pop("num_streams"), options.pop("seed_offset")
    dealt_to = options.pop("dealt_to", 0)  # of a recorded run
    return WorkerConfig(rank, world_size, workers, seed_offset=seed, num_streams=streams, dealt_to=dealt_to)


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
        raise ConfigError(f"--batch-size is missing: {why}", hint="Give it, or --run.")
    return batch_size
