"""The one retry layer: transient faults, exponential back-off with full jitter."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from energon_stream.errors import TransientStorageError

__all__ = ["RetryPolicy"]

T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and when a request is tried again.

    The wait before try ``n`` is uniform in ``[0, min(max_delay, base_delay * 2**(n - 1))]`` ("full
    jitter", https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/). Eleven tries
    lose one request in fifty million where a fifth of all answers are 503, and give up on a dead
    server after about 8 s. The first waits are short because others wait for the request; where the store
    is asked too much, it is the limit of requests in flight that spares it.

    Attributes:
        attempts: Tries in all, the first included.
        base_delay: Upper bound of the first wait, seconds.
        max_delay: Upper bound of any wait, seconds.
        jitter: Source of uniform numbers in ``[0, 1)``; not the global one, whose draws belong to the user's hooks.
        sleep: How to wait.
    """

    attempts: int = 11
    base_delay: float = 0.025
    max_delay: float = 5.0
    jitter: Callable[[], float] = field(default=random.SystemRandom().random, repr=False)
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False)

    def run(self, function: Callable[[int], T]) -> T:
        """Call ``function(attempt)``, attempts counted from 0, until it succeeds.

        Raises:
            TransientStorageError: The last attempt failed too; says how many there were.
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
                delay = self.jitter() * min(self.max_delay, self.base_delay * 2.0 ** (attempt - 1))
                _log.debug("attempt %d failed, next in %.2f s: %s", attempt, delay, error)
                self.sleep(delay)
