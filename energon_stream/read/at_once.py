"""Reads given samples at once, without a reader."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from energon_stream.read.fetch import RangeFetch
from energon_stream.read.located import Located
from energon_stream.read.locating import load_entries
from energon_stream.read.plan_limits import PlanLimits
from energon_stream.read.read_plan import LargeSample, Reason, Request
from energon_stream.read.request_planner import Planner

if TYPE_CHECKING:
    from energon_stream.read.locator import Locator, RawSample
    from energon_stream.read.read_options import ReadOptions
    from energon_stream.schedule import Refs
    from energon_stream.storage import Fetcher


def fetch_samples(
    locators: Sequence[Locator], refs: Refs, fetcher: Fetcher, options: ReadOptions
) -> list[RawSample | None]:
    """Read one raw sample per reference at once, with few requests; None for an excluded one."""
    openers = [locator.opening for locator in locators]
    for load in load_entries(openers, refs, fetcher, deadline=0):
        load.result()
    if len(refs) == 1:  # it needs no plan, if it is one range
        leaf, sample = int(refs.leaf[0]), int(refs.index[0])
        objects, starts, stops = openers[leaf].locate(refs.index)
        if objects.shape[1] == 1:
            start, stop = int(starts[0, 0]), int(stops[0, 0])
            columns = starts[0], stops[0], refs.index
            whole = Request(0, leaf, int(objects[0, 0]), start, stop - start, *columns, 0, Reason.GAP)
            answer = RangeFetch(whole, locators[leaf], keeps=True)
            answer.send(fetcher)
            return [answer.cut(sample, 0)]
    most = sys.maxsize // 4
    limits = PlanLimits(0, 1, most, most, most, options.max_request, options.max_gap, most)
    made = Planner(limits, generation=2).add(Located.of(openers, refs)).plan(is_all=True)
    if made is None:
        return []
    fetches = [RangeFetch(request, locators[request.leaf], keeps=True) for request in made[0].requests]
    for fetch in fetches:
        fetch.send(fetcher)
    samples = []
    for planned in made[0].samples:
        if isinstance(planned, LargeSample):  # there is no limit
            raise TypeError("a sample was planned alone; please report this bug")
        leaf, sample, request, place, more = planned
        ranges = [(fetches[number], at) for number, at in ((request, place), *more)]
        found = [(fetch.request.object, fetch.cut(sample, at)) for fetch, at in ranges]
        samples.append(found[0][1] if locators[leaf].width == 1 else locators[leaf].merge(sample, found))
    return samples
