"""Batches as digests, so that processes and places can be compared.

As a script: does the jobs (JSON) that standard input lists, in a process of its own, and prints the digests
of each. A job is the arguments of :func:`run`.
"""

import hashlib
import json
import sys

import children
import torch

from energon_stream import (
    CaptioningSample,
    DefaultTaskEncoder,
    ReadOptions,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from energon_stream.state import dumps, loads

SECRET = "SECRET-never-to-be-shown"
ORDER = {
    "batch_size": 3,
    "shuffle_buffer_size": 20,
    "max_samples_per_sequence": 5,
    "read_options": ReadOptions(max_ahead=64),  # a tiny dataset would be planned for hundreds of passes
}


class Encoder(DefaultTaskEncoder):
    """Keeps pixels and captions; draws a random number, which must come back after a restore, too."""

    @stateless(restore_seeds=True)
    def encode_sample(self, sample: CaptioningSample) -> CaptioningSample:
        sample.image = sample.image * torch.rand(())
        return sample


def open_loader(url, *, workers, options=None, transport="auto", make=get_train_dataset, **changes):
    """A loader of the image-caption dataset, shuffled."""
    config = changes.pop("worker_config", None) or WorkerConfig(0, 1, workers)
    order = ORDER if make is get_train_dataset else {"batch_size": 3}
    run = changes.pop("run", None)
    arguments = {"worker_config": config, "task_encoder": Encoder(), **order, **changes}
    return get_savable_loader(make(url, storage_options=options, transport=transport, **arguments), run=run)


def take(loader, count):
    """Batches, over the ends of passes."""
    found = []
    while len(found) < count:
        for batch in loader:
            found.append(batch)
            if len(found) == count:
                break
    return found


def digest(batch):
    """Keys, captions and pixels of a batch."""
    seen = hashlib.sha1("\0".join([*batch.__key__, *batch.caption]).encode())
    seen.update(batch.image.numpy().tobytes())
    return seen.hexdigest()


def save(state, path):
    """Write a state in the way that the file's name says."""
    if path.endswith(".pth"):
        torch.save({"step": 1, "loader": state}, path)
    else:
        with open(path, "wb") as file:
            file.write(dumps(state))


def load(path):
    """Read what :func:`save` wrote, with nothing but default arguments."""
    if path.endswith(".pth"):
        return torch.load(path)["loader"]
    with open(path, "rb") as file:
        return loads(file.read())


def run(*, batches, restore=None, save_to=None, upload=None, **where):
    """Restore, take some batches, save; returns their digests."""
    if upload is not None:  # to a store that lives in this process
        import fsspec

        fsspec.url_to_fs(where["url"])[0].put(upload, where["url"], recursive=True)
    with open_loader(where.pop("url"), **where) as loader:
        if restore is not None:
            loader.restore_state_rank(load(restore))
        digests = [digest(batch) for batch in take(loader, batches)]
        if save_to is not None:
            save(loader.save_state_rank(), save_to)
    return digests


def in_new_process(jobs):
    """Digests of each job, done in this order in one new process, which has used no store.

    Jobs with workers come first there: forking after obstore was used costs its speed.
    """
    return json.loads(children.run(__file__, input=json.dumps(jobs), check=True).stdout)


if __name__ == "__main__":
    json.dump([run(**job) for job in json.load(sys.stdin)], sys.stdout)
