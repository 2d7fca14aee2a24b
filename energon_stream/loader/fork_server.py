"""Keeps a fork server, which alone imports this, alive when the whole process group gets SIGTERM.

Else the main process would take the workers for dead. Processes that it forks have the default again.
"""

from __future__ import annotations

import os
import signal


def _reset() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
os.register_at_fork(after_in_child=_reset)
