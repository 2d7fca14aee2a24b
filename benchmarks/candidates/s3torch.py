"""s3torchconnector: shards in shuffled order as tar streams, then a shuffle buffer, as its users build it."""

import os
import random
import tarfile

from candidates import BATCH, WINDOW, collate


def prepare(spec: dict):
    """Import, and return what opens the loader."""
    os.environ |= {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}
    import torch
    from s3torchconnector import S3ClientConfig, S3IterableDataset

    class Samples(torch.utils.data.IterableDataset):
        def __iter__(self):
            draw = random.Random(0)
            while True:
                yield from _shuffled(self._pass(draw), draw)
                if not spec.get("repeat", True):
                    return

        def _pass(self, draw):
            urls = [f"{spec['path']}/{name}" for name in spec["shards"]]
            draw.shuffle(urls)
            config = S3ClientConfig(force_path_style=True)
            shards = S3IterableDataset.from_objects(
                urls,
                region="us-east-1",
                endpoint=spec["endpoint"],
                transform=_samples,
                s3client_config=config,
            )
            for samples in shards:
                yield from samples

    def open_loader():
        loader = torch.utils.data.DataLoader
        return loader(
            Samples(), batch_size=BATCH, num_workers=spec["workers"], collate_fn=collate, drop_last=False
        )

    return open_loader


def _samples(reader):
    sample: dict = {}
    with tarfile.open(fileobj=reader, mode="r|") as tar:
        for member in tar:
            key, _, part = member.name.partition(".")
            if sample and sample["__key__"] != key:
                yield sample
                sample = {}
            sample["__key__"] = key
            sample[part] = tar.extractfile(member).read()
    yield sample


def _shuffled(samples, draw):
    held: list = []
    for sample in samples:
        held.append(sample)
        if len(held) >= WINDOW:
            yield held.pop(draw.randrange(len(held)))
    draw.shuffle(held)
    yield from held
