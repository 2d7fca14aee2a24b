"""What a dataset of prepared datasets shows of itself, without opening anything."""

from types import SimpleNamespace

import numpy as np

from energon_stream.pipeline import BlendDataset, MapDataset
from energon_stream.pipeline.leaf import DatasetLeaf
from energon_stream.pipeline.reader_dataset import ReaderDataset, find_readers, is_reader_config
from energon_stream.schedule import BlendPlan, ConcatPlan, LeafPlan, OrderSpec, RepeatPlan
from energon_stream.worker import WorkerConfig


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
    shown = repr(reader("https://me:secret@host/a?X-Amz-Signature=secret", "s3://bucket/b", plan=blend))
    assert shown == (
        "ReaderDataset(0.75: https://host/a [train], 0.25: (s3://bucket/b [train], 2 x https://host/a [train]))"
    )


def test_a_long_mixture_is_cut():
    many = reader(*(f"d{number}" for number in range(9)), plan=ConcatPlan(tuple(map(leaf, range(9)))))
    assert repr(many).endswith("d3 [train], and 5 more)")


def test_readers_are_found_with_the_paths_of_their_nodes():
    one, other = reader("a", plan=leaf(0)), reader("b", plan=leaf(0))
    dataset = MapDataset(BlendDataset((MapDataset(one, str), 1), (other, 1)), str)
    assert list(find_readers(dataset)) == [("/0", one), ("/1", other)]
    assert not is_reader_config({"type": "MapDataset", "plan": {}, "leaves": []})
