"""Packs that carry samples and parts of samples over, from datasets in files: against an unpacked run, and
through restores on other topologies.
"""

import itertools
import random

import pytest
import topologies
from packed import write

from energon_stream import (
    AugmentTaskEncoder,
    BlendDataset,
    DefaultTaskEncoder,
    LengthPacker,
    PackedSamplesOutput,
    PackingGroupConfig,
    PartialSample,
    ReadOptions,
    SkipSample,
    WorkerConfig,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
)
from energon_stream.errors import ConfigError, StateMismatchError

STREAMS, CAPACITY, BUFFER = 6, 100, 6
WORLDS, WORKERS = (1, 2, 3, 6), (0, 0, 0, 0, 0, 0, 1, 3)


class Encoder(DefaultTaskEncoder):
    """Texts of which some are bad; packs are the keys and places of their members."""

    @stateless
    def preencode_sample(self, sample):
        number = int(sample.__key__.rpartition("/")[2])
        if number % 11 == 3:
            raise SkipSample
        if number % 13 == 5:
            raise ValueError("a bad sample")
        return sample

    @stateless(restore_seeds=True)
    def postencode_sample(self, sample):
        return sample, random.random()

    def select_samples_to_pack(self, samples):
        """Longest first, with the shortest ones; samples above the capacity are cut."""
        samples = sorted(samples, key=lambda sample: bounds(sample)[1] - bounds(sample)[0])
        pack, room, last = [], CAPACITY, samples[-1]
        begin, stop = bounds(last)
        if stop - begin > CAPACITY:
            whole = getattr(last, "sample", last)
            middle = begin + CAPACITY
            pack = [PartialSample(whole, slice(begin, middle))]
            return PackedSamplesOutput([pack], [*samples[:-1], PartialSample(whole, slice(middle, stop))])
        while samples:
            begin, stop = bounds(samples[0 if pack else -1])
            if stop - begin > room:
                break
            pack.append(samples.pop(0 if pack else -1))
            room -= stop - begin
        return PackedSamplesOutput([pack], samples)

    def select_next_pack(self, samples):
        """Packs of exactly the capacity."""
        pack, room = [], CAPACITY
        for sample in samples:
            begin, stop = bounds(sample)
            if stop - begin <= room:
                pack.append(sample)
                room -= stop - begin
                continue
            whole, middle = getattr(sample, "sample", sample), begin + room
            head = [PartialSample(whole, slice(begin, middle))] if room else []
            return PackedSamplesOutput([[*pack, *head]], [PartialSample(whole, slice(middle, stop))])
        return [pack]

    @stateless
    def pack_selected_samples(self, samples):
        found = [(sample.__key__, *bounds(sample), drawn) for sample, drawn in samples]
        return "+".join(f"{key}[{begin}:{stop}]{drawn:.6f}" for key, begin, stop, drawn in found)

    @stateless
    def batch(self, packs):
        return {"packs": packs, "__restore_key__": None}


def bounds(sample):
    if isinstance(sample, PartialSample):
        assert sample.__sources__ == sample.sample.__sources__
        return sample.slice.start, sample.slice.stop
    return 0, len(sample.text)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    folder = tmp_path_factory.mktemp("carried")
    draw = random.Random(3)
    for first, name in enumerate(("a", "b")):
        lengths = [min(int(draw.lognormvariate(3, 1)) + 1, 260) for _ in range(90)]
        write(folder / name, lengths, shard=20, first=1000 * first)
    path = folder / "mix.yaml"
    path.write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    blend:\n"
        "    - {path: a, weight: 2}\n    - {path: b, weight: 1, share: 0.7}\n"
    )
    return path


class Ready(Encoder):
    """The same packs' members, selected by length."""

    packer = LengthPacker(lambda sample: len(sample.text), CAPACITY, overlong="split")
    select_samples_to_pack = DefaultTaskEncoder.select_samples_to_pack


class ReadyGreedy(Ready):
    packer = LengthPacker(lambda sample: len(sample.text), CAPACITY, "greedy", overlong="split")
    select_next_pack = DefaultTaskEncoder.select_next_pack


