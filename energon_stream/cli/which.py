"""``energon-stream which``: the samples of a step of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from energon_stream.cli.options import json_option, storage_option
from energon_stream.cli.terminal import echo, emit
from energon_stream.lineage.run import open_run

if TYPE_CHECKING:
    from energon_stream.lineage.answers import RankStep


@click.command()
@click.argument("run")
@storage_option
@click.option("--step", required=True, type=int, help="Step, counted from 0 at the beginning of the run.")
@click.option("--rank", type=int, help="Rank of the job. [default: all]")
@click.option("--keys/--no-keys", default=True, help="Look up keys in the indices. [default: --keys]")
@click.option("--show", is_flag=True, help="Read the samples, and print them as preview does.")
@json_option
def which(
    run: str,
    storage_options: dict[str, Any] | None,
    step: int,
    rank: int | None,
    keys: bool,
    show: bool,
    as_json: bool,
) -> None:
    """Print the samples of a step: dataset, shard, number in the shard, and key. No sample is read.

    RUN is the folder that the loader got as run=.
    """
    found = open_run(run, storage_options=storage_options).which(step, rank=rank, keys=keys)
    document: dict[str, Any] = {"ranks": [each.as_dict() for each in found]}
    shown = [list(_samples(each, storage_options)) for each in found] if show else []
    if show:
        from energon_stream.cli.preview import describe

        lines = [[list(describe(sample)) for sample in samples] for samples in shown]
        document["shown"] = lines
    else:
        lines = []
    emit(as_json, document, lambda: _print(found, lines))


def _print(found: list[RankStep], lines: list[list[list[str]]]) -> None:
    for number, each in enumerate(found):
        how = "" if each.recorded else ", planned"
        echo(f"Step {each.step}, rank {each.rank}: batch {each.batch} of stream {each.stream}{how}")
        for place, sample in enumerate(each.samples):
            key = "" if sample.key is None else f"  {sample.key}"
            echo(f"  {sample.dataset} [{sample.split}]  {sample.shard}  {sample.index}{key}")
            for line in lines[number][place] if lines else ():
                echo(f"   {line}")


def _samples(step: RankStep, storage_options: dict[str, Any] | None) -> Iterator[Any]:
    """Yield the samples of a step, decoded."""
    from energon_stream.config import get_val_dataset
    from energon_stream.pipeline.node import Context
    from energon_stream.pipeline.reader_dataset import find_readers
    from energon_stream.urls import is_local
    from energon_stream.worker import WorkerConfig

    config, readers = WorkerConfig(0, 1, 0), {}
    for sample in step.samples:
        place = sample.dataset, sample.split
        if place not in readers:
            options = None if is_local(sample.dataset) else storage_options
            dataset = get_val_dataset(
                sample.dataset,
                batch_size=None,
                split_part=sample.split,
                worker_config=config,
                storage_options=options,
            )
            readers[place] = next(find_readers(dataset))[1]
    made: dict[tuple[str, str, int], Any] = {}
    for place, reader in readers.items():
        numbers = [each.number for each in step.samples if (each.dataset, each.split) == place]
        items = reader.restore_many([("Source", 0, number) for number in numbers], Context(config, 0))
        made.update(((*place, number), item.value) for number, item in zip(numbers, items, strict=True))
    yield from (made[each.dataset, each.split, each.number] for each in step.samples)
