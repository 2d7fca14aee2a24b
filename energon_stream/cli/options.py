"""Options that several commands share."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial, wraps
from inspect import signature
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from energon_stream.cache import CacheConfig
from energon_stream.cache.config import parse_size
from energon_stream.cli.terminal import note_json
from energon_stream.engine.cluster import RayEngine
from energon_stream.engine.processes import LocalEngine
from energon_stream.engine.tasks import Part
from energon_stream.errors import ConfigError
from energon_stream.index.dataset import DatasetMetadata, dataset_kind
from energon_stream.index.info_files import DATASET_CONFIG, SPLIT_CONFIG
from energon_stream.tools.plots import picture_file

if TYPE_CHECKING:
    from energon_stream.engine.tasks import TaskEngine

Command = Callable[..., Any]


def option_group(*options: Callable[[Command], Command], **values: Callable[..., Any]) -> Command:
    """Return a decorator that adds options to a command.

    Where ``values`` has a function by a name, the command gets what the function returns, under that name,
    instead of the options that the function takes.
    """

    def decorate(command: Command) -> Command:
        @wraps(command)
        def run(**given: Any) -> Any:
            for name, find in values.items():
                taken = given.keys() & signature(find).parameters
                given[name] = find(**{option: given.pop(option) for option in taken})
            return command(**given)

        decorated: Command = run
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    return decorate


flag = partial(click.option, is_flag=True)

path_argument = click.argument(
    "path", shell_complete=lambda ctx, option, value: [CompletionItem(value, type="file")]
)


def json_flag(text: str) -> Callable[[Command], Command]:
    """Return the option ``--json``, whose value :func:`wants_json` returns."""
    return flag("--json", expose_value=False, callback=note_json, help=text)


json_option = json_flag("Print one JSON document.")


def picture_option(text: str) -> Command:
    """Return the option ``--picture``, which was ``--png`` once."""
    kind = click.Path(dir_okay=False, writable=True)
    about = f"{text} FILE ends in .svg or .png; .svg suits light and dark pages."
    check = parsed(picture_file)
    return click.option(
        "--picture", "--png", "picture", type=kind, callback=check, metavar="FILE", help=about
    )


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


def _storage_option(name: str, text: str) -> Callable[[Command], Command]:
    dest = f"{name.replace('-', '_')}s"
    return click.option(
        f"--{name}", dest, multiple=True, callback=_parse, metavar="KEY=VALUE", help=f"{text} Repeatable."
    )


def parsed(parse: Callable[[str], Any]) -> Callable[..., Any]:
    """Return a callback that parses the value of an option, if there is one."""
    return lambda ctx, option, value: None if value is None else parse(value)


storage_option = _storage_option(
    "storage-option", "Option of the file system, such as endpoint_url=http://…; JSON values are parsed."
)
source_storage_option = _storage_option(
    "source-storage-option", "The same for the file system of the source."
)

dataset_arguments = option_group(path_argument, storage_option, json_option)

split_config_option = click.option("--split-config", default=SPLIT_CONFIG, help="File of the split parts.")

dataset_config_option = click.option(
    "--dataset-config", default=DATASET_CONFIG, help="File of the sample type."
)

split_parts_option = click.option(
    "--split-parts",
    metavar="NAME,…",
    callback=parsed(lambda text: [name.strip() for name in text.split(",")]),
    help="Split parts, or splits of a metadataset. [default: all that have samples]",
)


def find_split_parts(
    path: str,
    given: list[str] | None,
    storage_options: dict[str, Any] | None,
    metadata: DatasetMetadata | None,
) -> list[str]:
    """Return the split parts that the user gave; without any, those of a dataset or metadataset that have
    samples. ``metadata`` is that of a prepared dataset.
    """
    if given is not None:
        return given
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

part_option = click.option(
    "--part",
    metavar="NUMBER/PARTS",
    callback=parsed(Part.parse),
    help="Work on a share of the shards only, such as 0/8, for array jobs.",
)

cluster_options = option_group(
    click.option(
        "--engine",
        type=click.Choice(["local", "ray"]),
        default="local",
        help="Where shards are worked on: processes of this machine, or a Ray cluster.",
    ),
    click.option(
        "--ray-address",
        metavar="ADDRESS",
        help="Existing Ray cluster, such as 10.0.0.1:6379 or auto. [default: of RAY_ADDRESS, else a new one]",
    ),
)
"""The options that choose an engine. Give their values to :func:`find_engine`."""


def find_engine(engine: str, ray_address: str | None, processes: int | None) -> TaskEngine:
    """Return the engine of the options; ``processes`` is the number of processes of a local engine.

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


def engine_options(
    flag: str, text: str, *, least: int = 1, find: Callable[..., TaskEngine | None] = find_engine
) -> Command:
    """Return the option of a number of processes, and those of an engine. The command gets ``engine``."""
    processes = click.option(flag, "processes", type=click.IntRange(min=least), help=text)
    return option_group(processes, cluster_options, engine=find)


parallel_engine_options = option_group(
    click.option("--parallel", type=click.IntRange(min=1), default=1, help="Number of processes."),
    cluster_options,
    engine=lambda engine, ray_address, parallel: find_engine(
        engine, ray_address, parallel if parallel > 1 else 0
    ),
)
"""``--parallel`` and the options of an engine. The command gets the engine, as ``engine``."""

tmp_path_option = click.option(
    "--tmp-path",
    metavar="DIRECTORY",
    help="Local directory in which files are built before they are uploaded. [default: the system's]",
)


def parse_ratio(text: str) -> tuple[float, float, float]:
    """Read ``8,1,1``. Raises ConfigError if it is not three numbers."""
    try:
        train, val, test = (float(share) for share in text.split(","))
    except ValueError as error:
        raise ConfigError(
            f"{text!r} is not a split ratio", hint="Use three numbers, such as 8,1,1."
        ) from error
    return train, val, test


new_split_options = option_group(
    click.option(
        "--split-ratio",
        metavar="TRAIN,VAL,TEST",
        callback=lambda ctx, option, value: parse_ratio(value) if value else None,
        help="Shares of the samples (prepare, repair: of the tars) in each split part, for example 8,1,1.",
    ),
    click.option(
        "--split-parts",
        "split_patterns",
        multiple=True,
        metavar="NAME:PATTERN",
        callback=lambda ctx, option, value: value or None,
        help="Tars of a split part, by regular expression, glob or braces, instead of a ratio. Repeatable.",
    ),
)

new_dataset_options = option_group(
    new_split_options,
    click.option(
        "--sample-type",
        help="Type of the samples, such as CaptioningSample. [default: prepare asks, convert finds one that fits]",
    ),
    click.option(
        "--field-map",
        metavar="JSON",
        help="""Part for each field, such as '{"image": "jpg", "caption": "json[text]"}'.""",
    ),
    part_option,
    tmp_path_option,
    storage_option,
    progress_option,
)
"""The options of the commands that make a dataset of tars."""

written_shards_options = option_group(
    click.option(
        "--max-size",
        default="1GB",
        callback=lambda ctx, option, value: parse_size(value, "--max-size"),
        help="Largest size of a tar.",
    ),
    click.option("--max-count", type=click.IntRange(min=1), help="Largest number of samples in a tar."),
    click.option("--check/--no-check", default=True, help="Read the tars back, and compare."),
)
"""The options of the commands that write tars of another dataset."""

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
