"""``energon-stream simulate``: the speed of training from a store, predicted."""

from __future__ import annotations

from typing import Any

import click

from energon_stream.cli.options import Command, option_group, show_size
from energon_stream.cli.terminal import emit
from energon_stream.cli.training_arguments import find_training, training_arguments
from energon_stream.tools.simulate import Costs, Prediction, StoreModel
from energon_stream.tools.simulate import simulate as predict


def _rate_option(*names: str, text: str) -> Command:
    return click.option(
        *names,
        default=0.0,
        show_default="no limit",
        callback=lambda ctx, option, value: value * 1e6,
        metavar="MB/S",
        help=text,
    )


_store_options = option_group(
    click.option("--latency", default=0.05, help="Seconds from a request to the first byte of its answer."),
    click.option("--jitter", default=0.0, help="Seconds more on average, at random."),
    _rate_option("--rate", "rate_total", text="Rate of all connections of the rank."),
    _rate_option("--connection-rate", "rate_per_connection", text="Rate of a connection."),
    click.option("--connections", default=64, help="Most requests of a process at one time."),
    click.option("--errors", "error_share", default=0.0, help="Share of answers that are 503."),
    click.option("--slow", "slow_share", default=0.0, help="Share of answers that are slow."),
    click.option("--slow-factor", default=20.0, help="How many times as long the latency of these is."),
    store=StoreModel,
)


@click.command()
@training_arguments
@click.option("--samples", type=int, help="Samples of the rank. [default: one pass]")
@_store_options
@click.option(
    "--sample-cost", default=Costs().sample, help="CPU seconds a sample in a worker, such as for decoding."
)
@click.option("--seed", default=0, help="Chooses which answers are slow or errors.")
def simulate(
    path: str, samples: int | None, store: StoreModel, sample_cost: float, seed: int, **options: Any
) -> None:
    """Predict the speed and the requests of training from a store that answers as the options say.

    PATH is a dataset or a metadataset's .yaml, in a store or a local copy. Give the options of the training.
    Indices are read, samples are not. The prediction begins with the opening of the dataset.
    """
    training = find_training(options, "the first batch is requested alone")
    found = predict(path, store, costs=Costs(sample=sample_cost), samples=samples, seed=seed, **training)
    emit(found.as_dict(), lambda: click.echo(_lines(found)))


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
