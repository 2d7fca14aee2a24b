"""Resumes on other topologies, through random combinations of what chooses and packs samples.

``python tests/packing/resumes.py 1000`` makes 1,000 resumes and counts those whose batches differ from an
undisturbed run of one rank.
"""

import random
import sys
import tempfile
from itertools import islice, pairwise
from pathlib import Path
from unittest.mock import patch

import numpy as np
from packed import CAPACITY, Packs, write

from energon_stream import (
    DefaultTaskEncoder,
    PlannedPacking,
    ReadOptions,
    SkipSample,
    WorkerConfig,
    compute_costs,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from energon_stream.schedule import pack_spec
from energon_stream.state import dumps, loads

STREAMS, STEPS = 4, 48
CHAPTER = 1400  # samples: two windows of the larger packs or more, so that runs pass the ends of chapters


class Skipping:
    """Leaves one sample of nine out."""

    @stateless
    def encode_sample(self, sample):
        if int(sample.__key__.rpartition("/")[2]) % 9 == 4:
            raise SkipSample
        return sample


class Plain(DefaultTaskEncoder):
    @stateless
    def batch(self, samples):
        return [sample.__key__ for sample in samples]


class UserPacks(DefaultTaskEncoder):
    """Packs of one to four samples out of a buffer."""

    def select_samples_to_pack(self, samples):
        ends = np.cumsum([1 + len(sample.text) % 4 for sample in samples])
        ends = [0, *ends[ends < len(samples)].tolist(), len(samples)]
        return [samples[begin:end] for begin, end in pairwise(ends)]

    @stateless
    def pack_selected_samples(self, samples):
        return [sample.__key__ for sample in samples]

    @stateless
    def batch(self, packs):
        return packs


ENCODERS = {"planned": Packs, "user": UserPacks, "none": Plain}


def make(root):
    """Write two datasets with costs, and mixtures of them: one with fixed weights, one with a schedule."""
    for name, seed in (("a", 0), ("b", 1)):
        lengths = np.clip(np.random.default_rng(seed).lognormal(2.5, 1.1, 120), 1, 260).astype(int)
        compute_costs(write(root / name, lengths), "tokens", values=lengths)
    (root / "keys.txt").write_text("data-000000.tar/00003\n00017\n00044\n")
    weights = {
        "mix": ("2", "1"),
        "schedule": ("{0: 3, 12: 0, 30: 1}", "{0: 0, 12: 1, 30: {to: 2, ramp: linear}}"),
    }
    views = {"": "", "-exclude": ", exclude: keys.txt", "-share": ", share: 0.6"}
    for mixture, each in weights.items():
        for view, keys in views.items():
            lines = [
                "__module__: megatron.energon",
                "__class__: MetadatasetV2",
                "splits:",
                "  train:",
                "    blend:",
            ]
            lines += [f"      - {{path: {n}, weight: {w}{keys}}}" for n, w in zip("ab", each, strict=True)]
            (root / f"{mixture}{view}.yaml").write_text("\n".join(lines))
    return root


def drawn(draw):
    """Draw a combination."""
    packing = draw.choice(list(ENCODERS))
    mixtures = ["mix"] if packing == "planned" else ["mix", "schedule"]
    return {
        "path": draw.choice(mixtures) + draw.choice(["", "-exclude", "-share"]) + ".yaml",
        "packing": packing,
        "skips": draw.random() < 0.4,
        "batch_size": draw.choice([1, 2]),
        "load": draw.choice(["linear", "quadratic"]),
        "capacity": draw.choice([CAPACITY, 2 * CAPACITY]),  # of the larger one, chapters
    }


def loaders(root, chosen, world, workers):
    encoder = ENCODERS[chosen["packing"]]
    kind = type("Encoder", (Skipping, encoder), {}) if chosen["skips"] else encoder
    options = {"planned": {}, "user": {"packing_buffer_size": 8}, "none": {}}[chosen["packing"]]
    if chosen["packing"] == "planned":
        packing = PlannedPacking(
            "tokens", chosen["capacity"], window=2, load=chosen["load"], overlong="split"
        )
        options = {"packing": packing}
    return [
        get_savable_loader(
            get_train_dataset(
                root / chosen["path"],
                batch_size=chosen["batch_size"],
                shuffle_buffer_size=20,
                max_samples_per_sequence=8,
                worker_config=WorkerConfig(rank, world, workers, num_streams=STREAMS),
                task_encoder=kind(),
                read_options=ReadOptions(max_ahead=64),
                cache=False,
                **options,
            )
        )
        for rank in range(world)
    ]


def steps(each, count):
    iterators = [iter(loader) for loader in each]
    return [next(batches) for _ in range(count) for batches in iterators]


@patch.object(pack_spec, "CHAPTER", CHAPTER)
def differing(root, resumes, seed, workers=0.02):
    """Make resumes, and return the combinations, with places, of which a batch differs."""
    draw, made, found = random.Random(seed), 0, []
    while made < resumes:
        chosen = drawn(draw)
        (alone,) = loaders(root, chosen, 1, 0)
        undisturbed, expected = iter(alone), []
        states, at, way = None, 0, []
        while made < resumes and at < 3 * STEPS:
            world = draw.choice([size for size in (1, 2, 4) if at % size == 0])  # whole steps
            way.append((at, world, int(world < STREAMS and draw.random() < workers)))
            ranks = loaders(root, chosen, *way[-1][1:])
            for loader in ranks:
                loader.restore_state_global(states)
            count = draw.randrange(1, STEPS // 2 // world + 1)
            expected += islice(undisturbed, at + count * world - len(expected))
            is_same = steps(ranks, count) == expected[at : at + count * world]
            states = [loads(dumps(loader.save_state_rank())) for loader in ranks]
            for loader in ranks:
                loader.close()
            if not is_same:
                found.append((chosen, way))
                break
            made, at = made + (at > 0), at + count * world
        alone.close()
    return found


if __name__ == "__main__":
    number, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    with tempfile.TemporaryDirectory() as folder:
        different = differing(make(Path(folder)), number, seed)
    lines = [*map(repr, different), f"{number} resumes, {len(different)} different"]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.exit(bool(different))
