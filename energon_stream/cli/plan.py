"""``energon-stream plan``: what a rank will read in its first steps, its price, and how well it shuffles."""

from __future__ import annotations

from typing import Any

import click

from energon_stream.cli.options import (
    cache_option,
    find_cache,
    find_config,
    json_option,
    path_argument,
    require_batch_size,
    show_size,
    storage_option,
    training_options,
)
from energon_stream.cli.packing_options import find_packing, packing_options
from energon_stream.cli.terminal import echo, emit
from energon_stream.tools.simulate.forecast import Forecast, Prices
from energon_stream.tools.simulate.forecast import forecast as forecast_steps


@click.command()
@path_argument
@storage_option
@cache_option
@training_options
@packing_options
@click.option("--steps", required=True, type=int, help="Steps of the rank, from the first one on.")
@click.option("--rank", default=0, show_default=True, help="Rank of the job.")
@click.option(
    "--request-price",
    "per_1000_requests",
    default=0.0,
    metavar="PRICE",
    help="Price of 1,000 GET requests, such as 0.0004.",
)
@click.option(
    "--gb-price", "per_gb", default=0.0, metavar="PRICE", help="Price of 10⁹ bytes that leave the store."
)
@click.option(
    "--png",
    type=click.Path(dir_okay=False, writable=True),
    metavar="FILE",
    help="Draw a heat map: where in the data the samples of each step lie.",
)
@json_option
def plan(
    path: str,
    cache_dir: str | None,
    steps: int,
    rank: int,
    batch_size: int | None,
    per_1000_requests: float,
    per_gb: float,
    png: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Print what a rank will read in its first steps: samples, requests, bytes, their price, and the shuffle.

    PATH is a dataset or a metadataset's .yaml. Give the options of the training. Indices are read, samples
    are not. Prices are those of requests for samples; metadata, indices and retries come on top.
    """
    find_packing(options)
    prices = Prices(per_1000_requests, per_gb)
    config = find_config(rank, options)
    found = forecast_steps(
        path,
        steps=steps,
        batch_size=require_batch_size(batch_size),
        worker_config=config,
        cache=find_cache(cache_dir) or False,
        **options,
    )
    if png is not None:
        found.order.picture().save(png, "PNG")
    document = {**found.as_dict(), "price": found.price(prices)}
    emit(as_json, document, lambda: _show(found, prices, config.world_size))


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
