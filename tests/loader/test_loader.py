import gc
import os
import signal
import textwrap
from dataclasses import dataclass

import children
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from repetitions import examples

from energon_stream.errors import (
    ConfigError,
    StateError,
    StateInUseError,
    StateMismatchError,
    StateVersionError,
    WorkerError,
)
from energon_stream.loader import get_loader, get_savable_loader
from energon_stream.pipeline.batching import BatchDataset
from energon_stream.pipeline.epochs import EpochizeDataset
from energon_stream.pipeline.map import MapDataset
from energon_stream.pipeline.node import Context
from energon_stream.state import dumps, loads
from energon_stream.testing.operator_suite import NumbersDataset, assert_equal_values
from energon_stream.worker import WorkerConfig


def config(workers, rank=0, world=1, streams=0, seed=0):
    return WorkerConfig(rank, world, workers, num_streams=streams, seed_offset=seed)


def payload(x):
    """Values of all the ways between processes: small and large bytes, tensors, plain things."""
    return {
        "n": x,
        "blob": bytes([x % 256]) * (5000 * (x % 3)),
        "image": torch.full((3, 40, 40), x, dtype=torch.uint8),
        "half": torch.arange(3000, dtype=torch.bfloat16) + x,
        "strided": torch.arange(10_000).reshape(100, 100).T + x,
        "ids": torch.tensor([x, x + 1], dtype=torch.uint16),
        "eighth": torch.full((3,), x % 8).to(torch.float8_e4m3fn),
        "text": "é" * x,
    }


def dataset(workers=0, size=29, **kwargs):
    numbers = NumbersDataset(size, config(workers, **kwargs))
    return BatchDataset(MapDataset(numbers, payload, stateless_map_fn=True), 2, list, batcher_stateless=True)


def plain(size, workers, streams):
    return BatchDataset(NumbersDataset(size, config(workers, streams=streams)), 3, list)


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("workers", "start_method"), [(1, "fork"), (2, "fork"), (3, "fork"), (2, "spawn"), (3, "thread")]
)
@pytest.mark.usefixtures("forked_spawn")
def test_workers_give_what_the_streams_give_in_process(workers, start_method):
    expected = list(get_loader(dataset(streams=6)))
    is_thread = start_method == "thread"
    options = {"worker_type": "thread"} if is_thread else {"start_method": start_method}
    with get_loader(dataset(workers, streams=6), **options) as loader:
        for _ in range(1 if start_method == "spawn" else 2):  # passes follow each other
            found = list(loader)
            assert len(found) == len(expected) == len(loader)
            assert_equal_values(found, expected)


def take(loader, count):
    """Elements, over the ends of passes."""
    found = []
    while len(found) < count:
        for value in loader:
            found.append(value)
            if len(found) == count:
                break
    return found


@examples(12)
@given(
    st.sampled_from([0, 1, 2, 3]),
    st.integers(1, 40),
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["fork", "thread"])), min_size=1, max_size=4),
)
def test_any_chain_of_restores_gives_the_uninterrupted_sequence(workers, size, parts):
    cuts = [cut for cut, _ in parts]
    streams = 6
    reference = take(get_savable_loader(plain(size, 0, streams)), sum(cuts) + 8)
    state, at = None, 0
    for number, (cut, kind) in enumerate([*parts, (8, "fork")]):
        # Another number of workers each time: streams own the state, not workers.
        with get_savable_loader(plain(size, (workers + number) % 4, streams), worker_type=kind) as loader:
            loader.restore_state_rank(state)
            assert take(loader, cut) == reference[at : at + cut]
            at += cut
            state = loads(dumps(loader.save_state_rank()))


def test_a_state_goes_through_torch_load_with_its_defaults(tmp_path):
    with get_savable_loader(dataset(2)) as loader:
        take(loader, 5)
        torch.save(loader.save_state_rank(), tmp_path / "state.pth")
        rest = list(loader)
    with get_savable_loader(dataset(2)) as loader:
        loader.restore_state_rank(torch.load(tmp_path / "state.pth"))
        assert_equal_values(list(loader), rest)


def test_saving_asks_no_worker(tmp_path):
    """The state is at hand in the main process even when the workers are dead."""
    loader = get_savable_loader(dataset(2))
    take(loader, 3)
    before = loader.save_state_rank()
    for pid in loader.worker_pids:
        os.kill(pid, signal.SIGKILL)
    assert loader.save_state_rank() == before
    with pytest.raises(WorkerError, match="exit code -9"):
        take(loader, 100)
    # The loader goes on with new workers after the last batch given out.
    reference = take(get_savable_loader(dataset(2)), 20)
    given = sum(state["batches"] for state in loader.save_state_rank()["streams"].values())
    assert_equal_values(take(loader, 4), reference[given : given + 4])
    loader.close()


def test_a_failing_worker_ends_the_loop_with_its_error_and_traceback():
    def fails(x):
        if x == 7:
            raise MemoryError("boom in the worker")
        return x

    loader = get_loader(MapDataset(NumbersDataset(20, config(2)), fails))
    with pytest.raises(MemoryError, match="boom in the worker") as caught:
        list(loader)
    assert "in fails" in str(caught.value.__cause__)


def test_an_error_that_cannot_be_pickled_still_arrives():
    class Odd(Exception):
        def __init__(self, a, b):
            super().__init__(a)

    def fails(x):
        raise ConfigError(f"odd {x}") from Odd(1, 2)

    with pytest.raises(ConfigError, match="odd 0"):
        list(get_loader(MapDataset(NumbersDataset(4, config(1)), fails)))


