"""Claims: a process that writes to a folder says so there, so that a second one does not write beside it.

A claim is an object with a name of its own. So no conditional writes are needed: a process puts its claim,
and then looks for others. Of two that begin at the same time, the one with the lower name stays. A process
that is known to live keeps its claim. That of a process which has ended is taken over at once. A claim of
another machine cannot be checked: it is taken over by a run that resumes, by the same job of the launcher, or
when it was not renewed for a quarter of an hour. A process finds out before it writes that it lost its claim.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
import uuid
import weakref
from typing import Any

from energon_stream.errors import EnergonStreamError, ObjectNotFoundError
from energon_stream.living import start_of, this_machine
from energon_stream.storage.store import ListEntry, Store

_RENEWED_EVERY, _EXPIRES = 300.0, 900.0  # seconds
_WAITS, _WAIT = 100, 0.05  # for others that begin at the same time
_own: weakref.WeakValueDictionary[str, Claim] = weakref.WeakValueDictionary()


class Claim:
    """A claim of this process to write in ``folder`` of a store, after :meth:`take`."""

    def __init__(self, store: Store, folder: str) -> None:
        self._store, self._folder, self._token = store, folder, uuid.uuid4().hex
        self._path = f"{folder}/{self._token}.claim"
        self._renewed = 0.0
        self.is_held: bool = False

    def take(self, *, resumes: bool = False) -> dict[str, Any] | None:
        """Claim the folder, and return the process that has it if that fails. ``resumes`` a saved state."""
        if self.is_held:
            return None
        _own[self._token] = self
        self._put(is_held=False)
        for _ in range(_WAITS):
            others = self._others()
            living = [about for _, about in others if not self._may_take(about, resumes)]
            if not living:
                self._put(is_held=True)
                for path, _ in others:
                    self._store.delete(path)
                self.is_held = True
                return None
            if any(about["held"] or about["token"] < self._token for about in living):
                break
            time.sleep(_WAIT)
        self._store.delete(self._path)
        return living[0]

    def renew(self) -> bool:
        """Return False if the claim was lost. Else renew it, unless that was done a short time ago."""
        if not self.is_held:
            return False
        with contextlib.suppress(ObjectNotFoundError):
            self._store.head(self._path)
            if self.is_due:
                self._put(is_held=True)
            return True
        self.is_held = False
        return False

    @property
    def is_due(self) -> bool:
        """True if the claim should be renewed, before it expires."""
        return self.is_held and time.monotonic() - self._renewed > _RENEWED_EVERY

    def release(self) -> None:
        """Let others claim the folder."""
        if self.is_held:
            self.is_held = False
            with contextlib.suppress(EnergonStreamError):
                self._store.delete(self._path)

    def _put(self, is_held: bool) -> None:
        about = {"token": self._token, "held": is_held, **_this_process()}
        self._store.put(self._path, json.dumps(about).encode())
        self._renewed = time.monotonic()

    def _others(self) -> list[tuple[str, dict[str, Any]]]:
        entries = {entry.path: entry for entry in self._store.list(self._folder)}
        found = []
        for path in entries.keys() - {self._path}:
            with contextlib.suppress(ObjectNotFoundError, ValueError, TypeError):
                about = json.loads(bytes(self._store.get(path).data))
                age = _age(entries[path], entries.get(self._path))
                unknown = {"token": "", "held": True, "host": "?", "pid": 0, "start": None}
                found.append((path, {**unknown, **about, "path": path, "age": age}))
        return found

    def _may_take(self, other: dict[str, Any], resumes: bool) -> bool:
        mine = _this_process()
        if other.get("machine") == mine["machine"]:
            if other["pid"] == mine["pid"] and other["start"] == mine["start"]:
                return resumes or other["token"] not in _own
            return bool(other["start"] != start_of(other["pid"]))
        is_same_job = bool(mine["job"]) and other.get("job") == mine["job"]
        return resumes or is_same_job or bool(other["age"] > _EXPIRES)


def _age(entry: ListEntry, own: ListEntry | None) -> float:
    """Return how much older a claim is than the own one, by the clock of the store."""
    if own is None or own.meta.last_modified is None or entry.meta.last_modified is None:
        return 0.0
    return (own.meta.last_modified - entry.meta.last_modified).total_seconds()


def _this_process() -> dict[str, Any]:
    pid = os.getpid()
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")
    job = {name: os.environ[name] for name in names if name in os.environ}
    if job.get("TORCHELASTIC_RUN_ID") == "none":
        del job["TORCHELASTIC_RUN_ID"]
    if job.get("MASTER_ADDR", "localhost").startswith(("localhost", "127.", "::1")):
        job.pop("MASTER_ADDR", None)
        job.pop("MASTER_PORT", None)
    return {
        "host": platform.node(),
        "machine": this_machine(),
        "pid": pid,
        "start": start_of(pid),
        "job": job,
    }
