"""Watchdogs for steps that take too long, under Megatron-Energon's names."""

from __future__ import annotations

import logging
import os
from typing import Any

from energon_stream.compat.placeholders import PRINT_LOCAL_MAX_LENGTH
from energon_stream.loader.observe.watchdog import Watchdog
from energon_stream.pipeline.dataset import SavableDataset, Wrapper
from energon_stream.pipeline.node import Context, End, Item, State, WrapperNode, read_state
from energon_stream.worker import WorkerConfig

_log = logging.getLogger(__name__)
_EXIT_CODE = 1

__all__ = ["Watchdog", "WatchdogDataset", "repr_short"]


def repr_short(obj: Any) -> str:
    """Return the ``repr`` of an object, with the middle of a long one left out."""
    text, half = repr(obj), PRINT_LOCAL_MAX_LENGTH // 2
    return text if len(text) <= PRINT_LOCAL_MAX_LENGTH else f"{text[:half]}...{text[-half:]}"


class _WatchdogNode(WrapperNode):
    """State: ``in``."""

    def __init__(self, dataset: WatchdogDataset, context: Context, state: State | None) -> None:
        saved = read_state(state, {"in": None}, dataset, context)
        self._inner = dataset.dataset.make_node(context, saved["in"])
        self._watchdog = dataset.watchdog(context.stream)

    def next(self) -> Item | End:
        if self._watchdog is None:
            return self._inner.next()
        self._watchdog.enable()
        try:
            return self._inner.next()
        finally:
            self._watchdog.disable()

    def state(self) -> State:
        return {"in": self._inner.state()}

    def close(self) -> None:
        if self._watchdog is not None:
            self._watchdog.finish()
        super().close()


class WatchdogDataset(Wrapper[Any]):
    """Tells if an element takes too long: writes the stacks of all threads, and may end the process.

    Loaders have such a watchdog of their own: ``get_loader(watchdog_timeout_seconds=…)``.

    ``initial_timeout_seconds`` is for the first element. With ``fail_on_timeout``, the process ends with exit
    code 1; otherwise a warning is logged. A ``timeout_seconds`` of None means no watchdog.

    Example:
        >>> from energon_stream.testing.operator_suite import NumbersDataset
        >>> list(WatchdogDataset(NumbersDataset(3), timeout_seconds=60))
        [0, 1, 2]
    """

    kind = "Watchdog"
    node_type = _WatchdogNode

    def __init__(
        self,
        dataset: SavableDataset[Any],
        worker_config: WorkerConfig | None = None,
        timeout_seconds: float | None = 60,
        initial_timeout_seconds: float | None = None,
        fail_on_timeout: bool = False,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.timeout_seconds = timeout_seconds
        self.initial_timeout_seconds = initial_timeout_seconds
        self.fail_on_timeout = fail_on_timeout

    @property
    def pass_length(self) -> int:
        """The inner dataset's: elements pass one by one."""
        return self.dataset.pass_length

    def watchdog(self, stream: int) -> Watchdog | None:
        """Make the watchdog of one stream; None if there is none."""
        if self.timeout_seconds is None:
            return None

        def tell() -> None:
            _log.warning(
                "no element of stream %d for %s s; the stacks are on stderr", stream, self.timeout_seconds
            )
            if self.fail_on_timeout:
                os._exit(_EXIT_CODE)  # the thread that hangs cannot be interrupted

        return Watchdog(self.timeout_seconds, self.initial_timeout_seconds, tell, enabled=False)
