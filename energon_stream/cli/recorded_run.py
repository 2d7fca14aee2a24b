"""``--run``: the path and the options of a training, from the record that its loader wrote."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from energon_stream.cli.options import option
from energon_stream.cli.terminal import echo
from energon_stream.errors import ConfigError, RunMismatchError

if TYPE_CHECKING:
    from energon_stream.lineage.run_description import DataDescription, Segment

_PACKING = ("capacity", "window", "load", "overlong")
_OF_ORDER = {
    "shuffle_buffer_size": "shuffle_window",
    "max_samples_per_sequence": "max_samples_per_sequence",
    "parallel_shard_iters": "parallel_slices",
    "shuffle_over_epochs_multiplier": "shuffle_over_epochs",
}
_OF_DATASET = {*_OF_ORDER, *(f"pack_{name}" for name in _PACKING), "pack_cost", "global_batch_size", "subset"}
_OF_DATASET |= {"split_part", "split_config", "dataset_config", "storage_options", "parts"}
_SAME_ORDER = {"dataset_config", "storage_options", "parts", "pack_cost"}


def run_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--run``: the command gets ``path`` and options of a run's record, where the user gives none."""

    @option("--run", metavar="RUN")
    @wraps(command)
    def decorated(run: str | None, **options: Any) -> Any:
        source = click.get_current_context().get_parameter_source
        given = {name for name in options if source(name) not in (ParameterSource.DEFAULT, None)}
        if run is not None:
            options = _complete(run, options, given)
        elif options["path"] is None:
            raise click.UsageError("Missing argument 'PATH'. Give it, or --run.", click.get_current_context())
        return command(**options)

    return decorated


def _complete(run: str, options: dict[str, Any], given: set[str]) -> dict[str, Any]:
    """Return options with what the record of a run has, checked; ``given`` are the user's."""
    from energon_stream.index.dataset import dataset_kind
    from energon_stream.lineage.run import open_run
    from energon_stream.schedule import UNFORESEEN

    described = open_run(run, storage_options=options["storage_options"]).description
    *earlier, segment = described.segments
    data = described.datasets[segment.dataset]
    problem, hint = None, "Leave out --run; energon-stream which shows the steps of any run."
    for name in {"world_size", "dataset", "weights"} - given:
        if any(getattr(each, name) != getattr(segment, name) for each in earlier):
            problem = f"from step {segment.step} on, the run has another {name}, so no plan has all its steps"
    if segment.weights:
        problem = "the program of the run set weights under way"
    elif options["path"] is None and len(data.leaves) > 1:
        problem = f"the record has {len(data.leaves)} datasets, but lacks the path of their metadataset"
        hint = "Give it as PATH."
    elif data.packing is not None and "pack_cost" not in options:
        problem = "the run plans packs, which this command does not know"
    elif data.packing is not None and options["pack_cost"] is None:
        problem, hint = "the record lacks the name of the costs of its packs", "Give --pack-cost."
    if problem is not None:
        raise ConfigError(problem, where=run, hint=hint)
    if not data.in_order and data.packing is None:
        echo("Note: the run filters or packs; its steps have about these samples.", err=True)
    path = options["path"] or data.leaves[0].url
    record = _options(data, segment)
    more = {"draws": data.plan.get("draws", "random")} if "blend" in data.plan else {}
    if data.packing is not None:
        more["plan_version"] = data.packing.get("algorithm")
    elif "draws" in data.plan:
        more["plan_version"] = int(data.plan.get("foresees", UNFORESEEN))
    if "repeat" not in data.plan and not all("repeat" in child for child in data.plan.get("blend", [{}])):
        more["repeat"] = False
    if len(data.leaves) == 1 and dataset_kind(path) != "metadataset":
        (leaf,), (planned,) = data.leaves, _leaves(data.plan)
        record |= {"split_config": leaf.split_config} if leaf.split_config else {}
        if leaf.view is not None:
            more |= leaf.view["keys"]
        elif planned["samples"] != [0, leaf.samples]:
            record["subset"] = planned["samples"]
    record = {name: value for name, value in record.items() if name in options and name not in given}
    if segment.dealt_to > 1 and "num_streams" in options:
        record["dealt_to"] = segment.dealt_to
    options = {**options, **record, "path": path}
    if not given & (_OF_DATASET - _SAME_ORDER):
        training = {name: value for name, value in options.items() if name in _OF_DATASET}
        _check(run, data, segment, path, training | more)
    return options | more


def _leaves(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the datasets of a described plan."""
    if "leaf" in plan:
        yield plan
    for child in plan.get("blend", plan.get("concat", [plan["repeat"]] if "repeat" in plan else [])):
        yield from _leaves(child)


def _options(data: DataDescription, segment: Segment) -> dict[str, Any]:
    """Return the options that a record has, with their names in commands; where datasets differ, without."""
    orders = [leaf["order"] for leaf in _leaves(data.plan)]
    found = {name: getattr(segment, name) for name in ("world_size", "num_streams", "seed_offset")}
    found |= {"num_workers": segment.num_streams // segment.world_size, "batch_size": data.batch_size}
    found |= {option: orders[0][name] for option, name in _OF_ORDER.items()}
    if any(order["shuffle_over_epochs"] != orders[0]["shuffle_over_epochs"] for order in orders):
        del found["shuffle_over_epochs_multiplier"]
    if len({leaf.split for leaf in data.leaves}) == 1:
        found["split_part"] = data.leaves[0].split
    if data.packing is not None:
        found |= {f"pack_{name}": data.packing[name] for name in _PACKING}
        found["global_batch_size"] = data.packing["step"]
        if kinds := data.packing.get("kinds"):
            found["pack_capacity"] = {name: room for name, room, _ in kinds if room is not None}
            found["pack_load"] = {name: load for name, _, load in kinds}
    return found


def _check(run: str, data: DataDescription, segment: Segment, path: str, training: dict[str, Any]) -> None:
    """Raise RunMismatchError unless PATH and options have the order of the record."""
    from energon_stream.lineage.run_description import LeafDescription
    from energon_stream.prewarming.job import open_reader_dataset
    from energon_stream.schedule import describe_plan
    from energon_stream.worker import WorkerConfig

    if "pack_cost" in training:
        find_packing(training)
    config = WorkerConfig(
        0, segment.world_size, 0, num_streams=segment.num_streams, dealt_to=segment.dealt_to
    )
    reader = open_reader_dataset(path, config, False, {**training, "batch_size": data.batch_size})
    reader.read_starts()
    packing = None if reader.packing is None else reader.packing.describe()
    planned = json.loads(json.dumps([describe_plan(reader.plan), packing]))
    indices = [leaf.index for leaf in reader.leaves]
    same = len(indices) == len(data.leaves) and all(map(LeafDescription.is_of, data.leaves, indices))
    if not same or planned != [data.plan, data.packing]:
        raise RunMismatchError(
            f"{path} has other samples, or another order of them, than the run",
            where=run,
            hint="Give the PATH of the run, and what no record has: --split-part of a metadataset, "
            "--shuffle-over-epochs-multiplier.",
        )


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
    from energon_stream.config.planned_packs import PlannedPacking

    options["packing"] = PlannedPacking(**given)
