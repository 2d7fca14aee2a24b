"""Cost of the loader beside decoding images: CPU seconds of an epoch against a bare loop over the same bytes
in memory.

    python benchmarks/decoded.py [--images 1000] [--rounds 5]

Local tars of 512 x 512 JPEGs with captions, decoded by the very same function in the same order, in one
process; rounds are interleaved, figures are medians. CPU time of the process, so other load shifts it little.
Page faults are shown because glibc's malloc gives memory of several MB back to the system and takes it again,
more or less often by what else lies on the heap; run it again with ``MALLOC_MMAP_THRESHOLD_=67108864
MALLOC_TRIM_THRESHOLD_=1073741824`` in the environment to see the work without them.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import statistics
import tempfile
import time
from pathlib import Path

from datasets import photo

from energon_stream import (
    CaptioningSample,
    DefaultTaskEncoder,
    SampleDecoder,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
)
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import CAPTIONING_YAML, write_shards

SIDE, SHARDS, BATCH, GOAL = 512, 8, 32, 1.05
MODES = ("pilrgb", "torchrgb8", "torchrgb")


class Encoder(DefaultTaskEncoder):
    """Batches as lists: nothing is stacked, which a bare loop would not do either."""

    def batch(self, samples: list[CaptioningSample]):
        return samples


def page_faults():
    """Of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def epoch_of_loader(folder, mode, images):
    """CPU seconds of one pass of ours, from an opened loader on."""
    encoder = Encoder()
    encoder.decoder = SampleDecoder(image_decode=mode)
    dataset = get_train_dataset(
        folder,
        batch_size=BATCH,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=WorkerConfig(0, 1, 0),
        task_encoder=encoder,
        repeat=False,
    )
    with get_savable_loader(dataset) as loader:
        begin = time.process_time()
        count = sum(len(batch) for batch in loader)
        seconds = time.process_time() - begin
    assert count == images
    return seconds


def epoch_of_loop(samples, mode):
    """CPU seconds to decode the same parts, which lie in memory."""
    decoder = SampleDecoder(image_decode=mode)
    begin = time.process_time()
    for first in range(0, len(samples), BATCH):
        batch = [
            (decoder.decode("jpg", jpg), decoder.decode("txt", txt))
            for jpg, txt in samples[first : first + BATCH]
        ]
    seconds = time.process_time() - begin
    assert batch
    return seconds


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    images = options.images // SHARDS * SHARDS
    samples = [(photo(index, SIDE), f"caption {index}".encode()) for index in range(images)]
    with tempfile.TemporaryDirectory(prefix="decoded-") as tmp:
        folder = Path(tmp) / "data"
        write_shards(
            folder,
            shards=SHARDS,
            samples_per_shard=images // SHARDS,
            parts=lambda i: dict(zip(("jpg", "txt"), samples[i], strict=True)),
        )
        prepare_dataset(str(folder), split_ratio=(1, 0, 0), dataset_yaml=CAPTIONING_YAML)
        size = statistics.mean(len(jpg) for jpg, _ in samples) / 1000
        print(f"{images} images of {SIDE} x {SIDE}, {size:.0f} kB each; medians of {options.rounds} rounds\n")
        print(
            "| image_decode | bare loop, CPU-ms an image | loader | ratio | loader adds, us an image | page faults an image: loop, loader |"
        )
        print("|---|--:|--:|--:|--:|--:|")
        for mode in MODES:
            loop, ours, faults = [], [], []
            for number in range(options.rounds + 1):
                marks = [page_faults()]
                bare = epoch_of_loop(samples, mode)
                marks.append(page_faults())
                whole = epoch_of_loader(folder, mode, images)
                marks.append(page_faults())
                if number:  # the first one warms up
                    loop.append(bare / images * 1000)
                    ours.append(whole / images * 1000)
                    faults.append([(after - before) / images for before, after in itertools.pairwise(marks)])
            ratio = statistics.median(ours) / statistics.median(loop)
            added = 1000 * (statistics.median(ours) - statistics.median(loop))
            verdict = "" if ratio <= GOAL else f" (goal: {GOAL})"
            print(
                f"| {mode} | {statistics.median(loop):.3f} | {statistics.median(ours):.3f} "
                f"| {ratio:.3f}{verdict} | {added:.0f} "
                f"| {', '.join(f'{statistics.median(each):.0f}' for each in zip(*faults, strict=True))} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
