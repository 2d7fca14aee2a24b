"""Fill of the ready-made packers, and balance of planned packs: ``python benchmarks/packing.py``.

Last, what planned packing costs a process: CPU time to the first batches with 256 streams, and memory.
``python benchmarks/packing.py cost`` prints only this, and ``balance`` only the balance.
"""

from __future__ import annotations

import itertools
import json
import re
import resource
import sys
import sysconfig
import tempfile
import time
import tracemalloc
from pathlib import Path

import numpy as np

from energon_stream import (
    DefaultTaskEncoder,
    PlannedPacking,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from energon_stream.index.jsonl_index import prepare_jsonl
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.schedule import JobPacks, LeafPlan, OrderSpec, PackSpec, RepeatPlan, build_schedule
from energon_stream.task.packers import LengthPacker, best_fit_decreasing, first_fit, histogram_pack
from energon_stream.testing.datasets import TEXT_YAML, write_shards
from energon_stream.testing.s3server import S3Server
from energon_stream.tools.curation.compute_costs import compute_costs

CAPACITY, BUFFER = 4096, 1000
TEXT = 100  # bytes of a sample whose first batches are timed
BATCHES = 1, 9, 1014  # the last of these come from the second window

RANKS, MICRO_BATCHES, LONG = 64, 4, 8192


def mixed_lengths(count=60_000):
    """Half texts, log-normal with a long tail; half images of three sizes with a caption."""
    rng = np.random.default_rng(0)
    texts = rng.lognormal(np.log(600), 1.2, count)
    images = rng.choice([576, 1024, 2048], count) + rng.lognormal(np.log(80), 0.8, count)
    return np.clip(np.where(rng.random(count) < 0.5, texts, images), 1, LONG).astype(np.int64)


def library_lengths(separator):
    """Words and signs in the texts of Python's own library, cut at a separator; None for whole files."""
    found = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("**/*.py")):
        if "site-packages" not in path.parts:
            text = path.read_text(errors="replace")
            parts = [text] if separator is None else text.split(separator)
            found += [len(re.findall(r"\w+|[^\w\s]", part)) for part in parts]
    return np.clip([length for length in found if length], 1, LONG).astype(np.int64)


def planned(lengths, windows=4, begin=0, skipped=0.0):
    """Return the loads of ranks by step, the fill, and microseconds a sample of planned packs.

    ``begin`` is the first step, and ``skipped`` the share of samples that are left out at random.
    """
    plan = RepeatPlan(LeafPlan(0, np.array([0, len(lengths)]), OrderSpec(100, 500, 16, 1)))
    each = LONG / lengths.mean()
    spec = PackSpec(LONG, RANKS * MICRO_BATCHES, 8, "quadratic", "error").in_chapters(each, RANKS)
    order = build_schedule(plan, num_streams=1, stream=0, key=1, mixed=int(spec.packs * each))
    job, draw = JobPacks(order, spec, (lengths,), RANKS, 1), np.random.default_rng(9)
    steps, tokens, samples = [], 0, 0
    cursor = job.job.advance(job.job.begin(), int(begin * spec.step * each))
    started = time.process_time()
    for number in range(windows):
        window = job.window(0, number, cursor)
        cursor = window.after
        rows = []
        for own in window.streams:
            sizes = own.stop - own.start
            sizes[draw.random(len(sizes)) < skipped] = 0
            bounds = [0, *own.ends[MICRO_BATCHES - 1 :: MICRO_BATCHES]]
            rows.append([float((sizes[a:b] ** 2.0).sum()) for a, b in itertools.pairwise(bounds)])
            tokens, samples = tokens + int(sizes.sum()), samples + len(sizes)
        steps += np.array(rows).T.tolist()
    seconds = time.process_time() - started
    return np.array(steps), tokens / (len(steps) * spec.step * LONG), 1e6 * seconds / samples


def first_fit_per_rank(lengths, steps=32):
    """Return the loads of ranks by step where each rank packs its own samples, and the fill.

    A rank draws its samples at random, puts each into the first of its open packs that has room, ``BUFFER``
    samples at a time, and trains on the packs in the order in which they were opened.
    """
    rng, needed = np.random.default_rng(1), steps * MICRO_BATCHES
    loads, tokens = np.zeros((steps, RANKS)), 0
    for rank in range(RANKS):
        packs = []
        while len(packs) < needed:
            own = rng.choice(lengths, BUFFER)
            packs += [own[group] for group in first_fit(own.tolist(), LONG)]
        chosen = packs[:needed]
        tokens += sum(int(pack.sum()) for pack in chosen)
        squares = [float((pack**2.0).sum()) for pack in chosen]
        loads[:, rank] = np.reshape(squares, (steps, MICRO_BATCHES)).sum(axis=1)
    return loads, tokens / (needed * RANKS * LONG)


