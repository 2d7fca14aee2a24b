"""Hooks see the same counters when a batch is made again as when it was made first."""

from dataclasses import replace

import pytest

from energon_stream import (
    DefaultTaskEncoder,
    IterMapDataset,
    MapDataset,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from energon_stream.testing.datasets import prepared_captioning_dataset


@pytest.fixture(scope="module")
def captions(tmp_path_factory):
    """A prepared dataset of 60 samples in 3 shards, all in ``train``."""
    folder = tmp_path_factory.mktemp("captions")
    prepared_captioning_dataset(folder, shards=3, samples_per_shard=20, split_ratio=(1, 0, 0))
    return str(folder)


class Recorder(DefaultTaskEncoder):
    """Writes down in the captions what each hook sees."""

    def note(self, hook):
        return f" {hook}:{self.current_sample_index}/{self.current_batch_index}/{self.seed()}"

    def seed(self):
        return WorkerConfig.active_worker_config.worker_seed()

    @stateless
    def encode_sample(self, sample):
        sample.image = None
        sample.caption = sample.__key__ + self.note("sample")
        return sample

    @stateless
    def batch(self, samples):
        batch = super().batch(samples)
        batch.caption.append(self.note("batch"))
        return batch

    @stateless
    def encode_batch(self, batch):
        batch.caption.append(self.note("encode"))
        return batch


class Grouped(Recorder):
    """Batches of samples whose number is odd, or even."""

    def batch_group_criterion(self, sample):
        return int(sample.__key__[-1]) % 3, None


class Packed(Recorder):
    """Packs of three samples, encoded twice."""

    encode_sample = DefaultTaskEncoder.encode_sample

    @stateless
    def preencode_sample(self, sample):
        return Recorder.encode_sample(self, sample)

    @stateless
    def postencode_sample(self, sample):
        sample.caption += self.note("post")
        return sample

    def select_samples_to_pack(self, samples):
        return [samples[place : place + 3] for place in range(0, len(samples), 3)]

    @stateless
    def pack_selected_samples(self, samples):
        samples[0].caption = [*(sample.caption for sample in samples), self.note("pack")]
        return samples[0]


class PacksOfGenerators(Packed):
    """Each group makes two packs."""

    @stateless
    def pack_selected_samples(self, samples):
        begin = self.note("begin")
        for sample in samples[:2]:
            sample.caption += begin + self.note("pack")
            yield sample


class Generators(Recorder):
    """Each sample and each batch becomes several, which other batches take."""

    @stateless
    def encode_sample(self, sample):
        begin = self.note("begin")
        for _ in range(3):
            copied = replace(sample)
            copied.image, copied.caption = None, begin + self.note("sample")
            yield copied

    @stateless
    def encode_batch(self, batch):
        begin = self.note("begin")
        captions = batch.caption
        for _ in range(2):
            batch.caption = [*captions, begin + self.note("encode")]
            yield batch


ENCODERS = [
    (Recorder, {}),
    (Recorder, {"virtual_epoch_length": 6}),
    (Grouped, {}),
    (Packed, {"packing_buffer_size": 7}),
    (PacksOfGenerators, {"packing_buffer_size": 7}),
    (Generators, {}),
]


def open_loader(path, encoder, workers, rank, **options):
    config = WorkerConfig(rank=rank, world_size=2, num_workers=workers, seed_offset=3)
    dataset = get_train_dataset(
        path,
        worker_config=config,
        batch_size=options.pop("batch_size", 2),
        shuffle_buffer_size=10,
        max_samples_per_sequence=5,
        task_encoder=encoder,
        **options,
    )
    return get_savable_loader(dataset)


def take(loader, number):
    return [batch for _, batch in zip(range(number), loader, strict=False)]


@pytest.mark.every(5)
@pytest.mark.energon("loader.restore_sample", "TaskEncoder.current_batch_index")
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("encoder", "options"), ENCODERS)
def test_hooks_see_the_original_indices(captions, encoder, options, workers, rank):
    with open_loader(captions, encoder(), workers, rank, **options) as loader:
        batches = take(loader, 9)
        assert len({str(batch.caption) for batch in batches}) > 4  # the counters go on
        for batch in batches:
            assert loader.restore_sample(batch.__restore_key__).caption == batch.caption


def test_single_samples_keep_their_indices(captions):
    with open_loader(captions, Recorder(), 2, 1, batch_size=None) as loader:
        for sample in take(loader, 9):
            assert loader.restore_sample(sample.__restore_key__).caption == sample.caption


@pytest.mark.every(3)
@pytest.mark.parametrize("encoder", [Generators, PacksOfGenerators])
@pytest.mark.parametrize("number", range(1, 8))
def test_a_resumed_generator_keeps_its_indices(captions, encoder, number):
    options = {"packing_buffer_size": 7} if encoder is PacksOfGenerators else {}
    with open_loader(captions, encoder(), 0, 0, **options) as loader:
        take(loader, number)
        state = loader.save_state_rank()
        wanted = take(loader, 6)
    with open_loader(captions, encoder(), 0, 0, **options) as resumed:
        resumed.restore_state_rank(state)
        found = take(resumed, 6)
        assert [batch.caption for batch in found] == [batch.caption for batch in wanted]
        for batch in found:
            assert resumed.restore_sample(batch.__restore_key__).caption == batch.caption


def shortened(key):
    """The key as earlier versions made it: calls have no batch index."""
    if not isinstance(key, tuple):
        return key
    key = tuple(map(shortened, key))
    if key[0] == "Map":
        return key[:3] if key[3] is None else key[:4]
    if key[0] == "Pack":
        inner = tuple((made, call) for made, call, _ in key[2])
        return (*key[:2], inner, *([] if key[3] is None else key[3:4]))
    return key


@pytest.mark.parametrize(("encoder", "options"), ENCODERS)
def test_keys_without_batch_indices_are_read(captions, encoder, options):
    with open_loader(captions, encoder(), 0, 0, **options) as loader:
        for batch in take(loader, 5):
            again = loader.restore_sample(shortened(batch.__restore_key__))
            assert again.__key__ == batch.__key__


class Indices:
    """Functions on single elements and on the stream of them, which tell the batch index."""

    def __init__(self, config):
        self.config = config

    def tell(self, sample):
        return {
            "__restore_key__": (),
            "key": sample.__key__,
            "seen": [self.config.active_worker_batch_index],
        }

    def pairs(self, stream):
        for first in stream:
            second = next(stream, None)
            yield {
                "__restore_key__": (),
                "pair": [first, second],
                "seen": self.config.active_worker_batch_index,
            }


def test_a_function_on_the_stream_keeps_its_indices(captions):
    with open_loader(captions, DefaultTaskEncoder(), 0, 0, batch_size=None) as loader:
        read = loader.dataset
    indices = Indices(read.worker_config)
    told = MapDataset(read, indices.tell, stateless_map_fn=True)
    with get_savable_loader(IterMapDataset(told, indices.pairs, stateless_iter_fn=True)) as loader:
        found = take(loader, 5)
        assert [pair["seen"] for pair in found] == [0, 1, 2, 3, 4]
        again = [loader.restore_sample(pair["__restore_key__"]) for pair in found]
        for pair in (*found, *again):
            for member in (pair, *pair["pair"]):
                del member["__restore_key__"]
        assert again == found
