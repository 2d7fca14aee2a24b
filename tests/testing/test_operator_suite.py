"""The conformance suite finds operators that cannot be restored, or not on a dataset that grew."""

import shutil
from itertools import islice

import pytest

from energon_stream import WorkerConfig, get_savable_loader, get_train_dataset
from energon_stream.pipeline import ConcatDataset, MapDataset
from energon_stream.pipeline.dataset import Wrapper
from energon_stream.pipeline.node import WrapperNode
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import write_shards
from energon_stream.testing.operator_suite import NumbersDataset, assert_exact_resume


class _Node(WrapperNode):
    def __init__(self, dataset, context, state):
        saved = state or {"inner": None}
        self._inner = dataset.dataset.make_node(context, saved["inner"])

    def next(self):
        return self._inner.next()

    def state(self):
        return {"inner": self._inner.state()}


class OwnKey(Wrapper):
    """Saves the inner state under a key of its own, and says so nowhere."""

    kind = "OwnKey"
    node_type = _Node


class NamedKey(OwnKey):
    def inner_states(self, state):
        return [state["inner"]]

    def with_inner_states(self, state, inner):
        return {**state, "inner": inner[0]}


class Forgets(Wrapper):
    kind = "Forgets"
    node_type = _Node

    def inner_states(self, state):
        return []

    def with_inner_states(self, state, inner):
        return state


class Hides(NamedKey):
    def config(self):
        return {"type": "Hides"}


class Objects(NamedKey):
    def options(self):
        return {"fn": print}


class Passing(ConcatDataset):
    """Has several inputs, but reads the state of one."""

    def inner_states(self, state):
        return state["in"][:1]


def numbers(size=9):
    return NumbersDataset(size)


@pytest.mark.parametrize(
    ("operator", "message"),
    [
        (
            OwnKey,
            r"OwnKey does not say where the inner state is \(KeyError\('in'\)\): have the node's state\(\)",
        ),
        (Forgets, "Forgets has 1 inputs and 0 inner states: .*override Forgets.inner_states"),
        (Hides, r"Hides.config\(\) does not contain config\(\) of input 0, a NumbersDataset"),
        (Objects, r"Objects.config\(\) does not return plain values"),
        (lambda dataset: Passing(dataset, numbers(3)), "has 2 inputs and 1 inner states"),
        (lambda dataset: MapDataset(OwnKey(dataset), str), "OwnKey does not say where"),
    ],
)
def test_an_operator_that_breaks_the_contract_is_told_what_to_do(operator, message):
    with pytest.raises(AssertionError, match=message):
        assert_exact_resume(lambda: operator(numbers()))


def test_a_key_of_its_own_is_fine_where_the_operator_says_so():
    assert_exact_resume(lambda: NamedKey(numbers()))


def grow(folder, shards):
    """Write a dataset again with so many shards of 7 samples."""
    shutil.rmtree(folder, ignore_errors=True)
    write_shards(folder, shards=shards, samples_per_shard=7, parts=lambda i: {"txt": f"{i}".encode()})
    sample_type = {"__module__": "megatron.energon", "__class__": "TextSample"}
    prepare_dataset(
        str(folder),
        split_ratio=(1, 0, 0),
        dataset_yaml={"sample_type": sample_type, "field_map": {"text": "txt"}},
    )
    dataset = get_train_dataset(
        folder,
        worker_config=WorkerConfig(0, 1, 0),
        batch_size=1,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
    )
    return get_savable_loader(NamedKey(dataset))


def test_such_an_operator_continues_on_a_dataset_that_grew(tmp_path):
    with grow(tmp_path / "a", 2) as loader:
        before = [text for batch in islice(loader, 3) for text in batch.text]
        state = loader.save_state_rank()
    with grow(tmp_path / "a", 3) as loader:
        loader.restore_state_rank(state, on_change="continue")
        assert [change.shards for change in loader.restore_report.leaves] == [(2, 3)]
        after = [text for batch in islice(loader, 11 + 21) for text in batch.text]
    assert sorted(map(int, before + after[:11])) == list(range(14))
    assert sorted(map(int, after[11:])) == list(range(21))
