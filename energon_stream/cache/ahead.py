"""What one process has counted for bytes that it will write next; see :mod:`energon_stream.cache.ledger`."""

from __future__ import annotations

import threading

__all__ = ["Ahead"]


class Ahead:
    """Bytes of datasets that this process has counted and nobody has taken yet. Safe to call from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: dict[str, int] = {}

    def add(self, root_folder: str, amount: int) -> None:
        """More is counted."""
        with self._lock:
            self._left[root_folder] = self._left.get(root_folder, 0) + amount

    def take(self, root_folder: str, amount: int) -> bool:
        """Some of it is about to be written; False where there is less."""
        with self._lock:
            left = self._left.get(root_folder, 0)
            if left < amount:
                return False
            self._left[root_folder] = left - amount
            return True

    def take_all(self) -> dict[str, int]:
        """What is left, to be given back."""
        with self._lock:
            left, self._left = self._left, {}
            return left
