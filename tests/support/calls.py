"""Calls of functions, counted without replacing them."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator
from types import FrameType
from typing import Any


@contextlib.contextmanager
def counted(room: str, *names: str) -> Iterator[Counter[str]]:
    """Count the calls of functions and methods of a room in this thread, by ``module.name``."""
    found: Counter[str] = Counter()

    def see(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            name = f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}".removeprefix(f"{room}.")
            if name in names:
                found[name] += 1

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        yield found
    finally:
        sys.setprofile(before)
