"""Retries of transient faults."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from energon_stream.errors import TransientStorageError

T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Rules for retrying a request: how often, and after which waits. See ``StoreSpec.open(policy=…)``.

    The wait before retry ``n`` is uniform in ``[0, min(max_delay, base_delay * 4**(n - 1))]`` ("full jitter",
    https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/). With eleven attempts, one
    request in fifty million is lost if a fifth of all answers are 503, and a dead server is given up after
    about 11 s. The first waits are short because other requests wait for this one; the limit of requests in
    flight protects a busy store.

    Attributes:
        attempts: Attempts in all, the first included.
        base_delay: Upper bound of the first wait, in seconds.
        max_delay: Upper bound of any wait, in seconds.
        jitter: Returns uniform numbers in ``[0, 1)``. Not the global generator, whose draws belong to the
            user.
        sleep: Waits for a number of seconds.

    Example:
        >>> waits = []
        >>> def busy(attempt):
        ...     raise TransientStorageError("the store is busy")
        >>> RetryPolicy(attempts=4, jitter=lambda: 1.0, sleep=waits.append).run(busy)
        Traceback (most recent call last):
        energon_stream.errors.TransientStorageError: the store is busy (gave up after 4 attempts)
        >>> waits
        [0.002, 0.008, 0.032]
    """

    attempts: int = 11
    base_delay: float = 0.002
    max_delay: float = 5.0
    jitter: Callable[[], float] = field(default=random.SystemRandom().random, repr=False)
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False)

    def longest_wait(self, retry: int) -> float:
        """Return the upper bound of the wait before a retry, in seconds; retries count from 1."""
        return min(self.max_delay, self.base_delay * 4.0 ** (retry - 1))

    def run(self, function: Callable[[int], T]) -> T:
        """Call ``function(attempt)``, attempts counted from 0, until it succeeds.

        Raises TransientStorageError if the last attempt failed too; the message says how many there were.
        """
        attempt = 0
        while True:
            try:
                return function(attempt)
            except TransientStorageError as error:
                attempt += 1
                if attempt >= self.attempts:
                    raise TransientStorageError(
                        f"{error.what} (gave up after {attempt} attempts)", where=error.where, hint=error.hint
                    ) from error
                delay = self.jitter() * self.longest_wait(attempt)
                _log.debug("attempt %d failed, next in %.2f s: %s", attempt, delay, error)
                self.sleep(delay)
