"""The physical limit: concurrent range GETs over the same objects, nothing done with the bytes."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator

BLOCK = 4 << 20


def run(
    endpoint: str, bucket: str, prefix: str, epochs: int, in_flight: int, ahead: bool = True
) -> dict[str, object]:
    """Read every tar below ``prefix`` ``epochs`` times with obstore's sync API from ``in_flight`` threads.

    One listing, then 4 MiB ranges in order. As in a loader, the next epoch's ranges are asked for while this
    epoch's last ones are under way, also in the last epoch (whose surplus is not counted), unless ``ahead``
    is False.
    """
    import obstore
    from obstore.store import S3Store

    begin = time.time()
    store = S3Store(
        bucket,
        endpoint=endpoint,
        access_key_id="bench",
        secret_access_key="bench",
        region="us-east-1",
        client_options={"allow_http": True},
    )
    tars = [m for chunk in obstore.list(store, prefix=prefix) for m in chunk if m["path"].endswith(".tar")]
    ranges = [
        (m["path"], start, min(start + BLOCK, m["size"]))
        for m in tars
        for start in range(0, m["size"], BLOCK)
    ]
    total = sum(m["size"] for m in tars)
    asked = itertools.cycle(ranges) if ahead else itertools.chain.from_iterable([ranges] * epochs)
    todo: Iterator[tuple[str, int, int]] = iter(asked)
    lock, done = threading.Lock(), threading.Event()
    received = 0
    first: float | None = None
    ends: list[float] = []

    def work() -> None:
        nonlocal received, first
        while not done.is_set():
            with lock:
                block = next(todo, None)
            if block is None:
                return
            path, start, end = block
            body = obstore.get_range(store, path, start=start, end=end)
            with lock:
                received += len(body)
                now = time.time()
                first = first or now
                if received >= (len(ends) + 1) * total:
                    ends.append(now)
                    if len(ends) == epochs:
                        done.set()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(in_flight)]
    for thread in threads:
        thread.start()
    done.wait()
    return {"begin": begin, "first": first, "ends": ends[:epochs]}
