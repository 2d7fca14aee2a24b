"""A store that answers one round trip at a time."""

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate


def in_round_trips(server, trips, work):
    """Return what ``work()`` returns; ``trips`` has how many requests each round trip waits for.

    Answers go out when all requests of a trip are in. What needs another trip never comes.
    """
    with ThreadPoolExecutor(1) as thread:
        server.hold()
        done = thread.submit(work)
        try:
            for requests in accumulate(trips):
                while server.counters().total < requests and not done.done():
                    time.sleep(0.001)
                server.hold()
            return done.result(timeout=300)
        finally:
            server.release()
