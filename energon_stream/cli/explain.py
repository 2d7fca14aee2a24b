"""``energon-stream explain``: the requests of training steps, and why each is made as it is."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import click

from energon_stream.cli.options import cache_option, show_size
from energon_stream.cli.terminal import echo, emit
from energon_stream.cli.training_arguments import find_training, packing_options, training_arguments
from energon_stream.errors import ConfigError
from energon_stream.read.read_plan import Reason
from energon_stream.tools.simulate.explain import ExplainedRequest
from energon_stream.tools.simulate.explain import explain as explain_steps


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
    emit({"requests": [request.as_dict() for request in found]}, lambda: _show(found))


def _show(found: list[ExplainedRequest]) -> None:
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
