"""``energon-stream plan``, ``explain`` and ``simulate``: what training reads, why, and how fast it is."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from energon_stream.cli.options import (
    COUNT,
    TIME,
    cache_option,
    option,
    option_group,
    picture_option,
    price_options,
    seed_option,
    show_size,
)
from energon_stream.cli.terminal import echo, emit
from energon_stream.cli.training_arguments import find_training, packing_options, training_arguments
from energon_stream.printable import counted
from energon_stream.quantities import parse_count

if TYPE_CHECKING:
    from energon_stream.tools.simulate import Forecast, Prediction, Prices
    from energon_stream.tools.simulate.explain import ExplainedRequest


@click.command()
@training_arguments
@cache_option
@packing_options
@option("--steps", required=True, type=COUNT)
@price_options
@picture_option
def plan(path: str, steps: int, prices: dict[str, float], picture: str | None, **options: Any) -> None:
    """Print what a rank will read in its first steps: samples, requests, bytes, their price, and the shuffle.

    PATH is a dataset or a metadataset's .yaml. Give the options of the training. Indices are read, samples
    are not. The price covers requests for samples; metadata, indices and retries come on top.
    """
    from energon_stream.tools.simulate import Prices, forecast

    training, of = find_training(options), Prices(**prices)
    found = forecast(path, steps=steps, **training)
    if picture is not None:
        found.order.save(picture)
    document = {**found.as_dict(), "price": found.price(of)}
    ranks = training["worker_config"].world_size
    emit(document, lambda: _show_forecast(found, of if prices else None, ranks))


def _show_forecast(found: Forecast, prices: Prices | None, ranks: int) -> None:
    samples, objects = counted(found.samples, "sample"), counted(found.objects, "object")
    echo(f"{counted(found.steps, 'step')}: {samples} from {objects}")
    cached = f", {show_size(found.cached_bytes)} of them cached" if found.cached_bytes else ""
    echo(
        f"{counted(found.requests, 'request')}, {found.requests / found.samples:.3f} a sample; {show_size(found.size)}{cached}"
    )
    for name, count in found.reasons.items():
        echo(f"  {name}: {count}")
    if prices is not None:
        price = found.price(prices)
        echo(f"Price: {price:.6g}; about {price * ranks:.6g} for all {counted(ranks, 'rank')}")
    echo(f"Shuffle: {found.order.summary}")
    for name, balance in found.balance.items():
        echo(f"Balance of {name} over {counted(ranks, 'rank')}: {balance.summary}")


@click.command()
@training_arguments
@cache_option
@packing_options
@option("--steps", required=True, metavar="N|FIRST:END")
def explain(path: str, steps: str, **options: Any) -> None:
    """Print the requests that serve some steps of training, the most urgent first, and why.

    PATH is a dataset or a metadataset's .yaml. Give the options of the training; it begins at step 0. Indices
    are read, samples are not. A line has the step that needs the request first, its object and bytes, the
    number of samples that it serves, and the reason why it ends where it does.
    """
    from energon_stream.tools.simulate.explain import explain as explain_steps

    first, _, end = steps.rpartition(":")
    span = parse_count(first or "0", "--steps"), parse_count(end, "--steps")
    found = explain_steps(path, steps=span, **find_training(options))
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
        f"({show_size(request.size)}, {counted(request.samples, 'sample')} up to step {request.last_step}{cached}): {request.reason}"
    )


def _show_sums(found: list[ExplainedRequest]) -> None:
    """Print totals, and what the reasons mean."""
    from energon_stream.read.read_plan import Reason

    cached = sum(request.cached_bytes for request in found)
    total = sum(request.size for request in found)
    click.echo(
        f"{counted(len(found), 'request')}, {show_size(total)}, of which {show_size(cached)} are in the cache."
    )
    for name, count in Counter(request.reason for request in found).most_common():
        click.echo(f"{name} ({count}): {Reason[name.upper()].value}")


_rate_option = partial(
    option,
    default=0.0,
    show_default="no limit",
    callback=lambda ctx, option, value: value * 1e6,
    metavar="MB/S",
)
_store_options = option_group(
    option("--latency", type=TIME, default=0.05),
    option("--jitter", type=TIME, default=0.0),
    _rate_option("--rate", "rate_total"),
    _rate_option("--connection-rate", "rate_per_connection"),
    option("--max-in-flight", type=COUNT, default=64),
    option("--errors", "error_share", default=0.0),
    option("--slow", "slow_share", default=0.0),
    option("--slow-factor", default=20.0),
)


@click.command()
@training_arguments
@option("--count", "samples", type=COUNT)
@_store_options
@option("--sample-cost", type=TIME)
@seed_option
def simulate(path: str, samples: int | None, sample_cost: float | None, seed: int, **options: Any) -> None:
    """Predict the speed and the requests of training from a store that answers as the options say.

    PATH is a dataset or a metadataset's .yaml, in a store or a local copy. Give the options of the training.
    Indices are read, samples are not. The prediction begins with the opening of the dataset.
    """
    from energon_stream.tools.simulate import Costs, StoreModel
    from energon_stream.tools.simulate import simulate as predict

    of_store = options.keys() & {field.name for field in fields(StoreModel)}
    store = StoreModel(**{name: options.pop(name) for name in of_store})
    costs = Costs() if sample_cost is None else Costs(sample=sample_cost)
    training = find_training(options, "the first batch is requested alone")
    found = predict(path, store, costs=costs, samples=samples, seed=seed, **training)
    emit(found.as_dict(), lambda: click.echo(_lines(found)))


def _lines(found: Prediction) -> str:
    again = f", {found.rejected} rejected, {found.repeated} repeated because they were late"
    return "\n".join(
        (
            f"{found.samples_per_second:,.0f} samples/s: {counted(found.samples, 'sample')} in {found.seconds:.2f} s",
            f"first batch after {found.first_batch:.3f} s",
            f"{counted(found.requests, 'request')}{again}; {found.opening_requests} of them open the dataset",
            f"{show_size(found.bytes)} received",
            f"{found.waiting / found.seconds:.0%} of the time is spent waiting for the store",
        )
    )
