"""A node that takes elements of another node ahead of the consumer, and shows them to a function."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from energon_stream.pipeline.node import End, Item, Node, State, WrapperNode

_FIRST_WAVE = 4
_WAVE = 32


class AheadNode(WrapperNode):
    """Takes elements in waves, shows each wave to a function, and returns them in order.

    While one wave is consumed, what the function began for the next one goes on. The state is that of the
    inner node after the last element that was returned: a restored node takes the others again. It stops at
    the end of a pass, and at an error, which is raised in its turn.

    Args:
        inner: The other node.
        show: Called with the values of each wave.
    """

    def __init__(self, inner: Node, show: Callable[[Sequence[Any]], None]) -> None:
        self._inner = inner
        self._show = show
        self._taken: deque[tuple[Item | End | Exception, State]] = deque()
        self._is_stopped = False  # True while an end or an error is among the taken
        self._state: State = inner.state()
        self._wave = _FIRST_WAVE

    def next(self) -> Item | End:
        """Return the next element."""
        if len(self._taken) < self._wave and not self._is_stopped:
            self._take()
            self._wave = _WAVE
        taken, self._state = self._taken.popleft()
        if isinstance(taken, Item):
            return taken
        self._is_stopped = False
        if isinstance(taken, Exception):
            raise taken
        return taken

    def state(self) -> State:
        """Return the inner node's state after the last returned element."""
        return self._state

    def close(self) -> None:
        """Forget what was taken, and close the inner node."""
        self._taken.clear()
        super().close()

    def _take(self) -> None:
        values: list[Any] = []
        while len(values) < self._wave and not self._is_stopped:
            try:
                item: Item | End | Exception = self._inner.next()
            except Exception as error:
                item = error
            self._taken.append((item, self._inner.state()))
            self._is_stopped = not isinstance(item, Item)
            if isinstance(item, Item):
                values.append(item.value)
        if values:
            self._show(values)
