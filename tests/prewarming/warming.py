"""Training on a stand-in server as tests of prewarming need it: in a process of its own, with its requests
counted.
"""

import itertools
import multiprocessing
import time

import children

from energon_stream import (
    Cooker,
    DefaultTaskEncoder,
    ReadOptions,
    WorkerConfig,
    basic_sample_keys,
    get_savable_loader,
    get_train_dataset,
    prewarm,
    stateless,
)
from energon_stream.cache import locks

STEPS, BATCH = 24, 8
ORDER = {
    "batch_size": BATCH,
    "shuffle_buffer_size": 60,
    "max_samples_per_sequence": 40,
    # Little is looked ahead, so that what is warmed ends within a pass.
    "read_options": ReadOptions(byte_budget=1 << 20, first_samples=BATCH, max_ahead=64, max_gap=1024),
}


def key_of(sample):
    return sample["__key__"] if isinstance(sample, dict) else sample.__key__


class Encoder(DefaultTaskEncoder):
    """Nothing decoded; batches are keys, and counted over all processes."""

    decoder = None
    made = multiprocessing.Value("i", 0)
    cookers = [Cooker(stateless(lambda sample: basic_sample_keys(sample)))]

    @stateless
    def pack_selected_samples(self, samples):  # with packing= only
        return {
            "__key__": list(zip(map(key_of, samples), [part.start for part in samples.parts], strict=True))
        }

    def batch(self, samples):
        with self.made.get_lock():
            self.made.value += 1
        return list(map(key_of, samples))


def config(streams, workers=0, rank=0, world_size=1):
    return WorkerConfig(rank, world_size, workers, num_streams=streams)


def warm(server, url, cache, streams=1, **changes):
    """Prewarm, counted from zero."""
    server.reset_counters()
    arguments = {"steps": STEPS, "worker_config": config(streams), **ORDER, **changes}
    # In a process that has used no store: children of others go through fsspec, which takes longer to open.
    return children.call(
        _prewarm, url, {"cache": cache, "storage_options": server.storage_options, **arguments}
    )


def _prewarm(url, arguments):
    be_patient()
    return prewarm(url, **{"isolated": False, **arguments})  # the process is one of its own already


def be_patient():
    """Take no process that waits for a core for one that hangs."""
    locks.PATIENCE = 600.0


def train(server, url, cache, steps, worker_config, prefetch_factor=2, **changes):
    """Keys of the first steps of a new process, counted from zero; workers get the time to prefetch."""
    server.reset_counters()
    arguments = {
        "worker_config": worker_config,
        "storage_options": server.storage_options,
        "cache": cache,
        **ORDER,
        **changes,
    }
    return children.call(steps_of, url, steps, prefetch_factor, arguments)


def steps_of(url, steps, prefetch_factor, arguments):
    """Keys of the first steps, in this process."""
    be_patient()
    dataset = get_train_dataset(url, task_encoder=Encoder(), **arguments)
    ready = steps + prefetch_factor * min(1, arguments["worker_config"].num_workers)
    with get_savable_loader(dataset, prefetch_factor=prefetch_factor) as loader:
        keys = list(itertools.islice(loader, steps))
        deadline = time.monotonic() + 300
        while Encoder.made.value < ready:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return keys


def asked(server):
    """What was asked for since then: paths of objects, without listings."""
    return [(entry.method, entry.key, entry.range) for entry in server.log() if "/" in entry.key]


def reads(server):
    """Requests for bytes."""
    return [entry for entry in asked(server) if entry[0] == "GET"]


def tar_ranges(server):
    """Name and bytes of each range of a tar that was asked for."""
    found = [(key, asked) for _, key, asked in reads(server) if key.endswith(".tar")]
    bounds = [
        (key.rpartition("/")[2], *map(int, asked.removeprefix("bytes=").split("-"))) for key, asked in found
    ]
    return {(name, first, last + 1) for name, first, last in bounds}


def sizes(server):
    """Object, range and size of each answer to a request for bytes."""
    return [(entry.key, entry.range, entry.bytes) for entry in server.log() if entry.method == "GET"]


def listed(server):
    """Bytes of listings."""
    return sum(entry.bytes for entry in server.log() if "/" not in entry.key)
