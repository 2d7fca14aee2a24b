"""Functions that engines run in other processes."""

import contextlib
import os
import signal
import time
from pathlib import Path

from energon_stream.errors import CorruptTarError, ObjectNotFoundError, ThrottledError


def double(number):
    return 2 * number


def after_others(folder, number):
    """Return the number; task 0 waits until another process has begun task 3, after 1 and 2."""
    Path(folder, str(number)).touch()
    while not number and not Path(folder, "3").exists():
        time.sleep(0.005)
    return number


def _once(folder, name):
    """True for the first caller of a name, in all processes."""
    try:
        Path(folder, str(name)).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def die_once(folder, number):
    if number % 3 == 1 and _once(folder, number):
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def die(number):
    os.kill(os.getpid(), signal.SIGKILL)


def fail_once(folder, number):
    if number == 2 and _once(folder, number):
        raise OSError("a passing fault")
    return number


def missing(folder, number):
    Path(folder, f"try-{time.monotonic_ns()}").touch()
    raise ObjectNotFoundError("no such object", where="s3://x/y")


def refused(folder, number):
    Path(folder, f"try-{time.monotonic_ns()}").touch()
    raise ThrottledError("too many requests", where="s3://x/y")


def damaged(folder, number):
    Path(folder, f"try-{time.monotonic_ns()}").touch()
    raise CorruptTarError("a damaged tar", where="x.tar")


class Odd(Exception):
    """Cannot be made anew from its pickle."""

    def __init__(self, one, two):
        super().__init__(one)


def odd(number):
    raise Odd("odd error", 2)


def unpicklable(number):
    return lambda: number


def wait_for_ever(folder, number):
    Path(folder, f"pid-{os.getpid()}").touch()
    time.sleep(600)


def listening(_):
    """Addresses at which processes of Ray listen, as the kernel spells them."""
    sockets = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"ray" in (folder / "cmdline").read_bytes():
                sockets.update(os.readlink(file) for file in (folder / "fd").iterdir())
    rows = [
        row.split() for name in ("tcp", "tcp6") for row in Path(f"/proc/net/{name}").read_text().splitlines()
    ]
    return [row[1].partition(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets]
