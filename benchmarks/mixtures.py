"""Do live mixtures keep their shares? `python benchmarks/mixtures.py [--draws 1000000]`.

Draws a million samples of three sources on 1, 4, 3 and 2 ranks of one job, while the weights change 20 times.
Prints, and ends with status 1 unless all hold:

* The batches equal the batches of one rank that knew all weights at the start.
* After each round, in which every stream makes a batch, each source is within one sample of its share.
* In every stream, a source's samples come equally often, to within one: nothing is lost or repeated.

Then CPU time of even draws of 64 streams with batches of 1, of all in one process and of one alone: each
draws 1,024 rounds ahead, and again when they are consumed, as readers do. ``--draws 0`` prints only this.

``--plans 1000`` prints how far sources are from their shares in random plans of weights, so far and from one
change to the next, and nothing else; ``--sources 20 --segments 40`` in larger ones.
``--lines`` does so for weights that go along lines, with 64 streams, and up to 10 million samples. Shares are
counted by whole numbers from the words of the page: each batch has the weights of the lines in its middle.
``--least`` prints how near any rule can stay to shares that it does not know ahead.
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
from itertools import count, product
from pathlib import Path

from energon_stream import DefaultTaskEncoder, WorkerConfig, get_savable_loader, get_train_dataset, stateless
from energon_stream.config.weight_schedule import parse_schedule
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.schedule import Lines
from energon_stream.schedule.weights import EvenDraws, WeightChange, changes_along
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


def time_of_draws(streams, sources, ramp=False, rounds=2048, ahead=1024):
    """Microseconds of CPU time a batch of even draws with batches of 1."""
    ends = [(1 / (number + 1.37), 1 / (sources - number)) for number in range(sources)]
    told = [{0: one, 10**6: {"to": other, "ramp": "linear"}} if ramp else {0: one} for one, other in ends]
    courses = tuple(parse_schedule(each, "here") for each in told)
    lines = Lines((courses,), tuple(((0, each),) for each in range(sources)))
    weights = list(changes_along(lines))
    rules = [EvenDraws(weights, range(64), stream, 64, 1, weights, lines.begins()) for stream in streams]
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
    print("| sources | 64 streams in a process, µs a batch | one of 64 | on a ramp | one of 64 |")
    print("|--:|--:|--:|--:|--:|")
    for sources in (2, 5, 20):
        times = [time_of_draws(own, sources, ramp) for ramp in (False, True) for own in (range(64), [5])]
        print(f"| {sources} | {' | '.join(f'{each:.1f}' for each in times)} |", flush=True)


def furthest_of_plan(weights, begins, size, foreseen):
    """The largest distances from shares after each batch of one stream, and in each segment, by fractions."""
    changes = [WeightChange(*each) for each in zip(begins, weights, strict=True)]
    planned, knots = (changes, begins) if foreseen else ((), None)
    rule, batches = EvenDraws(changes, range(1), 0, 1, size, planned, knots), begins[-1] + 20
    chosen = rule.take(0, rule.fresh(0), batches * size)[0].tolist()
    behind, worst, segment = [Fraction(0)] * len(weights[0]), Fraction(0), Fraction(0)
    before = behind
    for batch in range(batches):
        if batch in begins:
            segment = max(segment, *(abs(one - other) for one, other in zip(behind, before, strict=True)))
            before = behind
        now = [change.weights for change in changes if change.begin <= batch][-1]
        total = sum(map(Fraction, now))
        behind = [at + size * Fraction(weight) / total for at, weight in zip(behind, now, strict=True)]
        for source in chosen[batch * size :][:size]:
            behind[source] -= 1
        worst = max(worst, *map(abs, behind))
    return float(worst), float(segment)


def report_plans(plans, most_sources, most_segments):
    print(
        "| weights | changes are | furthest, in samples | plans with more than 1 | in a segment | more than 1 |"
    )
    print("|---|---|--:|--:|--:|--:|")
    for zeros in (False, True):
        found, draw = {True: [], False: []}, random.Random(1)
        for _ in range(plans):
            sources, spread, longest = (
                draw.randint(2, most_sources),
                draw.choice([0.3, 1, 4]),
                draw.choice([3, 10, 30]),
            )
            absent, weights, begins = draw.choice([0.2, 0.5, 0.8]) * zeros, [], [0]
            for _ in range(draw.randint(2, most_segments)):
                row = [(draw.random() >= absent) * 10 ** (-draw.random() * spread) for _ in range(sources)]
                weights.append(tuple(row) if any(row) else (1.0, *row[1:]))
                begins.append(begins[-1] + draw.randint(1, longest))
            size = draw.choice([1, 2, 5])
            for foreseen, distances in found.items():
                distances.append(furthest_of_plan(weights, begins[:-1], size, foreseen))
        for foreseen, distances in found.items():
            cells = [
                f"{max(each):.2f} | {sum(one > 1 + 1e-9 for one in each):,} of {plans:,}"
                for each in zip(*distances, strict=True)
            ]
            print(
                f"| {'some are 0' if zeros else 'all above 0'} | {'planned' if foreseen else 'set under way'} | "
                f"{' | '.join(cells)} |",
                flush=True,
            )


def weight_of(told, batch):
    """The weight in the middle of a batch; ``told`` are batches, weights, and whether a line leads there."""
    at = max(number for number, (begin, *_) in enumerate(told) if begin <= batch)
    begin, first, _ = told[at]
    if at + 1 == len(told) or not told[at + 1][2]:
        return Fraction(first)
    end, last, _ = told[at + 1]
    part = Fraction(2 * (batch - begin) + 1, 2 * (end - begin))
    return Fraction(first) + (Fraction(last) - Fraction(first)) * part


def report_line(name, told, size, streams=64):
    """Print how far sources are from their shares, after each round of all streams, and in each segment."""
    documents = [{at: {"to": to, "ramp": "linear"} if ramp else to for at, to, ramp in each} for each in told]
    courses = tuple(parse_schedule(each, "here") for each in documents)
    ends = sorted({at for each in told for at, *_ in each})
    rounds, parts = ends[-1] // streams + 20, 10**30
    begin = time.process_time()
    lines = Lines((courses,), tuple(((0, each),) for each in range(len(told))))
    weights, knots = list(changes_along(lines)), lines.begins()
    rules = [
        EvenDraws(weights, range(streams), each, streams, size, weights, knots) for each in range(streams)
    ]
    states = [rule.fresh(0) for rule in rules]
    opened = time.process_time() - begin
    behind, worst, segment, at, spent = [0] * len(told), 0, 0, [0] * len(told), 0.0
    for number in range(rounds):
        begin = time.process_time()
        drawn = []
        for stream, rule in enumerate(rules):
            chosen, states[stream] = rule.take(number * size, states[stream], size)
            drawn.append(chosen.tolist())
        spent += time.process_time() - begin
        for stream, chosen in enumerate(drawn):
            batch = number * streams + stream
            if batch in ends:
                segment = max(segment, *(abs(one - other) for one, other in zip(behind, at, strict=True)))
                at = behind
            now = [weight_of(each, batch) for each in told]
            scale = parts * size / sum(now)
            behind = [each + int(weight * scale) for each, weight in zip(behind, now, strict=True)]
            for source in chosen:
                behind[source] -= parts
        worst = max(worst, *map(abs, behind))
    print(
        f"| {name} | {len(told)} | {rounds * streams * size:,} | {worst / parts:.6f} | {segment / parts:.2f} | "
        f"{1000 * opened:.0f} | {1e6 * spent / rounds / streams:.1f} |",
        flush=True,
    )


def report_lines():
    draw = random.Random(1)
    print("| lines | sources | samples | furthest | in a segment | opening, ms | µs a batch |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    one = [(0, 1, False)]
    report_line("0 to 1, beside 1", [[(0, 0, False), (192, 1, True)], one], 4)
    report_line("0 to 1, beside 1", [[(0, 0, False), (16_384, 1, True)], one], 4)
    report_line("1 to 0, beside 1", [[(0, 1, False), (16_384, 0, True)], one], 4)
    report_line("1 to 1000, beside 1", [[(0, 1, False), (16_384, 1000, True)], one], 4)
    report_line("0 to 1, beside 1", [[(0, 0, False), (312_500, 1, True)], one], 32)
    report_line("1e-6 to 1, beside 0.001", [[(0, 1e-6, False), (312_500, 1, True)], [(0, 0.001, False)]], 32)

    def some(sources, lengths, zeros=0.0):
        for _ in range(sources):
            at, course = 0, [(0, 10 ** (-3 * draw.random()), False)]
            for length in lengths:
                at += length
                course.append(
                    (at, (draw.random() >= zeros) * 10 ** (-3 * draw.random()), draw.random() < 0.7)
                )
            yield course

    report_line("any to any", list(some(20, [16_384])), 4)
    report_line("any to any", list(some(300, [4096])), 4)
    report_line("segments of 3 to 90 batches", list(some(20, [draw.randint(3, 90) for _ in range(40)])), 4)
    report_line("the same, from and to 0", [*some(20, [draw.randint(3, 90) for _ in range(40)], 0.3), one], 4)
    report_line("segments of 200 batches, from and to 0", [*some(20, [200] * 20, 0.3), one], 1)


def least_distance(sources, parts):
    """The least distance that some rule can keep to shares that are set before each draw, by trying all.

    Shares are multiples of 1 / ``parts``. What sources are behind is counted in these. A rule can keep a
    distance if there is a set of states with it, begun with none behind, that no shares lead out of.
    """
    shares = [each for each in product(range(parts + 1), repeat=sources) if sum(each) == parts]
    return Fraction(next(most for most in count(1) if can_keep(sources, parts, most, shares)), parts)


def can_keep(sources, parts, most, shares):
    """Return True if a rule is never further off than ``most`` parts."""
    states = {
        tuple(sorted((*each, -sum(each))))
        for each in product(range(-most, most + 1), repeat=sources - 1)
        if abs(sum(each)) <= most
    }
    before = None
    while states != before:
        before = states
        states = {each for each in before if all(can_stay(each, some, parts, before) for some in shares)}
    return (0,) * sources in states


def can_stay(state, shares, parts, states):
    """Return True if a draw of a source with a share leads to one of the states."""
    now = [behind + share for behind, share in zip(state, shares, strict=True)]
    draws = (source for source, share in enumerate(shares) if share)
    return any(tuple(sorted([*now[:at], now[at] - parts, *now[at + 1 :]])) in states for at in draws)


def report_least():
    print("| sources | shares in parts of | least distance, in samples |\n|--:|--:|--:|")
    for sources, parts in ((2, 6), (3, 6), (3, 12), (4, 6), (4, 8), (5, 4), (5, 6)):
        print(f"| {sources} | {parts} | {float(least_distance(sources, parts)):.2f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=1_000_000)
    parser.add_argument("--plans", type=int)
    parser.add_argument("--sources", type=int, default=12)
    parser.add_argument("--segments", type=int, default=7)
    parser.add_argument("--lines", action="store_true")
    parser.add_argument("--least", action="store_true")
    options = parser.parse_args()
    draws = options.draws
    if options.plans is not None:
        report_plans(options.plans, options.sources, options.segments)
        return
    if options.lines or options.least:
        report_lines() if options.lines else report_least()
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
