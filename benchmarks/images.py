"""Images a second and core: backends of ``SampleDecoder``, reduced sizes, and threads beside processes.

    python benchmarks/images.py [--rounds 7] [--sides 256,512,1024]

JPEGs as ``datasets.photo`` makes them lie in memory. Rounds are interleaved and figures are medians, of CPU
time of the process where one process decodes, and of wall time where two do. Backends whose package cannot be
imported are left out, and so is the one that leaves the decoding to a GPU.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from datasets import photo

from energon_stream import SampleDecoder
from energon_stream.decode.jpeg import IMAGE_BACKENDS
from energon_stream.errors import MissingPackageError

FILES_AT_256 = 64
"""Different JPEGs of 256 x 256; of larger sides there are fewer."""

BACKENDS = [name for name in IMAGE_BACKENDS if name != "nvjpeg"]
"""Those that decode in the process that asks them to."""

MODES = ("torchrgb8", "torchrgb", "pil")
LANES = 2

Decode = Callable[[bytes], object]


def decoders(**options) -> dict[str, Decode]:
    """Return a function for each backend that can be used."""
    found: dict[str, Decode] = {}
    for backend in BACKENDS:
        try:
            decoder = SampleDecoder(image_backend=backend, **options)
        except MissingPackageError:
            continue
        found[backend] = lambda data, decoder=decoder: decoder.decode("jpg", data)
    return found


def rates(functions: dict[str, Callable[[], object]], images: int, rounds: int, clock=time.process_time):
    """Return the median rates of functions that decode ``images`` each, in interleaved rounds."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for number in range(rounds + 1):
        for name, function in functions.items():
            begin = clock()
            function()
            if number:  # the first one warms up
                seconds[name].append(clock() - begin)
    return {name: images / statistics.median(each) for name, each in seconds.items()}


def all_of(decode: Decode, files: Sequence[bytes]) -> None:
    """Decode all files, and keep none."""
    for data in files:
        decode(data)


def in_threads(decode: Decode, files: Sequence[bytes]) -> None:
    """Decode them on ``LANES`` threads of this process, as many at a time as a worker would have at hand."""
    with ThreadPoolExecutor(LANES) as pool:
        list(pool.map(decode, files))


def in_processes(decode: Decode, files: Sequence[bytes]) -> None:
    """Decode them in ``LANES`` forked processes, as workers do."""
    context = multiprocessing.get_context("fork")
    lanes = [context.Process(target=all_of, args=(decode, files[number::LANES])) for number in range(LANES)]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()


def row(name: str, found: dict[str, float]) -> None:
    """Print a line of a table."""
    print(f"| {name} | {' | '.join(f'{rate:,.0f}' for rate in found.values())} |", flush=True)


def head(first: str, names: Sequence[str]) -> None:
    """Print the head of a table."""
    print(f"\n| {first} | {' | '.join(names)} |\n|---|{'--:|' * len(names)}")


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sides", default="256,512,1024")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sides = [int(side) for side in options.sides.split(",")]
    files = {side: [photo(i, side) for i in range(max(16, FILES_AT_256 * 256 // side))] for side in sides}

    head("images/s a core, image_decode", list(decoders()))
    for side, data in files.items():
        for mode in MODES:
            works = {
                name: lambda decode=decode, data=data: all_of(decode, data)
                for name, decode in decoders(image_decode=mode).items()
            }
            row(f"{side} x {side}, {mode}", rates(works, len(data), options.rounds))

    head("images/s a core, torchrgb8, reduced", list(decoders()))
    for side, data in files.items():
        for reduction in (1, 2, 4):
            least = (side // reduction, side // reduction)
            works = {
                name: lambda decode=decode, data=data: all_of(decode, data)
                for name, decode in decoders(image_decode="torchrgb8", image_min_size=least).items()
            }
            row(f"{side} x {side} to {least[0]} x {least[1]}", rates(works, len(data), options.rounds))

    head(
        "images/s by the wall clock, torchrgb8",
        [f"{name}, {way}" for name in decoders() for way in ("one process", "2 threads", "2 processes")],
    )
    for side, data in files.items():
        data = data * 8  # starting processes must not count
        works = {
            f"{name} {number}": lambda decode=decode, data=data, way=way: way(decode, data)
            for name, decode in decoders(image_decode="torchrgb8").items()
            for number, way in enumerate((all_of, in_threads, in_processes))
        }
        row(f"{side} x {side}", rates(works, len(data), options.rounds, time.perf_counter))


if __name__ == "__main__":
    main()
