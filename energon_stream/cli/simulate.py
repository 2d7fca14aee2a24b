"""``energon-stream plan``, ``explain`` and ``simulate``: what training reads, why, and how fast it is."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import click

from energon_stream.cli.options import Command, cache_option, option_group, picture_option, show_size
from energon_stream.cli.terminal import echo, emit
from energon_stream.cli.training_arguments import find_training, packing_options, training_arguments
from energon_stream.errors import ConfigError
from energon_stream.printable import counted
from energon_stream.read.read_plan import Reason
from energon_stream.tools.simulate import Costs, Forecast, Prediction, Prices, StoreModel
from energon_stream.tools.simulate import forecast as forecast_steps
from energon_stream.tools.simulate import simulate as predict
from energon_stream.tools.simulate.explain import ExplainedRequest
from energon_stream.tools.simulate.explain import explain as explain_steps

_price_options = option_group(
    click.option(
        "--request-price",
        "per_1000_requests",
        default=0.0,
        metavar="PRICE",
        help="Price of 1,000 GET requests, such as 0.0004.",
    ),
    click.option(
        "--gb-price", "per_gb", default=0.0, metavar="PRICE", help="Price of 10⁹ bytes that leave the store."
    ),
    prices=Prices,
)


@click.command()
@training_arguments
@cache_option
@packing_options
@click.option("--steps", required=True, type=int, help="Steps of the rank, from the first one on.")
@_price_options
@picture_option("Draw a heat map: where in the data the samples of each step lie.")
def plan(path: str, steps: int, prices: Prices, picture: str | None, **options: Any) -> None:
    """Print what a rank will read in its first steps: samples, requests, bytes, their price, and the shuffle.

    PATH is a dataset or a metadataset's .yaml. Give the options of the training. Indices are read, samples
    are not. The price covers requests for samples; metadata, indices and retries come on top.
    """
    training = find_training(options)
    found = forecast_steps(path, steps=steps, **training)
    if picture is not None:
        found.order.save(picture)
    document = {**found.as_dict(), "price": found.price(prices)}
    emit(document, lambda: _show_forecast(found, prices, training["worker_config"].world_size))


def _show_forecast(found: Forecast, prices: Prices, ranks: int) -> None:
    samples, objects = counted(found.samples, "sample"), counted(found.objects, "object")
    echo(f"{counted(found.steps, 'step')}: {samples} from {objects}")
    cached = f", {show_size(found.cached_bytes)} of them cached" if found.cached_bytes else ""
    echo(
        f"{counted(found.requests, 'request')}, {found.requests / found.samples:.3f} a sample; {show_size(found.size)}{cached}"
    )
    for name, count in found.reasons.items():
        echo(f"  {name}: {count}")
    if prices != Prices():
        price = found.price(prices)
        echo(f"Price: {price:.6g}; about {price * ranks:.6g} for all {counted(ranks, 'rank')}")
    echo(f"Shuffle: {found.order.summary}")


@click.command()
@training_arguments
@cache_option
@packing_options
@click.option(
    "--steps", required=True, metavar="FIRST:END", help="Steps of the rank, counted from 0; END is not one."
)
def explain(path: str, steps: str, **options: Any) -> None:
    """Print the requests that serve some steps of training, the most urgent first, and why.

    PATH is a dataset or a metadataset's .yaml. Give the options of the training; it begins at step 0. Indices
    are read, samples are not. A line has the step that needs the request first, its object and bytes, the
    number of samples that it serves, and the reason why it ends where it does.
    """
    match = re.fullmatch(r"(\d+):(\d+)", steps)
    if match is None:
        raise ConfigError(f"--steps is {steps!r}", hint="Use FIRST:END, such as 0:10.")
    found = explain_steps(path, steps=(int(match[1]), int(match[2])), **find_training(options))
    emit({"requests": [request.as_dict() for request in found]}, lambda: _show_requests(found))


def _show_requests(found: list[ExplainedRequest]) -> None:
    for request in found:
        echo(_line(request))
    _show_sums(found)


def _line(request: ExplainedRequest) -> str:
    span = f"{request.start}-{request.start + request.size - 1}"
    cached = f", {show_size(request.cached_bytes)} cached" if request.cached_bytes else ""
    return (
        f"step {request.deadline}: worker {request.worker} GET {request.object} {span} "
        f"({show_size(request.size)}, {request.samples} samples up to step {request.last_step}{cached}): {request.reason}"
    )


def _show_sums(found: list[ExplainedRequest]) -> None:
    """Print totals, and what the reasons mean."""
    cached = sum(request.cached_bytes for request in found)
    total = sum(request.size for request in found)
    click.echo(f"{len(found)} requests, {show_size(total)}, of which {show_size(cached)} are in the cache.")
    for name, count in Counter(request.reason for request in found).most_common():
        click.echo(f"{name} ({count}): {Reason[name.upper()].value}")


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
