"""Do live mixtures keep their shares? `python benchmarks/mixtures.py [--draws 1000000]`.

Draws a million samples of three sources on 1, 4, 3 and 2 ranks of one job, while the weights change 20 times.
Prints, and ends with status 1 unless all hold:

* The batches equal the batches of one rank that knew all weights at the start.
* After each round, in which every stream makes a batch, each source is within one sample of its share.
* In every stream, a source's samples come equally often, to within one: nothing is lost or repeated.

Then CPU time of even draws of 64 streams with batches of 1, of all in one process and of one alone: each
draws 1,024 rounds ahead, and again when they are consumed, as readers do. ``--draws 0`` prints only this.

``--plans 1000`` prints how far sources are from their shares in random plans of weights, and nothing else.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from fractions import Fraction
from pathlib import Path

from energon_stream import DefaultTaskEncoder, WorkerConfig, get_savable_loader, get_train_dataset, stateless
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.schedule.weights import EvenDraws, WeightChange
from energon_stream.state import dumps, loads
from energon_stream.testing.datasets import TEXT_YAML, write_shards

SOURCES = {"a": 700, "b": 500, "c": 300}  # samples a shard, of 12 shards
STREAMS, BATCH, CHANGES = 12, 100, 20
TOPOLOGIES = ((1, 2), (4, 0), (3, 0), (2, 0))  # ranks, and workers of each


class Texts(DefaultTaskEncoder):
    """A sample is its text."""

    @stateless
    def encode_sample(self, sample):
        return sample.text

    def batch(self, samples):
        return samples


def open_loader(path, rank=0, world=1, workers=0):
    dataset = get_train_dataset(
        path,
        worker_config=WorkerConfig(rank, world, workers, num_streams=STREAMS),
        batch_size=BATCH,
        shuffle_buffer_size=100,
        max_samples_per_sequence=20,
        draws="even",
        task_encoder=Texts(),
    )
    return get_savable_loader(dataset)


def step(loaders, count):
    iterators = [iter(loader) for loader in loaders]
    return [batch for _ in range(count) for batch in [next(each) for each in iterators]]


def told_at_once(path, told, batches):
    loader = open_loader(path)
    for at, weights in told.items():
        loader.set_weights(weights, at_step=at)
    return step([loader], batches)


def told_under_way(path, told, batches):
    got, states, every = [], None, min(told)
    for number, (world, workers) in enumerate(TOPOLOGIES, 1):
        loaders = [open_loader(path, rank, world, workers) for rank in range(world)]
        for loader in loaders:
            loader.restore_state_global(states)
        while len(got) < batches * number // len(TOPOLOGIES):
            weights = told.get(len(got))
            for loader in loaders if weights else ():
                loader.set_weights(weights, at_step=loader.mixture().step)
            got += step(loaders, every // world)
        states = [loads(dumps(loader.save_state_rank())) for loader in loaders]
        for loader in loaders:
            loader.close()
    return got


def furthest(batches, told, first):
    """The largest distance of a source from its share, over all rounds of the job."""
    behind, worst, weights = dict.fromkeys(first, Fraction(0)), Fraction(0), first
    for begin in range(0, len(batches), STREAMS):
        weights = told.get(begin, weights)
        drawn = Counter(text[0] for batch in batches[begin : begin + STREAMS] for text in batch)
        for name, weight in weights.items():
            behind[name] += Fraction(weight, sum(weights.values())) * drawn.total() - drawn[name]
        worst = max(worst, *map(abs, behind.values()))
    return worst


def uneven(batches):
    """Sources in streams where a sample came more than once more than another."""
    found = []
    for stream in range(STREAMS):
        counted = Counter(text for batch in batches[stream::STREAMS] for text in batch)
        for name, size in SOURCES.items():
            times = [count for text, count in counted.items() if text[0] == name]
            least = min(times) if len(times) == size else 0
            if max(times) - least > 1:
                found.append((stream, name, len(times), least, max(times)))
    return found


def time_of_draws(streams, sources, rounds=2048, ahead=1024):
    """Microseconds of CPU time a batch of even draws with batches of 1."""
    weights = [WeightChange(0, tuple(1 / (number + 1.37) for number in range(sources)))]
    rules = [EvenDraws(weights, range(64), stream, 64, 1) for stream in streams]
    looking = [rule.fresh(0) for rule in rules]
    consuming, begin = looking.copy(), time.process_time()
    for first in range(0, rounds, ahead):
        for place, rule in enumerate(rules):
            looking[place] = rule.take(first, looking[place], ahead)[1]
        for number in range(first, first + ahead):
            for place, rule in enumerate(rules):
                consuming[place] = rule.take(number, consuming[place], 1)[1]
    return 1e6 * (time.process_time() - begin) / (rounds * len(rules))


def report_times():
    print("| sources | 64 streams in a process, µs a batch | one of 64 |\n|--:|--:|--:|")
    for sources in (2, 5, 20):
        together, alone = time_of_draws(range(64), sources), time_of_draws([5], sources)
        print(f"| {sources} | {together:.1f} | {alone:.1f} |", flush=True)


def furthest_of_plan(weights, begins, size, foreseen):
    """The largest distance of a source from its share after each batch of one stream, by fractions."""
    changes = [WeightChange(*each) for each in zip(begins, weights, strict=True)]
    rule, batches = EvenDraws(changes, range(1), 0, 1, size, changes if foreseen else ()), begins[-1] + 20
    chosen = rule.take(0, rule.fresh(0), batches * size)[0].tolist()
    behind, worst = [Fraction(0)] * len(weights[0]), Fraction(0)
    for batch in range(batches):
        now = [weight for begin, weight in changes if begin <= batch][-1]
        total = sum(map(Fraction, now))
        behind = [at + size * Fraction(weight) / total for at, weight in zip(behind, now, strict=True)]
        for source in chosen[batch * size :][:size]:
            behind[source] -= 1
        worst = max(worst, *map(abs, behind))
    return float(worst)


def report_plans(plans):
    print("| weights | changes are | furthest, in samples | plans with more than 1 |\n|---|---|--:|--:|")
    for zeros in (False, True):
        found, draw = {True: [], False: []}, random.Random(1)
        for _ in range(plans):
            sources, spread, longest = draw.randint(2, 12), draw.choice([0.3, 1, 4]), draw.choice([3, 10, 30])
            absent, weights, begins = draw.choice([0.2, 0.5, 0.8]) * zeros, [], [0]
            for _ in range(draw.randint(2, 7)):
                row = [(draw.random() >= absent) * 10 ** (-draw.random() * spread) for _ in range(sources)]
                weights.append(tuple(row) if any(row) else (1.0, *row[1:]))
                begins.append(begins[-1] + draw.randint(1, longest))
            size = draw.choice([1, 2, 5])
            for foreseen, distances in found.items():
                distances.append(furthest_of_plan(weights, begins[:-1], size, foreseen))
        for foreseen, distances in found.items():
            over = sum(each > 1 + 1e-9 for each in distances)
            print(
                f"| {'some are 0' if zeros else 'all above 0'} | {'planned' if foreseen else 'set under way'} | "
                f"{max(distances):.2f} | {over:,} of {plans:,} |",
                flush=True,
            )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=1_000_000)
    parser.add_argument("--plans", type=int)
    options = parser.parse_args()
    draws = options.draws
    if options.plans is not None:
        report_plans(options.plans)
        return
    report_times()
    if not draws:
        return
    every = STREAMS * max(1, -(-draws // (BATCH * STREAMS * (CHANGES + 1))))  # batches of a segment
    batches = every * (CHANGES + 1)
    first = {"a": 3, "b": 2, "c": 1}
    told = {
        every * number: {"a": 1 + number % 3, "b": 1 + number % 5, "c": number % 2}
        for number in range(1, CHANGES + 1)
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, size in SOURCES.items():
            root = Path(folder, name)
            write_shards(
                root,
                shards=12,
                samples_per_shard=size,
                parts=lambda i, name=name: {"txt": f"{name}{i}".encode()},
            )
            prepare_dataset(str(root), split_ratio=(1, 0, 0), dataset_yaml=TEXT_YAML)
        blend = [{"weight": weight, "path": name} for name, weight in first.items()]
        path = Path(folder, "mix.yaml")
        kind = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
        path.write_text(json.dumps({**kind, "splits": {"train": {"blend": blend}}}))
        begin = time.perf_counter()
        expected = told_at_once(path, told, batches)
        got = told_under_way(path, told, batches)
    equal, distance, wrong = got == expected, furthest(expected, told, first), uneven(expected)
    print(
        f"{len(got) * BATCH:,} draws, {CHANGES} changes of weights, ranks {[world for world, _ in TOPOLOGIES]}, "
        f"{time.perf_counter() - begin:.0f} s: equal to one rank: {equal}; furthest from a share: {float(distance):.3f} "
        f"samples; sources with lost or repeated samples: {wrong or 'none'}"
    )
    sys.exit(not equal or distance > 1 + 1e-9 or bool(wrong))


if __name__ == "__main__":
    main()
