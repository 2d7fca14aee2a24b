"""``energon-stream simulate``: the speed of training from a store, predicted."""

from __future__ import annotations

from typing import Any

import click

from energon_stream.cli.options import show_size
from energon_stream.cli.terminal import emit
from energon_stream.cli.training_arguments import find_training, training_arguments
from energon_stream.tools.simulate import Costs, Prediction, StoreModel
from energon_stream.tools.simulate import simulate as predict


def _megabytes(ctx: click.Context, option: click.Parameter, value: float) -> float:
    return value * 1e6


@click.command()
@training_arguments
@click.option("--samples", type=int, help="Samples of the rank. [default: one pass]")
@click.option(
    "--latency",
    default=0.05,
    show_default=True,
    help="Seconds from a request to the first byte of its answer.",
)
@click.option("--jitter", default=0.0, show_default=True, help="Seconds more on average, at random.")
@click.option(
    "--rate",
    "rate_total",
    default=0.0,
    callback=_megabytes,
    metavar="MB/S",
    help="Rate of all connections of the rank. [default: no limit]",
)
@click.option(
    "--connection-rate",
    "rate_per_connection",
    default=0.0,
    callback=_megabytes,
    metavar="MB/S",
    help="Rate of a connection. [default: no limit]",
)
@click.option("--connections", default=64, show_default=True, help="Most requests of a process at one time.")
@click.option(
    "--errors", "error_share", default=0.0, show_default=True, help="Share of answers that are 503."
)
@click.option("--slow", "slow_share", default=0.0, show_default=True, help="Share of answers that are slow.")
@click.option(
    "--slow-factor", default=20.0, show_default=True, help="How many times as long the latency of these is."
)
@click.option(
    "--sample-cost",
    "sample",
    default=Costs().sample,
    show_default=True,
    help="CPU seconds a sample in a worker, such as for decoding.",
)
@click.option("--seed", default=0, show_default=True, help="Chooses which answers are slow or errors.")
def simulate(
    path: str,
    samples: int | None,
    latency: float,
    jitter: float,
    rate_total: float,
    rate_per_connection: float,
    connections: int,
    error_share: float,
    slow_share: float,
    slow_factor: float,
    sample: float,
    seed: int,
    as_json: bool,
    **options: Any,
) -> None:
    """Predict the speed and the requests of training from a store that answers as the options say.

    PATH is a dataset or a metadataset's .yaml, in a store or a local copy. Give the options of the training.
    Indices are read, samples are not. The prediction begins with the opening of the dataset.
    """
    store = StoreModel(
        latency=latency,
        jitter=jitter,
        rate_per_connection=rate_per_connection,
        rate_total=rate_total,
        connections=connections,
        error_share=error_share,
        slow_share=slow_share,
        slow_factor=slow_factor,
    )
    found = predict(
        path,
        store,
        costs=Costs(sample=sample),
        samples=samples,
        seed=seed,
        **find_training(options, "the first batch is requested alone"),
    )
    emit(as_json, found.as_dict(), lambda: click.echo(_lines(found)))


def _lines(found: Prediction) -> str:
    again = f", {found.rejected} rejected, {found.repeated} repeated because they were late"
    return "\n".join(
        (
            f"{found.samples_per_second:,.0f} samples/s: {found.samples} samples in {found.seconds:.2f} s",
            f"first batch after {found.first_batch:.3f} s",
            f"{found.requests} requests{again}; {found.opening_requests} of them open the dataset",
            f"{show_size(found.bytes)} received",
            f"{found.waiting / found.seconds:.0%} of the time is spent waiting for the store",
        )
    )