def uneven(loads):
    """Return the load of the slowest rank over the mean: the mean of all steps, and the worst."""
    ratios = loads.max(axis=1) / loads.mean(axis=1)
    return float(ratios.mean()), float(ratios.max())


def balance():
    print("\n| lengths | median, 90 %, 99 % | at the limit | first fit a rank | its fill ", end="")
    print("| planned: mean and worst step | its fill | µs a sample ", end="")
    print("| 1 % skipped: mean, fill | after 10⁵ steps: mean, fill |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    kinds = {
        "texts and images": mixed_lengths(),
        "functions and classes of Python's library": library_lengths("\n\n\n"),
        "files of Python's library": library_lengths(None),
    }
    for name, lengths in kinds.items():
        loads, fill, microseconds = planned(lengths)
        first, filled = first_fit_per_rank(lengths)
        before, (mean, worst) = uneven(first)[0], uneven(loads)
        spread = ", ".join(f"{value:,.0f}" for value in np.percentile(lengths, [50, 90, 99]))
        print(f"| {name} | {spread} | {np.mean(lengths == LONG):.1%} | {before:.2f} | {filled:.3f} ", end="")
        print(f"| {mean:.3f}, {worst:.3f} | {fill:.3f} | {microseconds:.1f} ", end="")
        for options in ({"skipped": 0.01}, {"begin": 100_000}):
            loads, fill, _ = planned(lengths, **options)
            print(f"| {uneven(loads)[0]:.3f}, {fill:.3f} ", end="")
        print("|", flush=True)


def start(windows=(1, 3, 20)):
    """CPU seconds until a process has planned its first windows, as readers do before the first batches."""
    lengths = mixed_lengths()
    print("\n| windows planned | s |\n|--:|--:|")
    for count in windows:
        begin = time.process_time()
        planned(lengths, count)
        print(f"| {count} | {time.process_time() - begin:.2f} |")


class Packs(DefaultTaskEncoder):
    @stateless
    def pack_selected_samples(self, samples):
        return len(samples)


def packed(path, ranks, streams, packing, **options):
    """Return the loader of one of some ranks."""
    dataset = get_train_dataset(
        str(path),
        batch_size=1,
        shuffle_buffer_size=1000,
        max_samples_per_sequence=100,
        worker_config=WorkerConfig(0, ranks, 0, num_streams=streams),
        task_encoder=Packs(),
        packing=packing,
        **options,
    )
    return get_savable_loader(dataset)


def first_batches(ranks, server=None, streams=256, samples=400_000):
    """CPU seconds from opening to the first batches of one of some ranks, and requests; MB that they took."""
    lengths = mixed_lengths(samples)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder if server is None else server.folder, "texts.jsonl")
        path.write_text(f'{{"text": "{"a" * TEXT}"}}\n' * samples)
        prepare_jsonl(str(path))
        if server is not None:
            server.reset_counters()
            path = "s3://bucket/texts.jsonl"
        before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        options = {"cache": False, "storage_options": None if server is None else server.storage_options}
        loader = packed(path, ranks, streams, PlannedPacking(lengths, LONG), **options)
        cells, batches = [], iter(loader)
        for count in BATCHES:
            for _ in range(count):
                next(batches)
            requests = "none" if server is None else f"{len(server.log()):,}"
            cells += [f"{time.process_time() - begin:.2f}", requests]
        loader.close()
        size = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return *cells, f"{size:.0f}"


