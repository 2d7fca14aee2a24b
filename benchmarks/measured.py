"""An engine that also counts the CPU time and the memory of its processes."""

from __future__ import annotations

import resource
import time
from functools import partial

from energon_stream.engine.processes import LocalEngine


def _run(function, task):
    begin = time.process_time()
    value = function(task)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return value, time.process_time() - begin, memory


class MeasuredEngine(LocalEngine):
    """Processes of this machine; counts ``seconds`` of CPU, and ``megabytes`` of the largest one."""

    def __init__(self, processes):
        super().__init__(processes)
        self.seconds, self.megabytes = 0.0, 0

    def map(self, function, tasks, **options):
        """Run a function once for each task; see :class:`LocalEngine`."""
        for value, seconds, megabytes in super().map(partial(_run, function), tasks, **options):
            self.seconds += seconds
            self.megabytes = max(self.megabytes, megabytes)
            yield value
