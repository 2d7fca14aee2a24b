"""``energon-stream prewarm``: fill a node's cache with what training will read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from energon_stream.cli.options import (
    COUNT,
    SIZE,
    cache_option,
    engine_options,
    find_cache,
    find_chosen_engine,
    flag,
    option,
    price_options,
    progress_option,
    require_cache,
    show_size,
)
from energon_stream.cli.recorded_run import find_packing
from energon_stream.cli.terminal import emit
from energon_stream.cli.training_arguments import find_config, packing_options, training_options
from energon_stream.errors import ConfigError
from energon_stream.printable import counted

if TYPE_CHECKING:
    from energon_stream.prewarming import PrewarmResult


@click.command()
@training_options
@packing_options
@progress_option
@cache_option
@option("--cache-size", type=SIZE)
@option("--steps", type=COUNT)
@option("--epochs", type=COUNT)
@option("--fraction", type=float)
@option("--rank", "ranks", multiple=True, metavar="RANK|FIRST-LAST")
@option("--prefetch-factor", type=COUNT, default=2)
@flag("--verify")
@engine_options(find_chosen_engine)
@flag("--dry-run")
@price_options
def prewarm(
    path: str,
    cache_dir: str | None,
    cache_size: int | None,
    ranks: tuple[str, ...],
    dry_run: bool,
    prices: dict[str, float],
    **options: Any,
) -> None:
    """Fetch into a node's cache what training will read.

    PATH is a dataset or a metadataset's .yaml. Give the options of the training: it then requests no data
    during these steps. After an interruption, run the command again; it keeps what it has fetched. Without
    --steps, --epochs and --fraction it warms one pass. Exits with status 1 if --verify found damage.

    With --processes or --engine ray, each rank is a task; all processes must share the cache directory.
    """
    from energon_stream.prewarming import prewarm as fill_cache
    from energon_stream.prewarming.results import PRICE_PER_1000_GET, PRICE_PER_GB

    find_packing(options)
    numbers = _ranks(ranks)
    result = fill_cache(
        path,
        cache=(find_cache if dry_run else require_cache)(cache_dir, cache_size),
        ranks=numbers,
        worker_config=find_config(numbers[0], options),
        dry_run=dry_run,
        isolated=False,
        **options,
    )
    show_plan = partial(_show_plan, result, len(numbers))
    if dry_run:
        per_1000_get, per_gb = (
            prices.get("per_1000_get", PRICE_PER_1000_GET),
            prices.get("per_gb", PRICE_PER_GB),
        )
        cost = result.plan.cost(price_per_1000_get=per_1000_get, price_per_gb=per_gb)
        of = "" if prices else ": list prices of AWS S3 Standard in us-east-1, read from there"
        at = f"${per_1000_get:g} for 1,000 GET and ${per_gb:g} for 1 GB"
        line = f"Cost: ${cost:.{2 if cost >= 1 else 6}f}, at {at}{of}"
        document = {"plan": asdict(result.plan), "dollars": cost}
        emit(document, show_plan, lambda: click.echo(line))
        return
    emit(asdict(result), show_plan, lambda: _show_result(result))
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


def _show_plan(result: PrewarmResult, ranks: int) -> None:
    plan = result.plan
    of = "" if result.steps is None else f" of {counted(result.steps, 'step')} of {counted(ranks, 'rank')}"
    click.echo(f"Samples: {plan.samples:,}{of}")
    click.echo(
        f"Read ahead: {plan.ahead_samples:,} later samples, which training requests before it has done these; "
        "their bytes are among those below"
    )
    click.echo(
        f"Needed: {show_size(plan.bytes)} of {counted(plan.objects, 'object')}; "
        f"{show_size(plan.cached_bytes)} were in the cache"
    )
    click.echo(
        f"To fetch: {show_size(plan.missing_bytes)} with {counted(plan.requests, 'request')}; "
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
            f"The cache is full: it holds the first {steps}{counted(result.warm_samples, 'sample')} ({share:.1%}), "
            f"{held} of {show_size(result.expected_bytes)}. "
            "Training fetches the rest itself; raise --cache-size to keep more.",
            err=True,
        )
