"""What a dataset of prepared datasets shows of itself, without opening anything."""

from types import SimpleNamespace

import numpy as np
import pytest

from energon_stream import ReadOptions, WorkerConfig, get_savable_loader, get_train_dataset
from energon_stream.pipeline import BlendDataset, MapDataset
from energon_stream.pipeline.leaf import DatasetLeaf
from energon_stream.pipeline.reader_dataset import ReaderDataset, find_readers, is_reader_config
from energon_stream.schedule import BlendPlan, ConcatPlan, LeafPlan, LeafSchedule, OrderSpec, RepeatPlan
from energon_stream.testing.datasets import prepared_text_dataset


def reader(*urls, plan):
    leaves = [
        DatasetLeaf(SimpleNamespace(spec=SimpleNamespace(url=url), split_part="train"), None) for url in urls
    ]
    return ReaderDataset(leaves, plan, worker_config=WorkerConfig(0, 1, 0))


def leaf(number):
    return LeafPlan(number, np.array([0, 4]), OrderSpec())


def test_a_mixture_is_shown_with_weights_and_without_secrets():
    blend = BlendPlan(
        (RepeatPlan(leaf(0), None), ConcatPlan((leaf(1), RepeatPlan(leaf(0), 2)))), (0.75, 0.25)
    )
    dataset = reader("https://me:secret@host/a?X-Amz-Signature=secret", "s3://bucket/b", plan=blend)
    assert dataset.drawing().line() == (
        "ReaderDataset(0.75: https://host/a [train], 0.25: (s3://bucket/b [train], 2 x https://host/a [train]))"
    )
    assert repr(dataset).splitlines()[2:] == [
        "└─ 0.25: mixture",
        "   ├─ s3://bucket/b [train]",
        "   └─ 2 x https://host/a [train]",
    ]


def test_a_long_mixture_is_cut():
    many = reader(*(f"d{number}" for number in range(9)), plan=ConcatPlan(tuple(map(leaf, range(9)))))
    assert repr(many).endswith("d3 [train], and 5 more)")


def test_readers_are_found_with_the_paths_of_their_nodes():
    one, other = reader("a", plan=leaf(0)), reader("b", plan=leaf(0))
    dataset = MapDataset(BlendDataset((MapDataset(one, str), 1), (other, 1)), str)
    assert list(find_readers(dataset)) == [("/0", one), ("/1", other)]
    assert not is_reader_config({"type": "MapDataset", "plan": {}, "leaves": []})


@pytest.mark.every(2)
@pytest.mark.parametrize("streams", [1, 24])
def test_the_first_batch_of_a_small_dataset_waits_for_few_passes(tmp_path, monkeypatch, streams):
    """Hundreds of passes were planned: with 24 streams, half a minute of work for four dozen samples."""
    path = prepared_text_dataset(tmp_path / "texts", shards=6, samples_per_shard=8, split_ratio=(1, 0, 0))
    located = []
    take = LeafSchedule.take
    monkeypatch.setattr(LeafSchedule, "take", lambda *args: located.append(args[2]) or take(*args))

    def keys(**options):
        dataset = get_train_dataset(
            str(path),
            batch_size=1,
            shuffle_buffer_size=10,
            max_samples_per_sequence=10,
            worker_config=WorkerConfig(0, 1, 0, num_streams=streams),
            **options,
        )
        located.clear()
        with get_savable_loader(dataset) as loader:
            return [batch.__key__ for _, batch in zip(range(100), loader, strict=False)]

    found = keys()
    ahead = max(64, 4 * 48 // streams)  # and the index entries of four times as many
    assert sum(located) <= streams * 6 * ahead + 2 * 100
    assert found == keys(read_options=ReadOptions(max_ahead=16))
