"""Rows by number that follow each other without an end, for trainers that save only the number of a row."""

from __future__ import annotations

from typing import Any

import numpy as np

from energon_stream.rng import derive_key, permute_indices

ENDLESS = 2**31  # rows


class ShuffledRows:
    """A sequence again and again, each time in another order, as one sequence without an end.

    The order follows from the number of a row alone, so trainers that go on at a number go on exactly, in any
    process, also where a pass over the sequence ends.

    Args:
        rows: A sequence, such as ``open_dataset(...)``.
        seed: Another value is another order.

    Example:
        >>> from energon_stream.integrations.shuffled_rows import ShuffledRows
        >>> rows = ShuffledRows("abc", seed=1)
        >>> "".join(rows[number] for number in range(9))
        'acbbcacab'
    """

    def __init__(self, rows: Any, seed: int = 0) -> None:
        self._rows, self._seed = rows, seed

    def __len__(self) -> int:
        """Return about two billion: whole passes over the sequence."""
        return ENDLESS - ENDLESS % len(self._rows)

    def __getitem__(self, row: int) -> Any:
        """Return a row of pass ``row // len(rows)``. Raises IndexError beyond the length."""
        size = len(self._rows)
        number, place = divmod(row, size)
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        return self._rows[int(permute_indices(derive_key(self._seed, number), size, np.array([place]))[0])]
