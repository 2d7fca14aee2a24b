"""Speed of `lint` beside the loader over the same data: `python benchmarks/lint_speed.py --processes 2`.

Samples are JPEG images of 384 x 512 with a caption and some JSON. `lint` reads headers and index, and decodes
all parts; the loader reads one pass in order, with as many worker processes, and decodes the parts that its
field map names, which are all but the JSON. With ``--processes 0``, both run in this process, and their CPU
times are compared, which other programs disturb less.
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
import time

import numpy as np
from PIL import Image

from energon_stream import WorkerConfig, get_loader, get_val_dataset, lint_dataset
from energon_stream.engine.processes import LocalEngine
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import CAPTIONING_YAML, write_shards


def picture(seed):
    """A JPEG with some detail."""
    small = np.random.default_rng(seed).integers(0, 256, (48, 64, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(small).resize((512, 384), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def main():
    """Print samples a second of both, three times in turn, and the ratio of the medians."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    pictures = [picture(seed) for seed in range(50)]
    about = json.dumps({"width": 512, "height": 384, "source": "benchmark"}).encode()
    with tempfile.TemporaryDirectory() as folder:
        write_shards(
            folder,
            shards=20,
            samples_per_shard=options.samples // 20,
            parts=lambda i: {"jpg": pictures[i % 50], "txt": b"a caption", "json": about},
        )
        prepare_dataset(folder, split_ratio=(1, 0, 0), dataset_yaml=CAPTIONING_YAML)
        speeds, cpu = {"loader": [], "lint": []}, {"loader": 0.0, "lint": 0.0}
        for turn in range(4):
            begin, used = time.perf_counter(), time.process_time()
            config = WorkerConfig(0, 1, options.processes)
            dataset = get_val_dataset(folder, batch_size=None, split_part="train", worker_config=config)
            count = sum(1 for _ in (get_loader(dataset) if options.processes else dataset))
            taken = {"loader": (count / (time.perf_counter() - begin), time.process_time() - used)}
            begin, used = time.perf_counter(), time.process_time()
            report = lint_dataset(folder, engine=LocalEngine(options.processes))
            made = report.made["train"]
            taken["lint"] = made / (time.perf_counter() - begin), time.process_time() - used
            for name, (speed, seconds) in taken.items() if turn else ():  # the first turn imports modules
                speeds[name].append(speed)
                cpu[name] += seconds
        for name, found in speeds.items():
            print(f"{name}: {', '.join(f'{speed:,.0f}' for speed in found)} samples a second")
        print(f"lint / loader: {np.median(speeds['lint']) / np.median(speeds['loader']):.2f}")
        if not options.processes:
            print(f"CPU of the loader / CPU of lint: {cpu['loader'] / cpu['lint']:.2f}")


if __name__ == "__main__":
    main()
