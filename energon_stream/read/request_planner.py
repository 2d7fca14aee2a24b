"""Plans range requests: which bytes are requested together, in which order, and why.

The schedule is a pure function, so the future is known. A :class:`Planner` turns located ranges into
requests, one *generation* at a time. It is a frozen value without clock, thread or I/O: the same ranges and
limits give the same requests, in however many pieces the ranges arrive. Readers, prewarming, ``explain`` and
the simulator all follow this plan.

Generation 0 has the first samples in small requests, generation 1 up to 64 MiB, later ones a quarter of what
a reader may hold, or three eighths while answers are kept. A request may take in samples that lie between two
wanted ones and belong to the next generation; they are not fetched twice. While all planned
bytes fit in the budget together, no later pass requests them again, and a request has all of a run of
neighbours, if it is not too large.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from energon_stream.arrays import Int64Array, distinct
from energon_stream.read.generation import cut_generation, has_range_near, whole_runs
from energon_stream.read.kept_ranges import KeptRanges
from energon_stream.read.located import Located
from energon_stream.read.plan_limits import PlanLimits
from energon_stream.read.read_plan import LargeSample, PlannedSamples, ReadPlan, Reason, Request, Window
from energon_stream.storage.coalesce import FetchPlan, plan_fetches

_FIRST_PLAN = 64 << 20
"""Most bytes of the plan after the first samples, whatever the budget, so that its answers arrive soon. With
less, a wide shuffle leaves gaps between its samples: 16 MiB made five times as many requests."""
_KEPT_PLANS = 3 / 2
"""Times ``plan_bytes`` of a plan whose answers are kept anyway, so that a group of slices is not cut in two.
Large requests of others would free the budget late: a pass of 1 GB at 200 ms would be a fifth slower."""
_OPENING_GAPS = 2
"""Times ``max_gap`` that a request of the first samples may read to spare a second request."""
_OPENING_BYTES = 2 << 20
"""Bytes of the first window of planned packs up to which such requests take in whole runs of neighbours.
64 ranks with 500 samples of 1 KB each make 586 requests, not 875: see ``benchmarks/packing_bytes.py``."""

_NONE: Int64Array = np.zeros(0, dtype=np.int64)


class ByteRanges(NamedTuple):
    """Byte ranges of objects, ``int64`` each.

    Later requests of a single reader may span the ranges of generation 0, rather than end at each of them.
    """

    keys: Int64Array = _NONE  # leaf and object
    starts: Int64Array = _NONE  # first bytes
    stops: Int64Array = _NONE  # bytes after the last ones


@dataclass(frozen=True, eq=False)  # without slots, for the cached property
class Planner:
    """Plans the requests of one reader. Its methods return new planners.

    Example:
        >>> import numpy as np
        >>> starts = np.arange(4) * 1000
        >>> located = Located(
        ...     np.zeros(4, int), np.arange(4), np.zeros(4, int), starts, starts + 1000,
        ...     begins=np.ones(4, bool), skips=np.zeros(4, bool),
        ... )
        >>> limits = PlanLimits(1, 1, 10, 10, 1 << 20, 2000, 0, 1 << 20)
        >>> planner = Planner(limits).add(located)
        >>> first, planner = planner.plan(is_all=True)
        >>> second, planner = planner.plan(is_all=True)
        >>> [(request.start, request.size, request.reason.name) for request in first.requests]
        [(0, 1000, 'FIRST_BATCH')]
        >>> [(request.start, request.size, request.reason.name) for request in second.requests]
        [(1000, 2000, 'MAX_REQUEST'), (3000, 1000, 'GAP')]
    """

    limits: PlanLimits
    generation: int = 0  # number of the next generation
    ranges: int = 0  # ranges planned so far
    exact_end: int = 0  # number of ranges up to the end of the last generation 0
    requests: int = 0  # requests planned so far
    bytes: int = 0  # bytes of these requests
    located: Located = field(default_factory=Located.none)  # not planned yet
    # Request of each located range that an earlier generation has taken in, else -1; its place in it.
    taken: Int64Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    places: Int64Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    kept: KeptRanges | None = field(default_factory=KeptRanges)  # None if answers are not kept
    is_served: bool = False  # whether the last generation needed no request
    opening: ByteRanges = field(default_factory=ByteRanges)  # requests of the pass's generation 0
    ends: tuple[tuple[int, Window], ...] = ()  # ranges up to ends of windows of planned packs
    window_samples: int = 0  # of a small first window, of which generation 0 takes in whole runs

    def __post_init__(self) -> None:
        if not self.generation and not self.limits.exact_samples:
            object.__setattr__(self, "generation", 1)

    def add(self, located: Located, ended: Window | None = None) -> Planner:
        """Return the planner with more ranges; ``ended`` is the window that ends with them."""
        end = self.ranges + len(self.located) + len(located)
        none = np.full(len(located), -1, dtype=np.int64)
        return replace(
            self,
            located=self.located + located,
            taken=np.concatenate([self.taken, none]),
            places=np.concatenate([self.places, none]),
            ends=self.ends if ended is None or end == self.ranges else (*self.ends, (end, ended)),
        )

    def opening_with(self, samples: int) -> Planner:
        """Return a planner whose generation 0 has this number of samples."""
        return replace(self, limits=replace(self.limits, exact_samples=samples, opening_take=samples))

    def may_widen(self, rest: int) -> bool:
        """Return whether generation 0 may take in whole runs of the first window.

        That is so for a single reader, if the window is few bytes: what is located, and ``rest`` more samples
        about as large as the first ones.
        """
        if self.generation or self.window_samples or self.ends or self.limits.is_shared:
            return False
        located = self.located
        first = np.cumsum(located.begins) <= self.limits.exact_samples
        size, samples = int(located.sizes[first].sum()), int(located.begins[first].sum())
        window = int(located.begins.sum()) + rest
        return window <= self.limits.max_ahead and size * window <= _OPENING_BYTES * samples

    def with_window(self) -> Planner:
        """Return a planner whose generation 0 takes in runs of what is located, if that is few bytes."""
        is_small = int(self.located.sizes.sum()) <= _OPENING_BYTES
        return replace(self, window_samples=int(self.located.begins.sum())) if is_small else self

    def without_exact(self) -> Planner:
        """Return a planner that begins with generation 1."""
        return replace(self, generation=max(1, self.generation))

    def restart(self) -> Planner:
        """Return the planner of the next pass. It begins with small requests again, unless all is there."""
        begins_exact = self.limits.exact_samples > 0 and not self.is_served
        return replace(self, generation=0 if begins_exact else 1, opening=ByteRanges(), window_samples=0)

    @property
    def starts_large(self) -> bool:
        """True if the next sample is too large to be requested beside others."""
        return len(self.located) > 0 and not self._shareable(self.located[: self.located.whole(1)])

    def has_enough(self, is_all: bool) -> bool:
        """Return whether the next generation is determined. ``is_all`` tells that no references follow."""
        return (is_all and len(self.located) > 0) or self._view is not None

    def plan(self, is_all: bool = False) -> tuple[ReadPlan, Planner] | None:
        """Return the plan of the next generation, and the planner of the rest; None if references lack.

        ``is_all`` tells that no references follow.
        """
        view = self._view
        if view is None:
            if not is_all or not len(self.located):
                return None
            view = len(self.located)
        seen = self.located[:view]
        shared = self._shareable(seen)
        if not shared:
            return self._plan_large()
        must, may = self._cut(seen, shared)
        return self._merge(must, min(seen.whole(must + may), shared) - must, view)

    @cached_property
    def _view(self) -> int | None:
        """Return the number of ranges from which the next generation is chosen; None if some are missing.

        It depends on the ranges alone, and not on how many more are located.
        """
        limits, located = self.limits, self.located
        if self.generation and self._window_end is not None:
            return self._window_end or None
        references, size = limits.max_ahead, self._plan_bytes
        if self.generation == 0:
            references = self.window_samples or limits.opening_take
        elif self.generation == 1:
            references, size = limits.second_take, min(size, _FIRST_PLAN)
        if self.generation and not limits.is_shared:
            size *= 2  # the ranges that it may take in
        heads = np.flatnonzero(located.begins)
        by_size = int(np.searchsorted(np.cumsum(located.sizes), size, side="right")) + 1
        if by_size <= len(located):
            by_size = located.whole(by_size)
            within = int(np.searchsorted(heads, by_size, side="left"))
            return by_size if within <= references else int(heads[references])
        if len(heads) > references:
            return int(heads[references])
        return len(located) if len(heads) == references else None

    @cached_property
    def _window_end(self) -> int | None:
        """The ranges of the windows that are planned together: 0 if some lack, None if they are too many."""
        limits, located = self.limits, self.located
        ends = [
            (end - self.ranges, window) for end, window in self.ends if limits.group(window) == self.group
        ]
        seen = located[: ends[-1][0]] if ends else located
        if not limits.windows or seen.begins.sum() > limits.max_ahead or seen.sizes.sum() > limits.plan_bytes:
            return None
        is_whole = len(ends) < len(self.ends) or (ends and (ends[-1][1][1] + 1) % limits.windows == 0)
        return ends[-1][0] if is_whole else 0

    @property
    def group(self) -> Window | None:
        """The group of windows that is planned next; None if no end of one is known."""
        return self.limits.group(self.ends[0][1]) if self.ends else None

    @property
    def _plan_bytes(self) -> int:
        limits = self.limits
        if self.kept is None or limits.is_shared or not self.generation:
            return limits.plan_bytes
        return int(limits.plan_bytes * _KEPT_PLANS)

    def _shareable(self, seen: Located) -> int:
        """Return the number of ranges before the first sample that is read alone."""
        large = seen.reference_sizes() > self.limits.largest_shared
        if self.limits.local and large.any():
            large &= ~np.isin(seen.leaf, list(self.limits.local))
        alone = np.flatnonzero(large)
        return int(alone[0]) if len(alone) else len(seen)

    def _cut(self, seen: Located, shared: int) -> tuple[int, int]:
        """Return the number of ranges of the next generation, and of those after it that it may take in."""
        limits = self.limits
        if self.generation and self._window_end == len(seen) == shared:
            return shared, 0
        if not self.generation:
            within = np.cumsum(seen.sizes) <= limits.plan_bytes
            first = np.cumsum(seen.begins) <= limits.exact_samples
            must = min(seen.whole(max(1, int((within & first).sum()))), shared)
            return must, max(0, min(int(within.sum()), shared) - must)
        wanted = min(self._plan_bytes, _FIRST_PLAN) if self.generation == 1 else self._plan_bytes
        keys, starts, stops = seen.keys[:shared], seen.starts[:shared], seen.stops[:shared]
        most = limits.max_ahead // 2
        if limits.sparse and self._view is not None:  # what follows tells where to end
            most = min(most, shared * 3 // 4)
        # The samples after the first ones are chosen from few others, of which the neighbours are not seen.
        sees_all = self.generation > 1 or self._view is None
        must = cut_generation(keys, starts, stops, wanted, max(1, most), sees_all)
        must = min(seen.whole(must), shared)
        if limits.is_shared:  # ranges that are taken in would be held for long, and the next plan lack them
            return must, 0
        # End the ranges that are taken in at a good place, too, so that few neighbours are separated.
        after = slice(must, shared)
        room = max(0, 2 * wanted - int(seen.sizes[:must].sum()))
        return must, cut_generation(keys[after], starts[after], stops[after], room)

    def _plan_large(self) -> tuple[ReadPlan, Planner]:
        """Plan one sample that is read alone. From here on, nothing is kept: it needs the memory."""
        count = self.located.whole(1)
        seen = self.located[:count]
        columns = seen.objects.tolist(), seen.starts.tolist(), seen.stops.tolist()
        sample = LargeSample(int(seen.leaf[0]), int(seen.index[0]), tuple(zip(*columns, strict=True)))
        plan = ReadPlan(self.generation, (), (sample,), count, int(seen.sizes.sum()), self.ranges)
        return plan, replace(self._after(count), kept=None)

    def _after(self, count: int) -> Planner:
        """Return the planner after a generation of ``count`` ranges."""
        return replace(
            self,
            generation=self.generation + 1,
            ranges=self.ranges + count,
            exact_end=self.exact_end if self.generation else self.ranges + count,
            located=self.located[count:],
            taken=self.taken[count:],
            places=self.places[count:],
            ends=tuple(each for each in self.ends if each[0] > self.ranges + count),
        )

    def _merge(self, must: int, may: int, seen: int) -> tuple[ReadPlan, Planner]:
        """Merge the next ``must`` ranges into requests.

        Of the ``may`` ranges after them, the ones between two of these are served as well. ``seen`` is
        the number of ranges that this generation was chosen from.
        """
        limits, located = self.limits, self.located
        taken, places = self.taken.copy(), self.places.copy()
        reused = self._find_kept(taken, places, must + may)
        free = np.flatnonzero(taken[: must + may] < 0)
        keys, starts, stops = located.keys[free], located.starts[free], located.stops[free]
        is_opening, opening = not self.generation, self.opening
        required, is_sparse = free < must, len(limits.sparse) > 0
        takes_runs = self.kept is not None and not is_sparse  # they need no room but their own
        if is_opening:  # requests of the first samples read any gap, but not those of a window
            takes_runs = is_sparse = self.window_samples > 0
        if takes_runs:
            required = whole_runs(keys, starts, stops, required, limits.max_request)
        all_keys = np.concatenate([keys, opening.keys])
        plan = plan_fetches(
            all_keys,
            np.concatenate([starts, opening.starts]),
            np.concatenate([stops, opening.stops]),
            np.concatenate([required, np.zeros(len(opening.keys), dtype=np.bool_)]),
            max_gap=_OPENING_GAPS * limits.max_gap if is_opening else limits.max_gap,
            max_bytes=limits.max_request,
            sparse=np.isin(all_keys >> 32, list(limits.sparse)) if is_sparse else None,
            max_waste=limits.max_waste,
        )
        if is_opening and not limits.is_shared:  # of many readers, each has little room for bytes read twice
            opening = ByteRanges(plan.objects, plan.starts, plan.stops)
        fetch_of = plan.fetch_of[: len(free)]
        served = np.flatnonzero(fetch_of >= 0)
        by_fetch = served[np.argsort(fetch_of[served], kind="stable")]
        bounds = np.searchsorted(fetch_of[by_fetch], np.arange(len(plan.starts) + 1)).tolist()
        first, last = plan.starts.tolist(), plan.stops.tolist()
        # Rows are in order, so the first row of a request is its most urgent one.
        order = np.argsort(free[by_fetch[bounds[:-1]]], kind="stable").tolist() if len(bounds) > 1 else []
        reasons = self._reasons(plan, located[:seen][_without(taken[:seen], free[served])])
        requests = []
        for number, at in enumerate(order, self.requests):
            rows = by_fetch[bounds[at] : bounds[at + 1]]
            places_of = free[rows]
            taken[places_of], places[places_of] = number, np.arange(len(rows))
            request = Request(
                number,
                int(located.leaf[places_of[0]]),
                int(located.objects[places_of[0]]),
                first[at],
                last[at] - first[at],
                starts[rows],
                stops[rows],
                located.index[places_of],
                self.ranges + int(places_of[0]),
                reasons[at],
            )
            requests.append(request)
        total = self.bytes + sum(request.size for request in requests)
        kept = None if total > limits.resident_bytes else self.kept
        if kept is not None and requests:
            rows = free[served]
            columns = located.keys[rows], located.index[rows], located.starts[rows]
            kept = kept.add(*columns, taken[rows], places[rows])
        made = ReadPlan(
            self.generation,
            tuple(requests),
            self._samples(must, taken, places),
            must,
            int(located.sizes[:must].sum()),
            self.ranges,
            reused,
            kept is not None,
        )
        rest = replace(self, taken=taken, places=places)._after(must)
        planned = self.requests + len(requests)
        return made, replace(
            rest, requests=planned, bytes=total, kept=kept, is_served=not requests, opening=opening
        )

    def _find_kept(self, taken: Int64Array, places: Int64Array, count: int) -> dict[int, list[int]]:
        """Assign the first ``count`` ranges to kept requests that hold them; return the places by request."""
        if self.kept is None:
            return {}
        free = np.flatnonzero(taken[:count] < 0)
        wanted = self.located[free]
        taken[free], places[free] = self.kept.find(wanted.keys, wanted.index, wanted.starts)
        rows = free[taken[free] >= 0]
        order = rows[np.argsort(taken[rows], kind="stable")]
        numbers = distinct(taken[order])
        firsts = np.searchsorted(taken[order], numbers)
        parts = np.split(places[order], firsts[1:])
        return {number: part.tolist() for number, part in zip(numbers.tolist(), parts, strict=False)}

    def _reasons(self, plan: FetchPlan, later: Located) -> list[Reason]:
        """Return why each request ends where it does. No request serves the ranges ``later``."""
        limits = self.limits
        if not self.generation:
            return [Reason.FIRST_BATCH] * len(plan.starts)
        near = has_range_near(plan.objects, plan.stops, later, limits.max_gap)
        skips = np.isin(plan.objects >> 32, self.located.leaf[self.located.skips])
        reasons = limits.request_limit, Reason.WASTE, Reason.GENERATION_END, Reason.PARTS, Reason.GAP
        which = np.select([plan.ends_by_size, plan.ends_by_waste, near, skips], [0, 1, 2, 3], 4)
        return [reasons[number] for number in which.tolist()]

    def _samples(self, must: int, taken: Int64Array, places: Int64Array) -> PlannedSamples:
        """Group the first ``must`` ranges into samples."""
        located = self.located
        heads = np.flatnonzero(located.begins[:must])
        more = None
        if len(heads) < must:
            ranges = list(zip(taken[:must].tolist(), places[:must].tolist(), strict=True))
            ends = [*heads[1:].tolist(), must]
            more = [tuple(ranges[head + 1 : end]) for head, end in zip(heads.tolist(), ends, strict=True)]
        return PlannedSamples(
            located.leaf[heads].tolist(),
            located.index[heads].tolist(),
            taken[heads].tolist(),
            places[heads].tolist(),
            more,
        )


def _without(taken: Int64Array, served: Int64Array) -> Int64Array:
    """Return the rows that no request serves, neither an earlier one nor one of those just planned."""
    free = taken < 0
    free[served[served < len(free)]] = False
    return np.flatnonzero(free)
