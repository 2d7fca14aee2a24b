"""Options that several commands share."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from energon_stream.cache import CacheConfig
from energon_stream.engine.cluster import RayEngine
from energon_stream.engine.processes import LocalEngine
from energon_stream.engine.shares import Part
from energon_stream.errors import ConfigError
from energon_stream.index.dataset import DatasetMetadata, dataset_kind
from energon_stream.index.info_files import DATASET_CONFIG, SPLIT_CONFIG
from energon_stream.worker import WorkerConfig

if TYPE_CHECKING:
    from energon_stream.engine.tasks import TaskEngine

path_argument = click.argument(
    "path", shell_complete=lambda ctx, option, value: [CompletionItem(value, type="file")]
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def _parse(ctx: click.Context, option: click.Parameter, values: tuple[str, ...]) -> dict[str, Any] | None:
    options: dict[str, Any] = {}
    for item in values:
        key, equals, value = item.partition("=")
        if not equals:
            raise click.BadParameter(f"{item!r} is not KEY=VALUE")
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    return options or None


source_storage_option = click.option(
    "--source-storage-option",
    "source_storage_options",
    multiple=True,
    callback=_parse,
    metavar="KEY=VALUE",
    help="The same for the file system of the source. Repeatable.",
)

storage_option = click.option(
    "--storage-option",
    "storage_options",
    multiple=True,
    callback=_parse,
    metavar="KEY=VALUE",
    help="Option of the file system, such as endpoint_url=http://…; JSON values are parsed. Repeatable.",
)

split_config_option = click.option(
    "--split-config", default=SPLIT_CONFIG, show_default=True, help="File of the split parts."
)

dataset_config_option = click.option(
    "--dataset-config", default=DATASET_CONFIG, show_default=True, help="File of the sample type."
)

split_parts_option = click.option(
    "--split-parts",
    metavar="NAME,…",
    help="Split parts, or splits of a metadataset. [default: all that have samples]",
)


def find_split_parts(
    path: str, given: str | None, storage_options: dict[str, Any] | None, metadata: DatasetMetadata | None
) -> list[str]:
    """Return the split parts that the user gave; without any, those of a dataset or metadataset that have
    samples. ``metadata`` is that of a prepared dataset.
    """
    if given is not None:
        return [name.strip() for name in given.split(",")]
    if metadata is not None:
        return [name for name, shards in metadata.split.split_parts.items() if shards]
    if dataset_kind(path) == "metadataset":
        from energon_stream.config.metadataset_files import MetadatasetFiles

        return list(MetadatasetFiles(storage_options).document(path).splits)
    return ["train"]


progress_option = click.option(
    "--progress/--no-progress",
    default=None,
    help="Show progress: a bar on a terminal, a line a minute elsewhere. [default: not in a pipe]",
)

_ENGINE = (
    click.option(
        "--engine",
        type=click.Choice(["local", "ray"]),
        default="local",
        show_default=True,
        help="Where shards are worked on: processes of this machine, or a Ray cluster.",
    ),
    click.option(
        "--ray-address",
        metavar="ADDRESS",
        help="Existing Ray cluster, such as 10.0.0.1:6379 or auto. [default: of RAY_ADDRESS, else a new one]",
    ),
)

part_option = click.option(
    "--part",
    metavar="NUMBER/PARTS",
    callback=lambda ctx, option, value: None if value is None else Part.parse(value),
    help="Work on a share of the shards only, such as 0/8, for array jobs.",
)


def engine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose an engine; give their values to :func:`find_engine`."""
    for option in reversed(_ENGINE):
        command = option(command)
    return command


def find_engine(engine: str, ray_address: str | None, processes: int | None) -> TaskEngine:
    """Return the engine of the options; ``processes`` are those of a local one.

    Raises ConfigError if the options contradict each other.
    """
    if engine == "ray":
        return RayEngine(ray_address)
    if ray_address is not None:
        raise ConfigError("--ray-address needs --engine ray", hint="Give both, or neither.")
    return LocalEngine(processes)