class Groups(Encoder):
    """The datasets of the mixture in packs of their own: one from a buffer, one from a stream."""

    def build_packing_groups(self, datasets, packing_buffer_size, shuffle_buffer_size):
        assert shuffle_buffer_size == 20
        first, second = datasets
        return [
            PackingGroupConfig([first], packing_buffer_size, shuffle_buffer_size),
            PackingGroupConfig([second], "stream", shuffle_buffer_size=8),
        ]


def opened(path, size, rank=0, world=1, workers=0, batch=2, encoder=Encoder):
    return get_train_dataset(
        path,
        batch_size=batch,
        packing_buffer_size=size,
        shuffle_buffer_size=20,
        max_samples_per_sequence=5,
        worker_config=WorkerConfig(rank, world, workers, num_streams=STREAMS),
        task_encoder=encoder(),
        read_options=ReadOptions(max_ahead=16),
    )


def pack_of(members):
    return [(sample.__key__, *bounds(sample)) for sample in members]


def read(pack):
    """The members of a pack, without what was drawn."""
    found = (member.rpartition("]")[0].replace("[", ":").split(":") for member in pack.split("+"))
    return [(key, int(begin), int(stop)) for key, begin, stop in found]


@pytest.mark.every(2)
@pytest.mark.parametrize("size", [BUFFER, "stream"])
def test_each_stream_packs_the_samples_of_an_unpacked_run(mixture, size):
    """The oracle: the selector in a plain loop over each stream of an unpacked run."""
    plain = opened(mixture, None, batch=None)
    assert plain.worker_config.num_streams == STREAMS
    samples = [[] for _ in range(STREAMS)]
    unpacked = get_loader(opened_without_packs(mixture))
    for place, sample in zip(range(60 * STREAMS), unpacked, strict=False):
        samples[place % STREAMS].append(sample)
    found = [[] for _ in range(STREAMS)]
    for place, pack in zip(range(10 * STREAMS), opened(mixture, size, batch=None), strict=False):
        found[place % STREAMS].append(read(pack))
    for stream in range(STREAMS):
        waiting, coming, expected = [], iter(samples[stream]), []
        while len(expected) < 10:
            if size == "stream":
                source = itertools.chain(waiting, coming)
                made = Encoder().select_next_pack(source)
                waiting = []
            else:
                made = Encoder().select_samples_to_pack(
                    [*waiting, *itertools.islice(coming, BUFFER - len(waiting))]
                )
            expected += map(pack_of, made.packs)
            waiting = list(made.pushback)
        assert found[stream] == expected
    parts = [member for packs in found for pack in packs for member in pack if member[1]]
    assert len(parts) > 5  # samples were cut


def opened_without_packs(path):
    class Plain(Encoder):
        encode_sample = Encoder.preencode_sample
        preencode_sample = DefaultTaskEncoder.preencode_sample
        postencode_sample = DefaultTaskEncoder.postencode_sample

    return get_train_dataset(
        path,
        batch_size=None,
        shuffle_buffer_size=20,
        max_samples_per_sequence=5,
        worker_config=WorkerConfig(0, 1, 0, num_streams=STREAMS),
        task_encoder=Plain(),
    )


def go_on(path, size, encoder, states, world, workers, begin, count):
    def open_rank(rank):
        return get_savable_loader(opened(path, size, rank, world, workers, encoder=encoder))

    return topologies.go_on(open_rank, world, states, begin, count)


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("encoder", "size"),
    [(Encoder, BUFFER), (Encoder, "stream"), (Ready, 16), (ReadyGreedy, "stream"), (Groups, BUFFER)],
)
@pytest.mark.parametrize("points", [4, pytest.param(300, marks=pytest.mark.slow)])
def test_any_topology_goes_on_where_another_stood(mixture, encoder, size, points):
    """Random cuts, each on other numbers of ranks and workers, in the middle of cut samples as well."""
    draw = random.Random(points)
    counts = [draw.randrange(1, 14) for _ in range(points)]
    expected = go_on(mixture, size, encoder, None, 1, 0, 0, sum(counts))[0]
    found, states, waiting = [], None, 0
    for count in counts:
        world, workers = draw.choice(WORLDS), draw.choice(WORKERS)
        batches, states = go_on(mixture, size, encoder, states, world, workers, len(found), count)
        draw.shuffle(states)
        found += batches
        assert found[-count:] == expected[len(found) - count : len(found)], (world, workers, len(found))
        waiting += repr(states).count("PartialSample")
        assert "xxx" not in repr(states)  # references, and no payloads
    assert waiting > points / 4  # cut samples waited


