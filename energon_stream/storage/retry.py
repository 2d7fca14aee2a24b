"""Retries of transient faults, and how long they go on."""

from __future__ import annotations

import logging
import math
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from energon_stream.errors import (
    BadAnswerError,
    ConfigError,
    ObjectChangedError,
    ObjectNotFoundError,
    RangeError,
    StorageError,
    TransientStorageError,
)

if TYPE_CHECKING:
    from energon_stream.storage.contact import Contact

T = TypeVar("T")
_log = logging.getLogger(__name__)

DEADLINE_VARIABLE = "ENERGON_STREAM_RETRY_DEADLINE"
_DEADLINE = 300.0


def retry_deadline(asked: float | None = None) -> float:
    """Return the seconds for which failing requests are tried again.

    Without the user's choice, the environment's counts, or else 300. Raises ConfigError if it is impossible.
    """
    value = os.environ.get(DEADLINE_VARIABLE) or _DEADLINE if asked is None else asked
    source = DEADLINE_VARIABLE if asked is None else "retry_deadline"
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = -1.0
    if not seconds >= 0:
        raise ConfigError(f"{source} is {value!r}", hint="use 0 or more seconds")
    return seconds


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Rules for retrying a request: how long, and after which waits. See ``StoreSpec.open(policy=…)``.

    The wait before retry ``n`` is uniform in ``[0, min(max_delay, base_delay * 4**(n - 1))]`` ("full jitter",
    https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/). The first waits are short
    because other requests wait for this one; the limit of requests in flight protects a busy store. When a
    store answers after an outage, all waits for it end.

    A store that never answered this process, or one that passed its knowledge on, may not exist: it is tried
    for ``patience`` seconds, and twice. So is one whose answers make no sense.

    Example:
        >>> waits = []
        >>> def busy(attempt):
        ...     raise TransientStorageError("the store is busy")
        >>> RetryPolicy(attempts=4, jitter=lambda: 1.0, sleep=waits.append).run(busy)
        Traceback (most recent call last):
        energon_stream.errors.TransientStorageError: the store is busy (gave up after 4 attempts in 0 s)
        >>> waits
        [0.002, 0.008, 0.032]
    """

    deadline: float = _DEADLINE  # seconds from a request's first failure to its last attempt
    # The same for bad answers, and for an unknown store from the request's start. Servers restart in 3 s.
    patience: float = 4.0
    attempts: int | None = None  # the first included
    base_delay: float = 0.002  # most seconds of the first wait
    max_delay: float = 5.0
    # Not the global generator, whose draws belong to the user.
    jitter: Callable[[], float] = field(default=random.SystemRandom().random, repr=False)
    # None waits no longer than until the store answers again.
    sleep: Callable[[float], None] | None = field(default=None, repr=False)

    def run(self, function: Callable[[int], T], contact: Contact | None = None) -> T:
        """Call ``function(attempt)``, attempts counted from 0, until it succeeds; raise the last attempt's
        error. Without ``contact``, the store is known.
        """
        started = time.monotonic()
        failures: RequestFailures | None = None
        while True:
            try:
                result = function(failures.count if failures else 0)
            except (TransientStorageError, BadAnswerError, RangeError) as error:
                failure: StorageError = error
            except (ObjectNotFoundError, ObjectChangedError):
                if contact is not None:
                    contact.answered()
                raise
            else:
                if contact is not None:
                    contact.answered(time.monotonic() - failures.since if failures else 0.0)
                return result
            now = time.monotonic()
            failures = failures or RequestFailures(self, started, now)
            if contact is not None and isinstance(failure, TransientStorageError) and failure.answered:
                contact.know()
            delay = failures.add(failure, now, is_known=contact is None or contact.is_known)
            if delay is None:
                break
            if contact is not None and failures.is_patient:
                contact.failed(failure, failures.spent, failures.limit)
            _log.debug("attempt %d failed, next in %.2f s: %s", failures.count, delay, failure)
            (self.sleep or (time.sleep if contact is None else contact.wait))(delay)
        if not isinstance(failure, TransientStorageError):
            raise failure
        raise TransientStorageError(
            f"{failure.what} (gave up after {failures.count} attempts in {failures.spent:.0f} s)",
            where=failure.where,
            hint=failure.hint,
            answered=failure.answered,
        ) from failure


@dataclass(slots=True)
class RequestFailures:
    """The failed attempts of one request, and the rule for when to make the next one. It has no clock."""

    policy: RetryPolicy
    started: float  # when the request was begun
    since: float  # when it failed first
    count: int = 0
    is_patient: bool = False  # whether the latest failure may last for the deadline
    spent: float = 0.0  # seconds of these, up to the latest failure
    limit: float = 0.0
    _waited: float = 0.0

    def add(self, failure: StorageError, now: float, *, is_known: bool = True) -> float | None:
        """Note a failed attempt; return the seconds to wait before the next one, or None to give up."""
        policy = self.policy
        self.count += 1
        is_transient = isinstance(failure, TransientStorageError)
        self.is_patient = is_transient and is_known
        self.limit = policy.deadline if self.is_patient else min(policy.patience, policy.deadline)
        # The waits count too: a policy may wait by another clock than this one.
        begin = self.since if is_known or not is_transient else self.started
        self.spent = max(now - begin, self._waited)
        most = math.inf if policy.attempts is None else policy.attempts
        if isinstance(failure, RangeError):  # the object, by the store's word, does not have the bytes
            most = min(most, 4)
        limit = self.limit if self.count > 1 else policy.deadline  # one late answer may outlast the patience
        if self.spent >= limit or self.count >= most:
            return None
        # The exponent is far beyond any wait, and the power of a thousand retries would overflow.
        longest = min(policy.max_delay, policy.base_delay * 4.0 ** min(self.count - 1, 60))
        delay = min(policy.jitter() * longest, max(0.0, self.limit - self.spent))
        self._waited += delay
        return delay