def first_even_batch(ranks, streams=256, samples=20_000):
    """CPU seconds from opening to the first batch of three sources with even draws."""
    lengths = mixed_lengths(samples).tolist()
    with tempfile.TemporaryDirectory() as folder:
        for name in "abc":
            path = Path(folder, name)
            write_shards(path, shards=8, samples_per_shard=samples // 8, parts=lambda _: {"txt": b"a" * TEXT})
            prepare_dataset(str(path), split_ratio=(1, 0, 0), dataset_yaml=TEXT_YAML)
            compute_costs(str(path), "tokens", values=lengths)
        blend = [{"weight": weight, "path": name} for name, weight in zip("abc", (3, 2, 1), strict=True)]
        kind = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
        path = Path(folder, "mix.yaml")
        path.write_text(json.dumps({**kind, "splits": {"train": {"blend": blend}}}))
        begin = time.process_time()
        next(iter(packed(path, ranks, streams, PlannedPacking("tokens", LONG), draws="even")))
        return time.process_time() - begin


def memory(samples=10_000_000, windows=40):
    """MB that the costs of many samples and planned windows take, at the peak."""
    few = mixed_lengths().astype(np.int32)
    tracemalloc.start()
    lengths = np.tile(few, -(-samples // len(few)))[:samples]
    plan = RepeatPlan(LeafPlan(0, np.arange(0, samples + 1, 10_000), OrderSpec(100, 1000, 16, 1)))
    spec = PackSpec(LONG, RANKS * MICRO_BATCHES, 8, "quadratic", "error")
    spec = spec.in_chapters(LONG / few.mean(), RANKS)
    job = JobPacks(build_schedule(plan, num_streams=1, stream=0, key=1), spec, (lengths,), RANKS, 1)
    for _ in itertools.islice(job.windows(), windows):
        pass
    peak = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    return peak


def cost():
    heads = "".join(f" CPU-s to batch {sum(BATCHES[: at + 1])} | requests |" for at in range(len(BATCHES)))
    print(f"\n| 256 streams |{heads} MB |\n|---|{2 * len(BATCHES) * '--:|'}--:|")
    with tempfile.TemporaryDirectory() as folder, S3Server(folder, own_process=True) as server:
        server.folder = Path(folder, "bucket")
        server.folder.mkdir()
        for place, of in (("local files", None), ("a store", server)):
            for name, ranks in (("one of 256 ranks", 256), ("all in one process", 1)):
                print(f"| {name}, {place} | {' | '.join(first_batches(ranks, of))} |", flush=True)
    for name, ranks in (("one of 256 ranks", 256), ("all in one process", 1)):
        seconds = first_even_batch(ranks)
        print(f"\n{seconds:.2f} CPU-s to the first batch of 3 sources with even draws, {name}", flush=True)
    print(f"\n{memory():.0f} MB for 10,000,000 samples and 40 windows", flush=True)


def length_packers(capacity=2048, samples=20_000):
    """Fill of the packs that `LengthPacker` makes of samples as they come, about 8 a pack."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(capacity / 8) - 0.245, 0.7, samples), 1, capacity).astype(int)
    print("\n| packer | buffer | fill |\n|---|--:|--:|")
    for method, buffer in (("best_fit", 256), ("best_fit", 64), ("first_fit", 256), ("greedy", 256)):
        packer = LengthPacker(int, capacity=capacity, method=method)
        waiting, packs, coming = [], 0, iter(lengths.tolist())
        while waiting := [*waiting, *itertools.islice(coming, buffer - len(waiting))]:
            output = packer.select_samples_to_pack(waiting)
            waiting, packs = list(output.pushback), packs + len(output.packs)
        print(f"| `{method}` | {buffer} | {lengths.sum() / (capacity * packs):.3f} |")


def main():
    rng = np.random.default_rng(0)
    kinds = {
        "captions (log-normal, mean 300)": rng.lognormal(5.4, 0.7, BUFFER),
        "documents (uniform 1 to 4096)": rng.uniform(1, CAPACITY, BUFFER),
        "images (256, 576 or 1024, and text)": rng.choice([256, 576, 1024], BUFFER)
        + rng.integers(10, 200, BUFFER),
    }
    print(
        f"| {BUFFER:,} samples, packs of {CAPACITY:,} | packer | packs | fill | ms |\n|---|---|--:|--:|--:|"
    )
    for name, values in kinds.items():
        sizes = np.clip(values, 1, CAPACITY).astype(int).tolist()
        for packer in (first_fit, best_fit_decreasing, histogram_pack):
            begin = time.perf_counter()
            groups = packer(sizes, CAPACITY)
            milliseconds = 1000 * (time.perf_counter() - begin)
            fill = sum(sizes) / (CAPACITY * len(groups))
            print(f"| {name} | `{packer.__name__}` | {len(groups)} | {fill:.3f} | {milliseconds:.1f} |")

    length_packers()
    balance()
    start()
    cost()


if __name__ == "__main__":
    {"cost": cost, "balance": balance}.get(" ".join(sys.argv[1:]), main)()
