"""Contact of a process with a store: whether the store has ever answered, and whether it fails now."""

from __future__ import annotations

import logging
import threading
import time

from energon_stream.fork import PerProcess

_log = logging.getLogger(__name__)

_WORTH_SAYING = 3.0  # seconds of failing, before they are logged: every store has shorter faults
# Seconds without any answer, after which an answer ends the waits of all requests. A store that rejects a
# share of the requests answers others meanwhile, and its back-off must not be cut short.
_WORTH_WAKING = 1.0

known_stores: set[str] = set()
"""Keys of stores that have answered, in this process or in one that passed that on, as to a forked child."""


class Contact:
    """The contact of this process with one store, which all requests to it share.

    ``name`` is for log lines. ``key`` names the store among all that processes know.
    """

    def __init__(self, name: str, key: str) -> None:
        self._name = name
        self._key = key
        self._lock = threading.Lock()
        self._again = threading.Event()  # set, and replaced, when the store answers after an outage
        self._failing_since: float | None = None  # first failure after the latest answer
        self._next_line = 0.0
        self._is_logged = False

    @property
    def is_known(self) -> bool:
        return self._key in known_stores

    def know(self) -> None:
        """Note that the store exists."""
        known_stores.add(self._key)

    def answered(self, failing_for: float = 0.0) -> None:
        """Note an answer, to a request that had failed for ``failing_for`` seconds."""
        self.know()
        if self._failing_since is None and not failing_for:
            return
        with self._lock:
            silent_for = 0.0 if self._failing_since is None else time.monotonic() - self._failing_since
            self._failing_since = None
            if silent_for >= _WORTH_WAKING:
                self._again.set()
                self._again = threading.Event()
            # Others may have been answered all the time; the request that failed for long ends the matter.
            is_over = self._is_logged and failing_for >= _WORTH_SAYING
            self._is_logged = self._is_logged and not is_over
        if is_over:
            _log.warning("%s answers again, after %.1f s", self._name, failing_for)

    def failed(self, problem: object, failing_for: float, deadline: float) -> None:
        """Note a failure of a request that has failed for some seconds, and is given up at ``deadline``."""
        now = time.monotonic()
        with self._lock:
            if self._failing_since is None:
                self._failing_since = now
            if failing_for < _WORTH_SAYING or now < self._next_line:
                return
            self._next_line = now + 5.0
            self._is_logged = True
        since, until = (
            time.strftime("%H:%M:%S", time.localtime(time.time() + seconds))
            for seconds in (-failing_for, deadline - failing_for)
        )
        message = "%s fails since %s and is tried again until %s (retry_deadline is %g s): %s"
        _log.warning(message, self._name, since, until, deadline, problem)

    def wait(self, seconds: float) -> None:
        """Wait, but not longer than until the store answers after an outage."""
        self._again.wait(seconds)


shared_contacts: PerProcess[Contact] = PerProcess()


def contact_with(key: str, name: str) -> Contact:
    """Return this process's contact with a store; see :class:`Contact`."""
    return shared_contacts.map(key, lambda: Contact(name, key))
