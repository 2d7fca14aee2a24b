"""The call of a hook that a thread is in, read through ``WorkerConfig``."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final


class ActiveCall:
    """The current call of a hook, read through ``WorkerConfig``; active within a ``with`` block.

    One object may be entered again and again. The active call is kept by thread, because several threads may
    step loaders.

    ``sample_index`` counts the hook's calls, and ``batch_index`` batches: None takes that of the enclosing
    block, which is ``outer``. ``rng`` has the generators of a call, with its number, once a hook asks.
    """

    __slots__ = ("at_exit", "batch_index", "config", "outer", "rng", "sample_index", "stream")

    def __init__(self, config: Any, stream: int, sample_index: int, batch_index: int | None) -> None:
        self.config: Any = config
        self.stream: int = stream
        self.sample_index: int = sample_index
        self.batch_index: int | None = batch_index
        self.outer: ActiveCall | None = None
        self.rng: tuple[int, Any] | None = None
        self.at_exit: Callable[[], None] | None = None  # called once, at the end of the block

    def __enter__(self) -> None:
        self.outer = outer = here.active
        if self.batch_index is None and outer is not None:
            self.batch_index = outer.batch_index
        here.active = self

    def __exit__(self, *_: object) -> None:
        here.active = self.outer
        if self.at_exit is not None:
            self.at_exit()
            self.at_exit = None

    def run(self, function: Callable[[Any], Any], value: Any, sample: int, batch: int | None) -> Any:
        """Return ``function(value)``, called within a block with these counters; faster than ``with``."""
        outer, self.sample_index, self.batch_index = here.active, sample, batch
        if batch is not None or outer is None or outer.config is not self.config:
            with self:
                return function(value)
        self.outer, self.batch_index, here.active = outer, outer.batch_index, self
        try:
            return function(value)
        finally:
            here.active = outer


class Activation(ActiveCall):
    """A block that a program enters and leaves by calls of its own, without ``with``."""

    cache_pool: Any = None  # pool that hooks fetch with; None for that of the enclosing block


class _Here(threading.local):
    """The innermost active block of this thread."""

    active: ActiveCall | None = None


here: _Here = _Here()


class _ActiveConfig:
    """``WorkerConfig.active_worker_config``: that of this thread, unless the program sets another."""

    named: Any = None  # what the program set

    def __get__(self, config: object, kind: type | None = None) -> Any:
        return active_config() or self.named


ACTIVE_CONFIG: Final = _ActiveConfig()


class KeepsActiveConfig(type):
    """Class of ``WorkerConfig``: a program that assigns ``active_worker_config`` does not replace it."""

    def __setattr__(cls, name: str, value: Any) -> None:
        if name != "active_worker_config":
            super().__setattr__(name, value)
            return
        ACTIVE_CONFIG.named = None if value is ACTIVE_CONFIG else value
        left = here.active
        while isinstance(left, Activation):
            left = left.outer
        if value is None and left is None:  # the program clears what it left
            here.active = None


def active_config() -> Any:
    """Return the configuration of the hook that this thread runs; None outside of hooks.

    A program may have set ``WorkerConfig.active_worker_config`` to an object of its own, which comes first.
    """
    named = ACTIVE_CONFIG.named
    if named is None or isinstance(type(named), KeepsActiveConfig):  # a WorkerConfig that was left there
        return None if here.active is None else here.active.config
    return named


def innermost_call() -> ActiveCall | None:
    """Return the call of a hook that this thread is in; None outside of hooks."""
    return here.active


def activated_pool() -> Any:
    """Return the pool that the program passed to ``WorkerConfig.worker_activate``; None if there is none."""
    active = here.active
    while active is not None:
        if isinstance(active, Activation) and active.cache_pool is not None:
            return active.cache_pool
        active = active.outer
    return None