class Short(DefaultTaskEncoder):
    """No hook before the packs, so the passes of a sample have one restore key."""

    packer = LengthPacker(lambda sample: len(sample.text), 20, overlong="split")
    batch = Encoder.batch

    @stateless
    def pack_selected_samples(self, samples):
        return pack_of(samples)


def test_a_sample_that_waits_twice_in_parts_is_restored_twice(mixture, tmp_path):
    """A blend has two samples of each dataset a stream: buffers have several passes of them."""
    for name in "ab":
        write(tmp_path / name, [31 + 3 * number for number in range(12)], shard=4)
    path = tmp_path / "mix.yaml"
    path.write_text(mixture.read_text().replace(", share: 0.7", ""))
    expected = go_on(path, 16, Short, None, 1, 0, 0, 120)[0]
    found, states = [], None
    for _ in range(4):
        batches, states = go_on(path, 16, Short, states, 1, 0, len(found), 30)
        found += batches
    assert found == expected


@pytest.mark.parametrize("size", [BUFFER, "stream"])
def test_restore_keys_make_packs_with_parts_again(mixture, size):
    with get_savable_loader(opened(mixture, size, workers=2)) as loader:
        for batch in itertools.islice(loader, 30):
            assert loader.restore_sample(batch["__restore_key__"]) == batch


