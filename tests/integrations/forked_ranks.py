"""Runs functions on several ranks, in forks of this process: frameworks take long to import."""

import multiprocessing
import os
import signal
import socket
import time


def free_port():
    with socket.socket() as server:
        server.bind(("localhost", 0))
        return server.getsockname()[1]


def _run(function, environment, arguments):
    os.environ.update(environment)
    os.setsid()  # what it starts ends with it
    function(*arguments)


def launch(count, function, *arguments, until=None, seconds=170):
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
    deadline, was_killed = time.monotonic() + seconds, False
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
