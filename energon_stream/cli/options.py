"""Options that several commands share."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial, wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from energon_stream.arguments import DATASET_CONFIG, SPLIT_CONFIG
from energon_stream.cli.terminal import note_json
from energon_stream.cli.words import text_of
from energon_stream.errors import ConfigError, ObjectNotFoundError
from energon_stream.quantities import parse_count, parse_seconds, parse_size

if TYPE_CHECKING:
    from energon_stream.cache import CacheConfig
    from energon_stream.engine.tasks import Part, TaskEngine
    from energon_stream.index.dataset import DatasetMetadata

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]


def option_group(*options: Decorator, **values: Callable[..., Any]) -> Decorator:
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


class Quantity(click.ParamType):  # type: ignore[type-arg] # before click 8.2 it takes none
    """A number as people write it: a size, a count or a time; or several."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name: str = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; click shows why a text is none."""
        try:
            return self._parse(value) if isinstance(value, str) else value
        except ConfigError as error:
            self.fail(f"{value!r:.80} is not a {self.name}. {error.hint}", param, ctx)


def several(each: Quantity) -> Quantity:
    """Return the type of such numbers, separated by commas."""
    return Quantity(f"{each.name},…", lambda text: [each.convert(one, None, None) for one in text.split(",")])


SIZE = Quantity("size", parse_size)
COUNT, NUMBER = Quantity("count", partial(parse_count, least=1)), Quantity("number", parse_count)
TIME, TIME_WITH_UNIT = Quantity("time", parse_seconds), Quantity("time", partial(parse_seconds, bare=False))


def option(*names: str, **more: Any) -> Decorator:
    """Return a decorator that adds an option, with the text that ``words.toml`` has."""
    word = next(name for name in names if name.startswith("--"))

    def decorate(command: Command) -> Command:
        text = text_of(word.partition("/")[0], command.__name__.replace("_", "-"))
        return click.option(*names, help=text, **more)(command)

    return decorate


flag: Callable[..., Decorator] = partial(option, is_flag=True)
file_option: Callable[..., Decorator] = partial(
    option, type=click.Path(dir_okay=False, writable=True), metavar="FILE"
)
share_option: Callable[..., Decorator] = partial(
    option, "--share", type=click.FloatRange(0, 1, min_open=True)
)
seed_option: Decorator = option("--seed", default=0)

_path = partial(
    click.argument, "path", shell_complete=lambda ctx, option, value: [CompletionItem(value, type="file")]
)


