"""Runs functions on several ranks, in forks of this process: frameworks take long to import."""

import json
import multiprocessing
import os
import signal
import socket
import time
from itertools import zip_longest

HANG = 900  # seconds, which end a hang


def free_port():
    with socket.socket() as server:
        server.bind(("localhost", 0))
        return server.getsockname()[1]


def _run(function, environment, arguments):
    os.environ.update(environment)
    os.setsid()  # what it starts ends with it
    function(*arguments)


def launch(count, function, *arguments, until=None):
    """Call a function on ``count`` ranks of a job, and return when all have ended, or are killed.

    ``until`` is asked again and again; once it returns True, all ranks are killed. Returns whether they were.
    """
    port = str(free_port())
    context = multiprocessing.get_context("fork")
    ranks = []
    for rank in range(count):
        numbers = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
        environment = {**numbers, "MASTER_ADDR": "localhost", "MASTER_PORT": port}
        ranks.append(context.Process(target=_run, args=(function, environment, arguments)))
        ranks[-1].start()
    deadline, was_killed = time.monotonic() + HANG, False
    try:
        while any(rank.is_alive() for rank in ranks):
            for rank in ranks:
                rank.join(0.02)
            assert time.monotonic() < deadline, f"the ranks hang: {[rank.exitcode for rank in ranks]}"
            if until is not None and until():
                was_killed = True
                break
            assert not any(rank.exitcode for rank in ranks), [rank.exitcode for rank in ranks]
    finally:
        for rank in ranks:
            if rank.is_alive():
                os.killpg(rank.pid, signal.SIGKILL)
            rank.join()
    if not was_killed:
        assert [rank.exitcode for rank in ranks] == [0] * count
    return was_killed


class Job:
    """Runs of an example, each rank of which writes ``[step, texts...]`` for each batch.

    Args:
        program: Called on each rank with the arguments that ``arguments`` returns.
        arguments: Called with the file of the record, the last step, and the name of the checkpoints.
        folder: Where records go.
    """

    def __init__(self, program, arguments, folder):
        self.program, self.arguments, self.folder, self.runs = program, arguments, folder, 0

    def __call__(self, ranks, steps, *, kill_in=None, name="run"):
        """Train to a step, or to a kill in one; return what each step got from the checkpoint on."""
        self.runs += 1
        record = self.folder / f"steps{self.runs}"

        def is_due():
            lines = self.lines(record, 0)
            return bool(lines) and lines[-1][0] >= kill_in

        arguments = self.arguments(record, steps, name)
        launch(ranks, self.program, *arguments, until=None if kill_in is None else is_due)
        found = {}
        for batches in zip_longest(
            *[self.lines(record, rank) for rank in range(ranks)]
        ):  # in the job's order
            for batch in batches:
                if batch is not None:
                    found.setdefault(batch[0], []).append(batch[1:])
        return found

    @staticmethod
    def lines(record, rank):
        path = record.with_name(f"{record.name}.{rank}")
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("]")]


def check_equal(found, whole, of_a_step):
    """All batches of all complete steps are those of the whole run; a killed run lacks some of the last."""
    complete = {step: batches for step, batches in found.items() if len(batches) == of_a_step}
    assert complete == {step: whole[step] for step in complete}
    return complete
