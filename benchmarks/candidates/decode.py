"""The limits of decoding: forked processes decode JPEGs that lie in memory.

They do nothing else, or the main process receives the same bytes by plain range GETs, and drops them.
"""

import tarfile
import time
from pathlib import Path

from candidates import image, import_decoder

IN_FLIGHT = 16


def run(spec: dict) -> dict:
    """Measure."""
    import multiprocessing

    import obstore  # noqa: F401  (an import, not part of the run)
    import raw_loop
    import torch

    torch.set_num_threads(1)
    found = []
    for path in sorted(Path(spec["path"]).glob("*.tar")):
        with tarfile.open(path) as tar:
            found += [tar.extractfile(member).read() for member in tar if member.name.endswith(".jpg")]
    import_decoder()

    def decode(number: int) -> None:
        for data in found[number :: spec["workers"]]:
            image(data)

    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=decode, args=(number,)) for number in range(spec["workers"])]
    begin = time.time()
    for worker in workers:
        worker.start()
    if "endpoint" in spec:
        raw_loop.run(spec["endpoint"], spec["bucket"], f"{spec['dataset']}/", 1, IN_FLIGHT, ahead=False)
    for worker in workers:
        worker.join()
    end = time.time()
    return {"begin": begin, "first": end, "ends": [end], "samples": len(found)}
