"""The limit of decoding: JPEGs that lie in memory, decoded by forked processes, and nothing else."""

import tarfile
import time
from pathlib import Path

from candidates import image


def run(spec: dict) -> dict:
    """Measure."""
    import multiprocessing

    import torch

    torch.set_num_threads(1)
    found = []
    for path in sorted(Path(spec["path"]).glob("*.tar")):
        with tarfile.open(path) as tar:
            found += [tar.extractfile(member).read() for member in tar if member.name.endswith(".jpg")]
    image(found[0])  # imports

    def decode(number: int) -> None:
        for data in found[number :: spec["workers"]]:
            image(data)

    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=decode, args=(number,)) for number in range(spec["workers"])]
    begin = time.time()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    end = time.time()
    return {"begin": begin, "first": end, "ends": [end], "samples": len(found)}