def find_chosen_engine(engine: str, ray_address: str | None, processes: int | None) -> TaskEngine | None:
    """Return the engine of the options; None if they name neither a cluster nor a number of processes."""
    used = find_engine(engine, ray_address, processes)
    return None if processes is None and engine == "local" else used


cache_option = click.option(
    "--cache-dir",
    metavar="DIRECTORY",
    help="Directory of the cache. [default: from ENERGON_STREAM_CACHE_DIR]",
)


def find_cache(directory: str | None, size: str | None = None) -> CacheConfig | None:
    """Return the cache of the options, which go before the environment; None if neither names one."""
    given = {"ENERGON_STREAM_CACHE_DIR": directory, "ENERGON_STREAM_CACHE_SIZE": size}
    environment = {**os.environ, **{name: value for name, value in given.items() if value is not None}}
    return CacheConfig.from_environment(environment)


def require_cache(directory: str | None, size: str | None = None) -> CacheConfig:
    """Return the cache that :func:`find_cache` finds, which is an error if it finds none."""
    config = find_cache(directory, size)
    if config is None:
        raise ConfigError("no cache directory", hint="Give --cache-dir, or set ENERGON_STREAM_CACHE_DIR.")
    return config


def show_size(size: int) -> str:
    """Return a number of bytes with a unit."""
    number = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


_JOB = (
    click.option("--world-size", default=1, show_default=True, help="Data-parallel ranks of the job."),
    click.option("--num-workers", default=4, show_default=True, help="Workers of a rank."),
    click.option("--num-streams", default=0, help="Streams of the job. [default: ranks times workers]"),
    click.option("--seed-offset", default=0, show_default=True, help="As in training."),
)

_ORDER = (
    click.option(
        "--split",
        "split_part",
        default="train",
        show_default=True,
        help="Split part, or split of a metadataset.",
    ),
    click.option("--batch-size", type=int, help="Samples of a step."),
    click.option("--shuffle-buffer-size", type=int, help="As in training."),
    click.option("--max-samples-per-sequence", type=int, help="As in training."),
    click.option("--parallel-shard-iters", type=int, help="As in training."),
    click.option("--shuffle-over-epochs-multiplier", default=1, show_default=True, help="As in training."),
    click.option(
        "--parts",
        metavar="NAME,…",
        callback=lambda ctx, option, value: None if value is None else value.split(","),
        help="Parts that training reads, if it names them.",
    ),
    click.option(
        "--subset",
        metavar="FIRST,LAST",
        callback=lambda ctx, option, value: None if value is None else _subset(value),
        help="Share of the data: 10%,50% or 0,1000 or 1000,end.",
    ),
    split_config_option,
    dataset_config_option,
)


def order_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that determine the order of samples."""
    for option in reversed(_ORDER):
        command = option(command)
    return command


def training_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that determine a training's plan. :func:`find_config` takes some of them."""
    command = order_options(command)
    for option in reversed(_JOB):
        command = option(command)
    return command


def find_config(rank: int, options: dict[str, Any]) -> WorkerConfig:
    """Return a rank's configuration, and remove its options from those of the training."""
    world_size, workers = options.pop("world_size"), options.pop("num_workers")
    streams, seed = options.pop("num_streams"), options.pop("seed_offset")
    return WorkerConfig(rank, world_size, workers, seed_offset=seed, num_streams=streams)


def require_batch_size(batch_size: int | None, why: str = "steps are counted in samples") -> int:
    """Return the value of ``--batch-size``, without which a command cannot work. Raises ConfigError."""
    if batch_size is None:
        raise ConfigError(f"--batch-size is missing: {why}")
    return batch_size


def _subset(text: str) -> list[str | int]:
    return [int(end) if end.isdecimal() else end for end in text.split(",")]
