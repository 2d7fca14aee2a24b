"""One measured run in a process of its own: reads a spec (JSON) from argv, prints one JSON line.

Runs under the peers' interpreters too, so only the candidate's own module imports anything that is not in the
standard library. The clock is ``time.time()``, to be held against the server's log; it starts after the
imports.

Spec: ``candidate`` (a module of ``candidates``), ``path``, ``workers``, ``epoch_samples``, and what to do:
``epochs`` to time, or ``batches`` to read. Optional: ``batch`` and ``window`` (sizes), ``save_at`` (batch
after which the state is written to ``state``), ``restore`` (start from ``state``), ``digest`` (of the batches
after ``save_at``), ``per_shard`` (count the shards of each batch by the sample's number), ``memory`` (follow
the process's size), ``sample_time`` (where time goes), ``repeat``, ``dataset_config``,
``parallel_shard_iters``, ``read_options``, ``raw_parts`` (``"memoryview"``: no copies, without workers),
``shards`` (names), ``endpoint``, ``in_flight``, ``cache`` (a new folder).
"""

import contextlib
import hashlib
import importlib
import json
import multiprocessing
import os
import pickle
import sys
import time
from pathlib import Path


def main() -> None:
    spec = json.loads(sys.argv[1])
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(range(spec.get("cores", 1))))
    module = importlib.import_module(f"candidates.{spec['candidate']}")
    result = module.run(spec) if hasattr(module, "run") else _loader(spec, module.prepare(spec))
    print(json.dumps(result), flush=True)


def _loader(spec: dict, open_loader) -> dict:
    """Time the batches of a loader of any of the libraries."""
    sampler = contextlib.nullcontext()
    if spec.get("sample_time"):
        import profiling

        sampler = profiling.Sampler()
    base = _start_of_memory() if spec.get("memory") else 0
    used = _used(os.getpid())
    with sampler:
        begin = time.time()
        cpu = time.process_time()
        loader = open_loader()
        if spec.get("restore"):
            loader.restore_state_rank(pickle.loads(Path(spec["state"]).read_bytes()))
        result = _read(spec, loader) | {"begin": begin, "loop_cpu": time.process_time() - cpu}
        if spec.get("sample_time"):
            own = [now - before for now, before in zip(_used(os.getpid()), used, strict=True)]
            result["used"] = [own, *(_used(child.pid) for child in multiprocessing.active_children())]
    if spec.get("memory"):
        result["memory"] = _kilobytes("VmHWM") * 1024 - base
    if spec.get("sample_time"):
        result["profile"] = sampler.result()
    return result


def _read(spec: dict, loader) -> dict:
    save_at = spec.get("save_at", 0)
    first, number, samples, ends, digests, spread = None, 0, 0, [], [], 0
    for batch in loader:
        now = time.time()
        number += 1
        first = first or now
        samples += len(batch["__key__"])
        if samples >= spec["epoch_samples"] * (len(ends) + 1):
            ends.append(now)
        if spec.get("digest") and number > save_at:
            digests.append(_digest(batch))
        if spec.get("per_shard"):
            spread += len({_number(key) // spec["per_shard"] for key in batch["__key__"]})
        if number == save_at:
            Path(spec["state"]).write_bytes(pickle.dumps(loader.save_state_rank()))
        if number == spec.get("batches") or len(ends) == spec.get("epochs"):
            break
        del batch  # or it would be in memory beside the next one
    return {"first": first, "ends": ends, "samples": samples, "digests": digests, "spread": spread / number}


def _number(key: str) -> int:
    """Number of a sample in its dataset: its key, after the shard's name where a library puts that before
    it.
    """
    return int(key.rpartition("/")[2])


def _digest(batch: dict) -> str:
    sha = hashlib.sha1("\n".join(batch["__key__"]).encode())
    for name in sorted(set(batch) - {"__key__"}):
        for part in batch[name]:
            sha.update(part)
    return sha.hexdigest()


def _used(pid: int) -> list:
    """Seconds of CPU time of a process as a user and in the system, and the pages that it touched first."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    tick = os.sysconf("SC_CLK_TCK")
    return [int(fields[11]) / tick, int(fields[12]) / tick, int(fields[7])]


def _start_of_memory() -> int:
    """Bytes resident now, after the imports; the highest mark is counted from here."""
    Path("/proc/self/clear_refs").write_text("5")
    return _kilobytes("VmRSS") * 1024


def _kilobytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))


if __name__ == "__main__":
    main()
