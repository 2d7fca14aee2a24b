"""``energon-stream which`` and ``when``: the samples of a step of a run, and the steps of a sample."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from energon_stream.cli.options import NUMBER, flag, json_option, option, storage_option
from energon_stream.cli.terminal import echo, emit

if TYPE_CHECKING:
    from energon_stream.lineage.answers import Occurrence, RankStep


@click.command()
@click.argument("run")
@storage_option
@option("--sample", "key", required=True, metavar="KEY")
@option("--until", type=NUMBER)
@json_option
def when(run: str, storage_options: dict[str, Any] | None, key: str, until: int | None) -> None:
    """Print the steps and ranks in which a sample was, or will be.

    RUN is the folder that the loader got as run=.
    """
    from energon_stream.lineage.run import open_run

    found = open_run(run, storage_options=storage_options).when(key, until=until)
    emit({"steps": [each.as_dict() for each in found]}, lambda: _show_steps(key, found))


def _show_steps(key: str, found: list[Occurrence]) -> None:
    if not found:
        echo(f"{key} is in none of these steps.")
    for each in found:
        echo(_place(each))


def _place(step: Occurrence | RankStep) -> str:
    how = "" if step.recorded else ", planned"
    return f"Step {step.step}, rank {step.rank}: batch {step.batch} of stream {step.stream}{how}"


@click.command()
@click.argument("run")
@storage_option
@option("--step", required=True, type=NUMBER)
@option("--rank", type=NUMBER)
@option("--look-up/--no-look-up", "keys", default=True)
@flag("--show")
@json_option
def which(
    run: str, storage_options: dict[str, Any] | None, step: int, rank: int | None, keys: bool, show: bool
) -> None:
    """Print the samples of a step: dataset, shard, number in the shard, and key. No sample is read.

    RUN is the folder that the loader got as run=.
    """
    from energon_stream.lineage.run import open_run

    found = open_run(run, storage_options=storage_options).which(step, rank=rank, keys=keys)
    document: dict[str, Any] = {"ranks": [each.as_dict() for each in found]}
    if show:
        from energon_stream.cli.preview import describe

        samples = [_samples(each, storage_options) for each in found]
        document["shown"] = [[list(describe(sample)) for sample in of_rank] for of_rank in samples]
    emit(document, lambda: _show_samples(found, document.get("shown")))


def _show_samples(found: list[RankStep], lines: list[list[list[str]]] | None) -> None:
    for number, each in enumerate(found):
        echo(_place(each))
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
