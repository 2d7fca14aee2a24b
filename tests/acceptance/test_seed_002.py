"""Seed 002, blending: items 23 to 30 of the acceptance list."""

from collections import Counter
from itertools import islice

import blending
import pytest
from acceptance_helpers import assert_share, source
from captioning_tasks import (
    CaptioningBatch,
    CaptioningRawBatch,
    CaptioningTask,
    ImageBatch,
    WeightedCaptioningBatch,
)
from repetitions import is_nightly

from energon_stream import BlendDataset, MixBatchDataset, WorkerConfig, get_loader, homogeneous_concat_mix


@pytest.fixture
def pair(data):
    return str(data / "coco"), str(data / "coyo")


@pytest.fixture
def without_workers(monkeypatch):
    """Let the default configuration have no workers, to save time."""
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    monkeypatch.setattr(WorkerConfig, "default_worker_config", classmethod(lambda cls: config))


@pytest.mark.usefixtures("without_workers")
def test_item_23_batches_of_either_dataset_60_to_40(pair):
    with blending.blended(*pair) as loader:
        batches = list(islice(loader, 80))
    kinds = Counter(type(batch) for batch in batches)
    assert set(kinds) == {ImageBatch, CaptioningBatch}
    assert_share(kinds[ImageBatch], 0.6, 80)
    for batch in batches:
        keys = batch.__key__ if isinstance(batch, ImageBatch) else batch.__keys__
        expected = "coco" if isinstance(batch, ImageBatch) else "coyo"
        assert {source(key) for key in keys} == {expected}
        assert len(keys) == 32


@pytest.mark.usefixtures("without_workers")
def test_item_24_weights_need_not_sum_to_one(pair):
    first, second = (blending.train(path, 4, CaptioningTask()) for path in pair)
    loader = get_loader(BlendDataset((first, 30), (second, 10)))
    assert_share(sum(source(batch.__keys__[0]) == "coco" for batch in islice(loader, 400)), 0.75, 400)


def test_item_25_concatenated_validation(pair):
    with blending.concatenated(*pair) as loader:
        batches = list(loader)
        assert [len(batch.image) for batch in loader] == [len(batch.image) for batch in batches]
    kinds = [type(batch) for batch in batches]
    assert kinds == sorted(kinds, key=[ImageBatch, CaptioningBatch].index)
    for kind, name in ((ImageBatch, "__key__"), (CaptioningBatch, "__keys__")):
        keys = [key for batch in batches if type(batch) is kind for key in getattr(batch, name)]
        assert len(keys) == len(set(keys)) == 10  # the one shard of the val split, once


@pytest.mark.usefixtures("without_workers")
def test_item_26_mixed_within_batches(pair):
    batches = list(islice(blending.mixed(*pair), 30))
    assert {(type(batch), tuple(batch.image.shape)) for batch in batches} == {
        (CaptioningBatch, (32, 3, 12, 16))
    }
    shares = [sum(source(key) == "coco" for key in batch.__keys__) for batch in batches]
    assert all(0 < share < 32 for share in shares)
    assert_share(sum(shares), 0.6, 32 * 30)


@pytest.mark.usefixtures("without_workers")
def test_item_27_mixed_types(pair, data):
    batch = next(iter(blending.mixed_types(*pair)))
    assert batch.images.shape == (32, 3, 12, 16)
    assert len(batch.captions) == 32
    assert 0 < batch.captions.count(None) < 32
    padded = next(iter(blending.mixed_types(pair[0], str(data / "unequal"))))
    assert padded.images.shape == (32, 3, 12, 16)


@pytest.mark.usefixtures("without_workers")
def test_item_28_epochised_and_mapped_mixtures(pair):
    epochs = 10 if is_nightly() else 4
    loader = blending.mixed(*pair, num_epochs=epochs, map_fn=lambda batch: batch.__keys__)
    one_pass = 2 * 80 // 32  # samples of both train splits, in batches
    passes = [list(loader), list(loader)]
    assert [len(each) for each in passes] == [epochs * one_pass] * 2 == [len(loader)] * 2
    assert passes[0] != passes[1]
    assert type(passes[0][0][0]) is str


@pytest.mark.usefixtures("without_workers")
def test_item_29_a_raw_batch_with_few_fields(pair):
    seen = []

    class Task(CaptioningTask):
        def encode_batch(self, batch):
            seen.append(batch)
            return super().encode_batch(batch)

    batch = next(iter(get_loader(blending.train(pair[0], 32, Task()))))
    assert type(batch) is CaptioningBatch
    assert type(seen[0]) is CaptioningRawBatch
    assert len(seen[0].caption) == len(batch.__keys__) == 32


@pytest.mark.usefixtures("without_workers")
def test_item_30_sample_weights(pair):
    batches = list(islice(blending.weighted(*pair), 80))
    assert {type(batch) for batch in batches} == {WeightedCaptioningBatch}
    assert all(batch.weight == {"coco": 0.2, "coyo": 0.8}[source(batch.__keys__[0])] for batch in batches)
    assert_share(sum(batch.weight == 0.2 for batch in batches), 0.5, 80)
    assert batches[0].text.shape == (32, 16)


@pytest.mark.usefixtures("without_workers")
def test_mixing_different_types_without_a_function_for_it_is_refused(pair):
    mixture = MixBatchDataset(
        (blending.train(pair[0], 1, CaptioningTask()), 6),
        (blending.train(pair[1], 1, blending.ImageTask()), 4),
        batch_size=32,
        batch_mix_fn=homogeneous_concat_mix,
    )
    with pytest.raises(ValueError, match="batches of different types cannot be mixed"):
        next(iter(get_loader(mixture)))


def test_the_example_runs(pair, capsys):
    blending.main(*pair, batches=5)
    assert "without captions" in capsys.readouterr().out
