"""``energon-stream prewarm``: fill a node's cache with what training will read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import click

from energon_stream.cli.options import (
    cache_option,
    dataset_config_option,
    find_cache,
    path_argument,
    progress_option,
    require_cache,
    show_size,
    split_config_option,
    storage_option,
)
from energon_stream.errors import ConfigError
from energon_stream.prewarming import PrewarmResult
from energon_stream.prewarming import prewarm as fill_cache
from energon_stream.prewarming.report import PRICE_PER_1000_GET, PRICE_PER_GB
from energon_stream.worker import WorkerConfig


@click.command()
@path_argument
@storage_option
@progress_option
@cache_option
@click.option(
    "--cache-size",
    metavar="SIZE",
    help="Bytes that the cache may use, such as 200GB. [default: all but 5 GB]",
)
@click.option(
    "--split", "split_part", default="train", show_default=True, help="Split part, or split of a metadataset."
)
@click.option("--steps", type=int, help="Steps of each rank to warm; needs --batch-size.")
@click.option("--epochs", type=int, help="Passes over the data to warm. [default: 1]")
@click.option("--fraction", type=float, help="Share of a pass to warm, such as 0.3.")
@click.option("--world-size", default=1, show_default=True, help="Data-parallel ranks of the job.")
@click.option(
    "--rank",
    "ranks",
    multiple=True,
    metavar="RANK|FIRST-LAST",
    help="Ranks of this node, such as 0-7. Repeatable. [default: 0]",
)
@click.option("--num-workers", default=4, show_default=True, help="Workers of a rank.")
@click.option("--num-streams", default=0, help="Streams of the job. [default: ranks times workers]")
@click.option("--batch-size", type=int, help="Samples of a step.")
@click.option("--shuffle-buffer-size", type=int, help="As in training.")
@click.option("--max-samples-per-sequence", type=int, help="As in training.")
@click.option("--parallel-shard-iters", type=int, help="As in training.")
@click.option("--shuffle-over-epochs-multiplier", default=1, show_default=True, help="As in training.")
@click.option("--seed-offset", default=0, show_default=True, help="As in training.")
@click.option("--prefetch-factor", default=2, show_default=True, help="Batches that each worker holds ready.")
@click.option("--parts", metavar="NAME,…", help="Parts that training reads, if it names them.")
@click.option("--subset", metavar="FIRST,LAST", help="Share of the data: 10%,50% or 0,1000 or 1000,end.")
@split_config_option
@dataset_config_option
@click.option("--verify", is_flag=True, help="Read everything back and compare hashes.")
@click.option("--dry-run", is_flag=True, help="Fetch no samples; show what would be fetched, and the cost.")
@click.option(
    "--price-per-1000-get", default=PRICE_PER_1000_GET, show_default=True, help="Dollars for 1,000 GET."
)
@click.option("--price-per-gb", default=PRICE_PER_GB, show_default=True, help="Dollars for 10⁹ bytes.")
def prewarm(
    path: str,
    cache_dir: str | None,
    cache_size: str | None,
    ranks: tuple[str, ...],
    world_size: int,
    num_workers: int,
    num_streams: int,
    seed_offset: int,
    parts: str | None,
    subset: str | None,
    dry_run: bool,
    price_per_1000_get: float,
    price_per_gb: float,
    **options: Any,
) -> None:
    """Fetch into a node's cache what training will read.

    PATH is a dataset or a metadataset's .yaml. Give the options of the training: it then requests no data
    during these steps. After an interruption, run the command again; it keeps what it has fetched. Without
    --steps, --epochs and --fraction it warms one pass. Exits with status 1 if --verify found damage.
    """
    numbers = _ranks(ranks)
    result = fill_cache(
        path,
        cache=(find_cache if dry_run else require_cache)(cache_dir, cache_size),
        ranks=numbers,
        worker_config=WorkerConfig(
            numbers[0], world_size, num_workers, seed_offset=seed_offset, num_streams=num_streams
        ),
        parts=None if parts is None else parts.split(","),
        subset=_subset(subset),
        dry_run=dry_run,
        isolated=False,
        **options,
    )
    _show_plan(result, len(numbers))
    if dry_run:
        cost = result.plan.cost(price_per_1000_get=price_per_1000_get, price_per_gb=price_per_gb)
        listed = (price_per_1000_get, price_per_gb) == (PRICE_PER_1000_GET, PRICE_PER_GB)
        prices = f"${price_per_1000_get:g} for 1,000 GET and ${price_per_gb:g} for 1 GB"
        of = ": list prices of AWS S3 Standard in us-east-1, read from there" if listed else ""
        click.echo(f"Cost: ${cost:.{2 if cost >= 1 else 6}f}, at {prices}{of}")
        return
    _show_result(result)
    if result.damaged_bytes:
        raise SystemExit(1)


def _ranks(texts: Sequence[str]) -> list[int]:
    found: list[int] = []
    for text in texts:
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
        if match is None:
            raise ConfigError(f"--rank is {text!r}", hint="Use a number, or a range such as 0-7.")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ConfigError(f"--rank is {text!r}", hint="Give the smaller rank first.")
        found += range(first, last + 1)
    return found or [0]


def _subset(text: str | None) -> list[str | int] | None:
    return None if text is None else [int(end) if end.isdecimal() else end for end in text.split(",")]


def _show_plan(result: PrewarmResult, ranks: int) -> None:
    plan = result.plan
    of = "" if result.steps is None else f" of {result.steps} steps of {ranks} rank{'s' * (ranks > 1)}"
    click.echo(f"Samples: {plan.samples:,}{of}, and {plan.ahead_samples:,} more that training reads ahead")
    click.echo(
        f"Needed: {show_size(plan.bytes)} of {plan.objects:,} objects; "
        f"{show_size(plan.cached_bytes)} were in the cache"
    )
    click.echo(
        f"To fetch: {show_size(plan.missing_bytes)} with {plan.requests:,} requests; "
        f"metadata and indices took {plan.index_requests:,} with {show_size(plan.index_bytes)}"
    )
    if not plan.fits:
        room = show_size(plan.bytes - plan.excess_bytes)
        click.echo(f"Does not fit: the cache has room for {room} of {show_size(result.expected_bytes)}")


def _show_result(result: PrewarmResult) -> None:
    seconds = max(result.seconds, 1e-3)
    rate = show_size(round(result.fetched_bytes / seconds))
    click.echo(f"Fetched: {show_size(result.fetched_bytes)} in {seconds:.1f} s, {rate}/s")
    if result.verified_bytes is not None:
        damaged = f", {show_size(result.damaged_bytes)} were damaged" if result.damaged_bytes else ""
        click.echo(f"Verified: {show_size(result.verified_bytes)}{damaged}")
        if result.damaged_bytes:
            click.echo("Damaged bytes were removed; run the command again to fetch them.", err=True)
    if not result.is_complete:
        share = result.warm_samples / max(1, result.samples)
        steps = "" if result.warm_steps is None else f"{result.warm_steps:,} of {result.steps:,} steps, "
        held = show_size(result.plan.cached_bytes + result.fetched_bytes)
        click.echo(
            f"The cache is full: it holds the first {steps}{result.warm_samples:,} samples ({share:.1%}), "
            f"{held} of {show_size(result.expected_bytes)}. "
            "Training fetches the rest itself; raise --cache-size to keep more.",
            err=True,
        )
