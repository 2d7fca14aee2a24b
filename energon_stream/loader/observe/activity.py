"""The activity of a process: the stacks of its threads, and the user's function and sample at hand."""

from __future__ import annotations

import json
import sys
import threading
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any

from energon_stream.pipeline.failures import running_call
from energon_stream.threads import steady_stacks


@dataclass(frozen=True, slots=True)
class Activity:
    """The work of one thread, and the stacks of all threads of its process."""

    function: str | None = None  # name of the user's function that it is in; None if it is in none
    sample: str | None = None  # key of the sample that the function works on; None if it has no key
    stacks: str = ""

    @classmethod
    def of_thread(cls, ident: int | None) -> Activity:
        """Describe a thread of this process."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        with steady_stacks():
            frames = sys._current_frames()
            frames.pop(threading.get_ident(), None)
            call = running_call(frames.get(ident or 0))
            own_first = sorted(frames, key=lambda number: number != ident)
            stacks = "\n".join(_stack(names.get(number), frames[number]) for number in own_first)
        return cls(None, None, stacks) if call is None else cls(call[0], _key(call[1]), stacks)

    @classmethod
    def from_text(cls, text: str) -> Activity:
        """Read what :meth:`to_text` made. Text of another form is taken for stacks."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError):
            return cls(stacks=text)

    def to_text(self) -> str:
        """Write as text, without a NUL character."""
        return json.dumps(asdict(self))

    def __str__(self) -> str:
        if self.function is None:
            return "no function of the user is running"
        of_sample = "" if self.sample is None else f" on sample {self.sample}"
        return f"it is in {self.function}{of_sample}"


def _stack(name: str | None, frame: FrameType) -> str:
    lines = "".join(traceback.format_stack(frame))
    return f"Thread {name or 'unknown to threading'} (most recent call last):\n{lines}"


def _key(sample: Any) -> str | None:
    if isinstance(sample, (int, str)):  # elements of other datasets
        return f"{sample!r:.100}"
    key = sample.get("__key__") if isinstance(sample, Mapping) else getattr(sample, "__key__", None)
    if isinstance(key, (list, tuple)):
        key = key[0] if key else None
    return None if key is None else str(key)
