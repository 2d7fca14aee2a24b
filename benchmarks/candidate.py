"""One measured run in a process of its own: reads a spec (JSON) from argv, prints one JSON line.

Runs under the peers' interpreters too, so it imports nothing of this project but in ``_ours``. The clock is
``time.time()``, to be held against the server's log; it starts after the imports.

Spec: ``candidate`` (ours, energon, webdataset, raw, mmap), ``path``, ``workers``, ``epoch_samples``, and what to
do: ``epochs`` to time, or ``batches`` to read. Optional: ``save_at`` (batch after which the state is written to
``state``), ``restore`` (start from ``state``), ``digest`` (of the batches after ``save_at``), ``repeat``,
``dataset_config``, ``shards`` (names, for webdataset), ``endpoint``, ``in_flight``.
"""

import hashlib
import json
import os
import pickle
import sys
import time
from pathlib import Path

BATCH = 32
WINDOW = 100


def main() -> None:
    spec = json.loads(sys.argv[1])
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {0})
    result = {"raw": _raw, "mmap": _mmap}.get(spec["candidate"], _loader)(spec)
    print(json.dumps(result), flush=True)


def _loader(spec: dict) -> dict:
    """Time the batches of a loader of any of the libraries."""
    opened = {"ours": _ours, "energon": _energon, "webdataset": _webdataset}[spec["candidate"]](spec)
    begin = time.time()
    cpu = time.process_time()
    loader = opened()
    if spec.get("restore"):
        loader.restore_state_rank(pickle.loads(Path(spec["state"]).read_bytes()))
    save_at = spec.get("save_at", 0)
    first, samples, ends, digests = None, 0, [], []
    for number, batch in enumerate(loader, 1):
        now = time.time()
        first = first or now
        samples += len(batch["__key__"])
        if samples >= spec["epoch_samples"] * (len(ends) + 1):
            ends.append(now)
        if spec.get("digest") and number > save_at:
            digests.append(_digest(batch))
        if number == save_at:
            Path(spec["state"]).write_bytes(pickle.dumps(loader.save_state_rank()))
        if number == spec.get("batches") or len(ends) == spec.get("epochs"):
            break
    times = {"begin": begin, "first": first, "ends": ends, "loop_cpu": time.process_time() - cpu}
    return times | {"samples": samples, "digests": digests}


def _collate(samples: list) -> dict:
    names = [name for name in samples[0] if name == "__key__" or not name.startswith("__")]
    return {name: [sample[name] for sample in samples] for name in names}


def _digest(batch: dict) -> str:
    sha = hashlib.sha1("\n".join(batch["__key__"]).encode())
    for name in sorted(set(batch) - {"__key__"}):
        for part in batch[name]:
            sha.update(part)
    return sha.hexdigest()


def _ours(spec: dict):
    import energon_stream

    options = {}
    if spec.get("endpoint"):
        options["storage_options"] = {"endpoint_url": spec["endpoint"], "key": "bench", "secret": "bench"}
    return _energon_api(energon_stream, spec, options)


def _energon(spec: dict):
    from megatron import energon

    if spec.get("endpoint"):
        storage = {"base_path": "", "endpoint_url": spec["endpoint"], "region_name": "us-east-1"}
        keys = {"access_key": "bench", "secret_key": "bench"}
        profile = {
            "storage_provider": {"type": "s3", "options": storage},
            "credentials_provider": {"type": "S3Credentials", "options": keys},
        }
        config = Path(spec["scratch"]) / "msc.json"
        config.write_text(json.dumps({"profiles": {"bench": profile}}))
        os.environ["MSC_CONFIG"] = str(config)
        import multistorageclient  # noqa: F401  (an import, not part of opening)
    return _energon_api(energon, spec, {})


def _energon_api(lib, spec: dict, options: dict):
    """Build the same loader with either library: the public names are the same."""

    @lib.stateless
    def cook(sample: dict) -> dict:
        return dict(sample)

    class Encoder(lib.DefaultTaskEncoder):
        decoder = None
        cookers = [lib.Cooker(cook)]

        def batch(self, samples: list) -> dict:
            return _collate(samples)

    savable = spec.get("restore") or spec.get("save_at")
    make_loader = lib.get_savable_loader if savable else lib.get_loader  # a lazy package imports here
    make_dataset, make_config = lib.get_train_dataset, lib.WorkerConfig

    def open_loader():
        extra = {name: spec[name] for name in ("repeat", "dataset_config") if name in spec}
        dataset = make_dataset(
            spec["path"],
            worker_config=make_config(rank=0, world_size=1, num_workers=spec["workers"]),
            batch_size=BATCH,
            shuffle_buffer_size=WINDOW,
            max_samples_per_sequence=WINDOW,
            task_encoder=Encoder(),
            **extra,
            **options,
        )
        return make_loader(dataset)

    return open_loader


def _webdataset(spec: dict):
    import torch
    import webdataset as wds

    def open_loader():
        urls = [f"{spec['path']}/{name}" for name in spec["shards"]]
        dataset = wds.WebDataset(urls, shardshuffle=len(urls), seed=1, empty_check=False)
        if spec.get("repeat", True):
            dataset = dataset.repeat()
        dataset = dataset.shuffle(WINDOW).batched(BATCH, collation_fn=_collate)
        return torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=spec["workers"])

    return open_loader


def _raw(spec: dict) -> dict:
    import obstore  # noqa: F401  (an import, not part of opening)
    import raw_loop

    bucket, prefix = spec["path"].removeprefix("s3://").split("/", 1)
    prefix += "/"
    arguments = (spec["endpoint"], bucket, prefix, spec["epochs"], spec["in_flight"])
    if spec["workers"] == 0:
        return raw_loop.run(*arguments)
    import multiprocessing

    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=lambda: there.send(raw_loop.run(*arguments)), daemon=True)
    begin = time.time()
    child.start()
    result = here.recv() | {"begin": begin}
    child.join()
    return result


def _mmap(spec: dict) -> dict:
    """The limit of local reading: slices of memory-mapped tars at known offsets, in random order, as bytes."""
    import mmap
    import random
    import tarfile

    samples: dict = {}
    for path in sorted(Path(spec["path"]).glob("*.tar")):
        with path.open("rb") as file, tarfile.open(fileobj=file) as tar:
            view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            for member in tar:
                key, part = member.name.split(".")
                samples.setdefault(key, []).append(
                    (view, part, member.offset_data, member.offset_data + member.size)
                )
    plan = list(samples.items()) * spec["epochs"]
    random.Random(0).shuffle(plan)
    begin = time.time()
    ends, read = [], 0
    for key, parts in plan:
        _ = {"__key__": key} | {part: view[start:stop] for view, part, start, stop in parts}
        read += 1
        if read % spec["epoch_samples"] == 0:
            ends.append(time.time())
    return {"begin": begin, "first": begin, "ends": ends, "samples": read}


if __name__ == "__main__":
    main()
