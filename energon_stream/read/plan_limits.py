"""Limits of the plans of one reader, of its share of what the user allows a process. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from energon_stream.read.read_plan import Reason, Window

if TYPE_CHECKING:
    from energon_stream.read.locator import Locator
    from energon_stream.read.read_options import ReadOptions

_SMALL_PLAN = 16 << 20
"""Plans of many readers take 9/10 of their share up to this size; above it, half of the share."""
_OPENING_TAKES = 4
"""Times the first samples from which such a request takes in what lies between them."""
_SMALL_REQUEST = 2 << 20
"""Largest request of many readers, unless their plans are large."""


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """Limits of one reader's plans; see also :class:`ReadOptions`."""

    exact_samples: int  # of generation 0; 0 for none
    opening_take: int  # samples from which generation 0 is chosen, and which it may take in
    second_take: int  # samples after these from which generation 1 is chosen
    max_ahead: int
    plan_bytes: int  # of a generation; half as many more while answers are kept
    max_request: int
    max_gap: int
    largest_shared: int
    resident_bytes: int = 0  # planned bytes that are kept for later passes; with more, none are kept
    is_shared: bool = False  # whether other readers share the budget
    request_limit: Reason = Reason.MAX_REQUEST  # what sets ``max_request``
    local: frozenset[int] = frozenset()  # leaves that are local files, whose samples may have any size
    sparse: frozenset[int] = frozenset()  # leaves of which a view, or a rank's packs, have only some samples
    max_waste: float = 0.0
    windows: int = 0  # of planned packs, whose samples all readers of a process plan together

    def group(self, window: Window) -> Window:
        """Return the pass and the number of the windows that are planned together, whichever reader plans."""
        return window[0], window[1] // max(1, self.windows)


def plan_limits(options: ReadOptions, locators: Sequence[Locator], readers: int = 1) -> PlanLimits:
    """Return the limits of the plans of one of several readers in a process, given its share ``options``."""
    plan, request = max(1, options.fetch_bytes // 4), options.max_request
    if readers > 1:
        # Single samples leave gaps in memory, so a 16th of the budget stays free.
        share = options.fetch_bytes * readers * 15 // 16 // readers
        plan = max(1, share // 2, min(share * 9 // 10, _SMALL_PLAN))
        request = min(request, max(_SMALL_REQUEST, plan // 4))
    # Where it is open whether parts are read, the first samples are read whole, and no others for certain.
    takes_in = readers == 1 and all(locator.opening is locator for locator in locators)
    return PlanLimits(
        exact_samples=options.exact_samples,
        opening_take=min(options.max_ahead, options.exact_samples * (_OPENING_TAKES if takes_in else 1)),
        second_take=options.second_take,
        max_ahead=options.max_ahead,
        plan_bytes=plan,
        max_request=request,
        max_gap=options.max_gap,
        largest_shared=options.largest_shared,
        resident_bytes=options.fetch_bytes * 15 // 16,
        is_shared=readers > 1,
        request_limit=Reason.MAX_REQUEST if request == options.max_request else Reason.SHARED_LIMIT,
        local=frozenset(number for number, locator in enumerate(locators) if locator.index_is_local),
        sparse=frozenset(
            number for number, locator in enumerate(locators) if locator.is_sparse or options.is_planned
        ),
        max_waste=options.max_waste,
        windows=options._windows if readers > 1 else 0,
    )