@pytest.mark.parametrize("size", [BUFFER, "stream"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_pass_has_each_sample_once(mixture, size, workers):
    def once():
        return get_val_dataset(
            mixture.parent / "a",
            split_part="train",
            batch_size=3,
            packing_buffer_size=size,
            worker_config=WorkerConfig(0, 1, workers, num_streams=2),
            task_encoder=Encoder(),
        )

    with get_loader(once()) as loader:
        first, second = [[pack for batch in loader for pack in batch["packs"]] for _ in range(2)]
    assert [read(pack) for pack in first] == [read(pack) for pack in second]
    lengths = {}
    for key, begin, stop in itertools.chain.from_iterable(map(read, first)):
        lengths.setdefault(key, []).append((begin, stop))
    numbers = {int(key.rpartition("/")[2]) for key in lengths}
    assert numbers == {number for number in range(90) if number % 11 != 3 and number % 13 != 5}
    texts = {
        s.__key__: s.text
        for s in get_val_dataset(
            mixture.parent / "a", split_part="train", batch_size=None, worker_config=WorkerConfig(0, 1, 0)
        )
    }
    for key, parts in lengths.items():
        ends = [0, *itertools.chain.from_iterable(sorted(parts)), len(texts[key])]
        assert ends[::2] == ends[1::2]


@pytest.mark.parametrize(("size", "missing"), [(4, "select_samples_to_pack"), ("stream", "select_next_pack")])
def test_an_encoder_without_the_selector_is_refused_at_opening(mixture, size, missing):
    class Half(DefaultTaskEncoder):
        def pack_selected_samples(self, samples):
            return samples

    with pytest.raises(ConfigError, match=f"does not say how to pack.*Override {missing}"):
        get_train_dataset(mixture, batch_size=1, packing_buffer_size=size, task_encoder=Half())
    with pytest.raises(ConfigError, match="packing_buffer_size is 'streams'"):
        get_train_dataset(mixture, batch_size=1, packing_buffer_size="streams", task_encoder=Half())


class Unpacked(DefaultTaskEncoder):
    """Both datasets, in the places that the groups have in their blend, without packs."""

    def build_train_datasets(self, *, datasets, **options):
        return BlendDataset(*reversed(datasets))


def test_groups_have_packs_of_their_own_blended_by_their_weights(mixture):
    """The oracle: each dataset read on its own, its selector in a plain loop, and the weights 2 and 1."""

    class Apart(Groups):
        preencode_sample = DefaultTaskEncoder.preencode_sample

        def build_packing_groups(self, datasets, packing_buffer_size, shuffle_buffer_size):
            return [
                PackingGroupConfig([datasets[1]], "stream"),
                PackingGroupConfig([datasets[0]], packing_buffer_size),
            ]

    options = {
        "shuffle_buffer_size": 20,
        "max_samples_per_sequence": 5,
        "worker_config": WorkerConfig(0, 1, 0),
    }
    dataset = get_train_dataset(
        mixture, batch_size=None, packing_buffer_size=BUFFER, task_encoder=Apart(), **options
    )
    packs = [read(pack) for pack in itertools.islice(dataset, 240)]
    by_leaf = {
        leaf: [p for p in packs if {int(key[-5:]) // 1000 for key, *_ in p} == {leaf}] for leaf in (0, 1)
    }
    assert sum(map(len, by_leaf.values())) == 240  # no pack is mixed
    assert abs(len(by_leaf[0]) - 160) < 5 * (240 * 2 / 9) ** 0.5
    unpacked = get_train_dataset(mixture, batch_size=None, task_encoder=Unpacked(), **options)
    samples = list(itertools.islice(unpacked, 1000))
    a, b = (iter([s for s in samples if int(s.__key__[-5:]) // 1000 == leaf]) for leaf in (0, 1))
    waiting, expected = [], []
    while len(expected) < 120:
        made = Encoder().select_samples_to_pack([*waiting, *itertools.islice(a, BUFFER - len(waiting))])
        expected += map(pack_of, made.packs)
        waiting = list(made.pushback)
    assert by_leaf[0][:120] == expected
    waiting, expected = [], []
    while len(expected) < 40:
        made = Encoder().select_next_pack(itertools.chain(waiting, b))
        expected += map(pack_of, made.packs)
        waiting = list(made.pushback)
    assert by_leaf[1][:40] == expected


@pytest.mark.parametrize(
    "groups",
    [
        lambda datasets: [],
        lambda datasets: [PackingGroupConfig(datasets, 4), PackingGroupConfig([], 4)],
        lambda datasets: [PackingGroupConfig(datasets[:1], 4)],
        lambda datasets: [PackingGroupConfig(datasets, 4), PackingGroupConfig(datasets[:1], 4)],
        lambda datasets: [PackingGroupConfig([*datasets, object()], 4)],
    ],
)
def test_each_dataset_is_in_one_group(mixture, groups):
    class Wrong(Encoder):
        def build_packing_groups(self, datasets, packing_buffer_size, shuffle_buffer_size):
            return groups(datasets)

    with pytest.raises(ValueError, match="exactly one group"):
        opened(mixture, 4, encoder=Wrong)


def test_groups_of_a_validation_set_flush_all_samples(mixture):
    path = mixture.with_name("val.yaml")
    path.write_text(
        mixture.read_text()
        .replace("train:", "val:")
        .replace("path: a", "path: a, split_part: train")
        .replace("path: b", "path: b, split_part: train")
    )
    dataset = get_val_dataset(
        path,
        batch_size=None,
        packing_buffer_size=BUFFER,
        worker_config=WorkerConfig(0, 1, 0),
        task_encoder=ValGroups(),
    )
    keys = {key for pack in dataset for key, *_ in read(pack)}
    plain = get_val_dataset(path, batch_size=None, worker_config=WorkerConfig(0, 1, 0))
    assert keys == {sample.__key__ for sample in plain}


class ValGroups(Encoder):
    preencode_sample = DefaultTaskEncoder.preencode_sample

    def build_packing_groups(self, datasets, packing_buffer_size, shuffle_buffer_size):
        return [PackingGroupConfig([each], packing_buffer_size) for each in datasets]


def test_a_state_of_another_capacity_is_refused(mixture):
    class Other(Ready):
        packer = LengthPacker(lambda sample: len(sample.text), CAPACITY + 1, overlong="split")

    with get_savable_loader(opened(mixture, 16, encoder=Ready)) as loader:
        next(iter(loader))
        state = loader.save_state_rank()
    with get_savable_loader(opened(mixture, 16, encoder=Other)) as loader, pytest.raises(StateMismatchError):
        loader.restore_state_rank(state)


def test_an_augmented_encoder_packs_by_the_inner_ones_packer(mixture):
    class Louder(AugmentTaskEncoder):
        pass

    expected = list(itertools.islice(opened(mixture, 16, encoder=Ready), 9))
    assert list(itertools.islice(opened(mixture, 16, encoder=lambda: Louder(Ready())), 9)) == expected
