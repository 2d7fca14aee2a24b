"""Cheap forks: a fork copies the table of a process's pages, and huge pages need a small one."""

import contextlib
import ctypes
import time
from pathlib import Path

_HUGE, _MADV_COLLAPSE = 1 << 21, 25


def take_huge_pages() -> None:
    """Let the kernel hold what this process has in memory now in huge pages, if it can: forking after imports
    takes a third of the time. Where memory is short, finding them takes long: those of a second will do.
    """
    end = time.monotonic() + 1
    with contextlib.suppress(OSError, AttributeError):  # Linux alone has these
        advise = ctypes.CDLL(None).madvise
        advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for words in map(str.split, Path("/proc/self/maps").read_text().splitlines()):
            if words[1] == "rw-p" and words[5:] in ([], ["[heap]"]):
                begin, stop = (int(word, 16) for word in words[0].split("-"))
                for place in range(-(-begin // _HUGE) * _HUGE, stop // _HUGE * _HUGE, _HUGE):
                    if time.monotonic() < end:
                        advise(place, _HUGE, _MADV_COLLAPSE)