class ExistingPath(click.Path):
    """A path on this machine. Nothing there is a failure, as with other paths, and no wrong command line."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(str(super().convert(value, param, ctx)))
        if not path.exists() and not (ctx and ctx.resilient_parsing):
            raise ObjectNotFoundError("no such file or folder", where=str(path), hint="check the path")
        return path


path_argument: Decorator = _path()
optional_path: Decorator = _path(required=False)


json_option: Decorator = flag("--json", expose_value=False, callback=note_json)
"""``--json``, whose value :func:`wants_json` returns."""


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


def parsed(parse: Callable[[str], Any]) -> Callable[..., Any]:
    """Return a callback that parses the value of an option, if there is one."""
    return lambda ctx, option, value: None if value is None else parse(value)


def _picture(name: str) -> Any:
    from energon_stream.tools.plots import picture_file

    return picture_file(name)


picture_option: Decorator = file_option("--picture", callback=parsed(_picture))


_storage_option: Callable[..., Decorator] = partial(
    option, multiple=True, callback=_parse, metavar="KEY=VALUE"
)
storage_option: Decorator = _storage_option("--storage-option", "storage_options")
source_storage_option: Decorator = _storage_option("--source-storage-option", "source_storage_options")
dataset_arguments: Decorator = option_group(path_argument, storage_option, json_option)

split_config_option: Decorator = option("--split-config", default=SPLIT_CONFIG)
dataset_config_option: Decorator = option("--dataset-config", default=DATASET_CONFIG)

split_parts_option: Decorator = option(
    "--split-part",
    "split_parts",
    metavar="NAME,…",
    callback=parsed(lambda text: [name.strip() for name in text.split(",")]),
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
    from energon_stream.index.dataset import dataset_kind

    if dataset_kind(path) == "metadataset":
        from energon_stream.config.metadataset_files import MetadatasetFiles

        return list(MetadatasetFiles(storage_options).document(path).splits)
    return ["train"]


progress_option: Decorator = option("--progress/--no-progress", default=None)


def _part(text: str) -> Part:
    from energon_stream.engine.tasks import Part

    return Part.parse(text)


part_option: Decorator = option("--part", metavar="NUMBER/PARTS", callback=parsed(_part))

cluster_options: Decorator = option_group(
    option("--engine", type=click.Choice(["local", "ray"]), default="local"),
    option("--ray-address", metavar="ADDRESS"),
)
"""The options that choose an engine. Give their values to :func:`find_engine`."""


def find_engine(engine: str, ray_address: str | None, processes: int | None) -> TaskEngine:
    """Return the engine of the options; ``processes`` is the number of processes of a local engine.

    Raises ConfigError if the options contradict each other.
    """
    if engine == "ray":
        from energon_stream.engine.cluster import RayEngine

        return RayEngine(ray_address)
    if ray_address is not None:
        raise ConfigError("--ray-address needs --engine ray", hint="Give both, or neither.")
    from energon_stream.engine.processes import LocalEngine

    return LocalEngine(processes)


def find_chosen_engine(engine: str, ray_address: str | None, processes: int | None) -> TaskEngine | None:
    """Return the engine of the options; None if they name neither a cluster nor a number of processes."""
    used = find_engine(engine, ray_address, processes)
    return None if processes is None and engine == "local" else used


def engine_options(find: Callable[..., Any] = find_engine) -> Decorator:
    """Return ``--processes`` and the options of an engine. The command gets what ``find`` makes of them."""
    return option_group(option("--processes", type=NUMBER), cluster_options, engine=find)


parallel_engine_options: Decorator = engine_options(
    lambda engine, ray_address, processes: find_engine(
        engine, ray_address, 0 if processes in (None, 1) else processes
    )
)
"""The options of an engine, this process alone if the user gives none."""

tmp_path_option: Decorator = option("--tmp-path", metavar="DIRECTORY")


def parse_ratio(text: str) -> tuple[float, float, float]:
    """Read ``8,1,1``. Raises ConfigError if it is not three numbers."""
    try:
        train, val, test = (float(share) for share in text.split(","))
    except ValueError as error:
        raise ConfigError(
            f"{text!r} is not a split ratio", hint="Use three numbers, such as 8,1,1."
        ) from error
    return train, val, test


new_split_options: Decorator = option_group(
    option(
        "--split-ratio",
        metavar="TRAIN,VAL,TEST",
        callback=lambda ctx, option, value: parse_ratio(value) if value else None,
    ),
    option(
        "--split-pattern",
        "split_patterns",
        multiple=True,
        metavar="NAME:PATTERN",
        callback=lambda ctx, option, value: value or None,
    ),
)

new_dataset_options: Decorator = option_group(
    new_split_options,
    option("--sample-type"),
    option("--field-map", metavar="JSON"),
    part_option,
    tmp_path_option,
    storage_option,
    progress_option,
)
"""The options of the commands that make a dataset of tars."""

shard_size_options: Decorator = option_group(
    option("--max-size", type=SIZE, default="1GB", show_default=True),
    option("--max-count", type=COUNT),
)

written_shards_options: Decorator = option_group(
    shard_size_options, option("--check/--no-check", default=True)
)
"""The options of the commands that write tars of another dataset."""

price_options: Decorator = option_group(
    option("--price-per-1000-get", type=float),
    option("--price-per-gb", type=float),
    prices=lambda price_per_1000_get, price_per_gb: {
        name: price
        for name, price in (("per_1000_get", price_per_1000_get), ("per_gb", price_per_gb))
        if price is not None
    },
)
"""The prices of a store. The command gets those that the user gives, by name, as ``prices``."""

cache_option: Decorator = option("--cache-dir", metavar="DIRECTORY")


def find_cache(directory: str | None, size: int | None = None) -> CacheConfig | None:
    """Return the cache of the options, which go before the environment; None if neither names one."""
    from energon_stream.cache import CacheConfig

    given = {"ENERGON_STREAM_CACHE_DIR": directory, "ENERGON_STREAM_CACHE_SIZE": size}
    environment = {**os.environ, **{name: str(value) for name, value in given.items() if value is not None}}
    return CacheConfig.from_environment(environment)


def require_cache(directory: str | None, size: int | None = None) -> CacheConfig:
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
