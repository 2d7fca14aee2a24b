"""CPU times of this project's loader in process, for ``simulated.py``."""

import time

from candidates import ours


def run(spec: dict) -> dict:
    """Read one pass, and count from its first batch on."""
    from energon_stream.storage import default_counters

    open_loader = ours.prepare(spec)
    begin = time.time()
    batches = iter(open_loader())
    samples = len(next(batches)["__key__"])
    first, opened, before, left = (
        time.time() - begin,
        time.process_time(),
        default_counters().snapshot(),
        samples,
    )
    for batch in batches:
        samples += len(batch["__key__"])
        if samples >= spec["epoch_samples"]:
            break
    read = time.process_time()
    counted = default_counters().snapshot() - before
    return {
        "first": first,
        "reading": read - opened,
        "samples": samples - left,
        "requests": counted.total_requests,
        "bytes": counted.bytes_received,
    }
