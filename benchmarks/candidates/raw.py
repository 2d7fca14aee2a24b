"""The limit of remote reading: ``raw_loop`` in this process, or in one child as a worker would be."""

import time


def run(spec: dict) -> dict:
    """Measure."""
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
