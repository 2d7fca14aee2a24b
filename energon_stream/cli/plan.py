"""``energon-stream plan``: what a rank will read in its first steps, its price, and how well it shuffles."""

from __future__ import annotations

from typing import Any

import click

from energon_stream.cli.options import cache_option, option_group, show_size
from energon_stream.cli.terminal import echo, emit
from energon_stream.cli.training_arguments import find_training, packing_options, training_arguments
from energon_stream.tools.simulate.forecast import Forecast, Prices
from energon_stream.tools.simulate.forecast import forecast as forecast_steps

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
@click.option(
    "--png",
    type=click.Path(dir_okay=False, writable=True),
    metavar="FILE",
    help="Draw a heat map: where in the data the samples of each step lie.",
)
def plan(path: str, steps: int, prices: Prices, png: str | None, **options: Any) -> None:
    """Print what a rank will read in its first steps: samples, requests, bytes, their price, and the shuffle.

    PATH is a dataset or a metadataset's .yaml. Give the options of the training. Indices are read, samples
    are not. The price covers requests for samples; metadata, indices and retries come on top.
    """
    training = find_training(options)
    found = forecast_steps(path, steps=steps, **training)
    if png is not None:
        found.order.picture().save(png, "PNG")
    document = {**found.as_dict(), "price": found.price(prices)}
    emit(document, lambda: _show(found, prices, training["worker_config"].world_size))


def _show(found: Forecast, prices: Prices, ranks: int) -> None:
    echo(f"{found.steps} steps: {found.samples} samples from {found.objects} objects")
    cached = f", {show_size(found.cached_bytes)} of them cached" if found.cached_bytes else ""
    echo(
        f"{found.requests} requests, {found.requests / found.samples:.3f} a sample; {show_size(found.size)}{cached}"
    )
    for name, count in found.reasons.items():
        echo(f"  {name}: {count}")
    if prices != Prices():
        price = found.price(prices)
        echo(f"Price: {price:.6g}; about {price * ranks:.6g} for all {ranks} ranks")
    order = found.order
    echo(
        f"Shuffle: spread {order.spread:.2f} (1 is a shuffle of all data), a step has samples of "
        f"{order.shards:.1f} shards, {order.neighbours:.0%} of the samples are followed by their neighbour"
    )