def test_the_watchdog_speaks_up_and_ends_the_run_on_request():
    def hangs(x):
        signal.pause()

    loader = get_loader(
        MapDataset(NumbersDataset(4, config(1)), hangs), watchdog_timeout_seconds=0.2, fail_on_timeout=True
    )
    with pytest.raises(WorkerError, match="returned no batch"):
        list(loader)


def test_restoring_while_iterating_or_with_a_wrong_state_is_named():
    loader = get_savable_loader(dataset())
    take(loader, 1)
    state = loader.save_state_rank()
    with pytest.raises(StateInUseError):
        loader.restore_state_rank(state)
    fresh = get_savable_loader(dataset())
    for wrong, error in [
        ("nonsense", StateError),
        (b"\xc1", StateError),
        ({**state, "version": 99}, StateVersionError),
        ({**state, "topology": {**state["topology"], "world_size": 2}}, StateError),
        (get_savable_loader(dataset(size=30)).save_state_rank(), StateMismatchError),
        (get_savable_loader(dataset(seed=1)).save_state_rank(), StateMismatchError),
    ]:
        with pytest.raises(error):
            fresh.restore_state_rank(wrong)
    fresh.restore_state_rank(state)
    with pytest.raises(StateError, match="not of a built-in type"):
        dumps({"x": object()})


@pytest.mark.parametrize(("workers", "kind"), [(0, "fork"), (2, "fork"), (2, "thread")])
def test_a_closed_loader_says_so_and_goes_on_when_it_is_iterated_again(workers, kind):
    expected = list(get_loader(dataset(streams=6)))
    loader = get_loader(dataset(workers, streams=6), worker_type=kind)
    batches = iter(loader)
    found = [next(batches), next(batches)]
    loader.close()
    with pytest.raises(WorkerError, match=r"the loader was closed. Iterate the loader again"):
        next(batches)
    assert_equal_values(found + list(loader), expected)
    loader.close()


def test_restore_sample_makes_a_batch_again_in_another_loader():
    with get_loader(dataset(2)) as loader:
        batches = take(loader, 6)
    assert loader.can_restore_sample()
    # Lists of dicts have no place for a key: take it from the node of the second stream.
    other = dataset(2)
    with other.worker_config.activate(1, batch_index=0):
        node = other.make_node(Context(other.worker_config, 1), None)
        item = node.next()
        node.close()
    again = get_loader(dataset(2)).restore_sample(loads(dumps(("Stream", 1, item.key))))
    assert_equal_values(again, batches[1])
    with pytest.raises(ConfigError, match="not a restore key"):
        loader.restore_sample(())


def test_loaders_are_true_and_have_a_length_and_epochs_continue():
    endless = EpochizeDataset(NumbersDataset(1000, config(2)), 4)
    with get_loader(endless) as loader:
        assert loader
        assert len(loader) == 4
        assert [list(loader) for _ in range(3)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


class Pinnable(torch.Tensor):
    """Adding one stands for pinning, which needs a device."""

    def pin_memory(self, *args):
        return self.as_subclass(torch.Tensor) + 1


def ones():
    return torch.ones(1).as_subclass(Pinnable)


@dataclass
class Plain:
    values: torch.Tensor
    inner: dict


class Own:
    """A batch that knows how it is pinned."""

    def pin_memory(self):
        return "pinned in its own way"


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (ones, torch.ones(1) + 1),
        (lambda: {"a": [ones()]}, {"a": [torch.ones(1) + 1]}),
        (lambda: Plain(ones(), {"b": ones()}), Plain(torch.ones(1) + 1, {"b": torch.ones(1) + 1})),
        (Own, "pinned in its own way"),
    ],
)
def test_batches_of_all_kinds_are_pinned(made, expected):
    made_by = MapDataset(plain(3, 0, 1), map_fn=lambda x: made())
    assert_equal_values(next(iter(get_loader(made_by, pin_memory=True))), expected)


def test_deprecated_and_impossible_options():
    with pytest.warns(FutureWarning):
        get_loader(dataset(), worker_config=config(0))
    for kwargs in [
        {"worker_config": config(1)},
        {"prefetch_factor": 0},
        {"start_method": "none"},
        {"watchdog_timeout_seconds": 0},
    ]:
        with pytest.raises(ConfigError):
            get_loader(dataset(), **kwargs)


def test_nothing_is_left_behind_when_the_main_process_is_killed():
    script = textwrap.dedent(
        """
        import os, signal
        from energon_stream.loader import get_loader
        from energon_stream.testing.operator_suite import NumbersDataset
        from energon_stream.worker import WorkerConfig
        loader = get_loader(NumbersDataset(10**9, WorkerConfig(0, 1, 2)))
        next(iter(loader))
        assert len(loader.worker_pids) == 2
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    # The workers hold the writing end of the pipe as well: the read ends when the last of them is gone.
    reading, writing = os.pipe()
    with os.fdopen(reading) as output:
        process = children.start("-c", script, stdout=writing)
        os.close(writing)
        assert output.read() == ""
        assert process.wait() == -signal.SIGKILL


def test_closing_a_loader_ends_its_workers():
    loader = get_loader(dataset(3))
    take(loader, 1)
    pids = loader.worker_pids
    assert len(pids) == 3
    del loader
    gc.collect()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize("options", [{}, {"batch_size": None}, {"shuffle": True}, {"num_workers": 1}])
def test_a_torch_data_loader_is_pointed_to_get_loader(options):
    """It would give each of its workers the same batches, so it is refused and not made to work."""
    loader = torch.utils.data.DataLoader(dataset(), **options)
    with pytest.raises(
        ConfigError, match=r"BatchDataset is a stream .* cannot be indexed.*Use get_loader\(dataset"
    ):
        next(iter(loader))
