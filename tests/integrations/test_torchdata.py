"""torchdata nodes: a loader as the source, alone, in ``Loader`` and before ``Prefetcher``, and going on from
any state.
"""

import json
import random
import time
from itertools import islice
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

nodes = pytest.importorskip("torchdata.nodes", reason="no torchdata (the extra 'torchdata')")

from forked_ranks import Job  # noqa: E402
from framework_examples import TEN_KILLS, Example  # noqa: E402
from repetitions import is_nightly  # noqa: E402
from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: E402

from energon_stream import (  # noqa: E402
    ReadOptions,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    open_dataset,
)
from energon_stream.atomic_files import replacing  # noqa: E402
from energon_stream.errors import StateInUseError, StateMismatchError  # noqa: E402
from energon_stream.integrations.torchdata import LoaderNode, deal_sampled  # noqa: E402


def make_loader(data, workers=0, *, kind="virtual epochs", rank=0, world_size=1, length=5):
    config = WorkerConfig(rank, world_size, workers, num_streams=2)
    if kind == "validation":
        return get_savable_loader(get_val_dataset(data / "coco", batch_size=1, worker_config=config))
    dataset = get_train_dataset(
        data / "coco",
        batch_size=3,
        shuffle_buffer_size=10,
        max_samples_per_sequence=4,
        read_options=ReadOptions(max_ahead=64),  # a tiny dataset would be planned for hundreds of passes
        virtual_epoch_length=length if kind == "virtual epochs" else 0,
        worker_config=config,
    )
    return get_savable_loader(dataset)


def keys(batches):
    return [tuple(batch.__key__) for batch in batches]


@pytest.fixture(scope="module")
def expected(data):
    """Batches of three epochs of five."""
    loader = make_loader(data)
    return [keys(loader) for _ in range(3)]


GRAPHS = {
    "alone": lambda node: node,
    "prefetched": lambda node: nodes.Prefetcher(node, prefetch_factor=3),
    "prefetched, seldom saved": lambda node: nodes.Prefetcher(node, prefetch_factor=3, snapshot_frequency=2),
    "mapped in threads": lambda node: nodes.ParallelMapper(
        node, map_fn=lambda batch: batch, num_workers=2, method="thread", in_order=True
    ),
}


@pytest.fixture(params=GRAPHS)
def graph(request):
    return GRAPHS[request.param]


@pytest.mark.every(3)
@pytest.mark.parametrize("workers", [0, 2])
def test_each_loop_is_an_epoch(data, expected, graph, workers):
    loader = make_loader(data, workers)
    root = nodes.Loader(graph(LoaderNode(loader)))
    assert [keys(root) for _ in range(3)] == expected
    loader.close()


def test_a_node_without_a_loader_around_it(data, expected, graph):
    root = graph(LoaderNode(make_loader(data)))
    for epoch in expected:
        root.reset()
        assert keys(root) == epoch


@pytest.mark.every(3)
@pytest.mark.parametrize("workers", [0, 2])
def test_resuming_goes_on_with_the_next_batch_wherever_it_was_saved(data, expected, graph, workers):
    inner = make_loader(data, workers)
    root = nodes.Loader(graph(LoaderNode(inner)))
    states = [(0, 0, root.state_dict())]
    for epoch in range(2):
        for given, _ in enumerate(root, 1):
            states.append((epoch, given, root.state_dict()))
        states.append((epoch, given, root.state_dict()))
    inner.close()
    for epoch, given, state in states[:: 1 if is_nightly() else 2]:
        again = nodes.Loader(graph(LoaderNode(make_loader(data))))
        again.load_state_dict(state)
        # A state from the end of an epoch begins the next one: Loader looks one ahead.
        rest = ([expected[epoch][given:]] if given < 5 else []) + expected[epoch + 1 :]
        assert [keys(again) for _ in rest] == rest, (epoch, given)


# torchdata's mappers join their thread when they are collected, which may be in that thread.
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", ["alone", "prefetched", "mapped in threads"])
def test_states_go_on_after_resuming_at_the_end_of_an_epoch(data, expected, name):
    """torchdata's own Loader would save the state of that end from then on."""
    graph = GRAPHS[name]
    root = nodes.Loader(graph(LoaderNode(make_loader(data))))
    assert keys(root) == expected[0]
    for given in range(3):
        state, root = root.state_dict(), nodes.Loader(graph(LoaderNode(make_loader(data))))
        root.load_state_dict(state)
        assert keys(islice(root, 1)) == expected[1][given : given + 1]
    if name == "alone":  # threads may have read to the end: then the next pass begins
        assert keys(root) == expected[1]


@pytest.mark.every(3)
def test_an_epoch_that_was_left_begins_anew(data, graph):
    """Also one that was resumed in its middle: nothing that was fetched ahead is lost."""
    loader = make_loader(data, length=20)  # so long that what is fetched ahead does not reach the end
    expected = [keys(loader) for _ in range(3)]
    root = nodes.Loader(graph(LoaderNode(make_loader(data, length=20))))
    assert keys(root) == expected[0]
    assert keys(islice(root, 2)) == expected[1][:2]
    batches = iter(root)
    assert keys(islice(batches, 3)) == expected[1][:3]
    state = root.state_dict()

    again = nodes.Loader(graph(LoaderNode(make_loader(data, length=20))))
    again.load_state_dict(state)
    assert keys(islice(again, 1)) == expected[1][3:4]
    assert keys(again) == expected[1]
    assert keys(again) == expected[2]


def test_validation_is_the_same_each_time(data, graph):
    root = nodes.Loader(graph(LoaderNode(make_loader(data, kind="validation"))))
    whole = keys(root)
    assert len(whole) == 5
    assert keys(islice(root, 2)) == whole[:2]
    assert keys(root) == whole


def test_an_endless_dataset_is_not_begun_anew_silently(data):
    loader = make_loader(data, kind="endless")
    root = nodes.Loader(LoaderNode(loader))
    first = keys(islice(root, 3))
    with pytest.raises(StateInUseError, match="virtual_epoch_length"):
        iter(root)
    state = root.state_dict()
    root.load_state_dict(state)
    again = make_loader(data, kind="endless")
    assert keys(islice(again, 3)) == first
    assert keys(islice(root, 3)) == keys(islice(again, 3))


def test_each_rank_has_its_own_state(data):
    """Ranks save their own; another rank's state is refused."""
    states = []
    for rank in range(2):
        root = nodes.Loader(LoaderNode(make_loader(data, rank=rank, world_size=2)))
        next(iter(root))
        states.append(root.state_dict())
    root = nodes.Loader(LoaderNode(make_loader(data, rank=1, world_size=2)))
    root.load_state_dict(states[0])
    with pytest.raises(StateMismatchError):
        iter(root)


MISSING = """
import sys
sys.modules["torchdata"] = None
from energon_stream.errors import MissingPackageError
try:
    import energon_stream.integrations.torchdata
except MissingPackageError as error:
    print(isinstance(error, ImportError), error.hint)
"""


def test_without_torchdata_the_error_names_the_extra(run):
    assert run("-c", MISSING) == "True run `pip install 'energon-stream[torchdata]'`\n"


def test_the_example_goes_on_after_kills_with_other_ranks(run, data, tmp_path):
    example = Example(run, "torchdata_nodes.py", "--checkpoint", data / "coco", tmp_path)
    whole = example.whole()
    example.check_resuming(whole)
    example.check_kills(whole, (2, 3))  # others end on one rank by day


@pytest.mark.slow
def test_ten_kills_with_resizes(run, data, tmp_path):
    example = Example(run, "torchdata_nodes.py", "--checkpoint", data / "coco", tmp_path)
    example.check_kills(example.whole(40), TEN_KILLS)


ROWS_OF_A_STEP = 6


def fine_tune(record, steps, folder):
    """Train on rows by number with StatefulDataLoader, over the ends of epochs; save after each step."""
    dist.init_process_group("gloo")
    rank, ranks, folder = dist.get_rank(), dist.get_world_size(), Path(folder)
    rows = open_dataset(folder.parent / "data" / "coco")
    sampler = DistributedSampler(rows, ranks, rank, shuffle=True, drop_last=True)
    size, collate = ROWS_OF_A_STEP // ranks, {"collate_fn": keys_of, "drop_last": True}
    loader = StatefulDataLoader(rows, size, sampler=sampler, **collate)
    saved = sorted(folder.glob("step*/complete"))
    step = int(saved[-1].read_text()) if saved else 0
    if step % len(loader):  # else an epoch begins
        files = sorted(saved[-1].parent.glob("rank*"))
        loader.load_state_dict(deal_sampled([torch.load(path) for path in files], ranks))
    while step < steps:
        sampler.set_epoch(step // len(loader))
        for keys in loader:
            dist.all_reduce(torch.zeros(1))
            step += 1
            with open(f"{record}.{rank}", "a") as file:
                file.write(json.dumps([step, *keys]) + "\n")
            here = folder / f"step{step:04d}"
            here.mkdir(parents=True, exist_ok=True)
            torch.save(loader.state_dict(), here / f"rank{rank}")
            dist.barrier()
            if rank == 0:
                for path in here.glob("rank*"):  # of a run with more ranks that was killed in this step
                    if int(path.name[4:]) >= ranks:
                        path.unlink()
                with replacing(here / "complete") as temporary:
                    Path(temporary).write_text(str(step))
            time.sleep(0.02)
            if step == steps:
                break
    dist.destroy_process_group()


def keys_of(rows):
    return [row.__key__ for row in rows]


@pytest.mark.slow
def test_ten_kills_of_a_stateful_loader_with_resizes(data, tmp_path):
    (tmp_path / "data").symlink_to(data)
    draw = random.Random(7)
    job = Job(fine_tune, lambda record, steps, name: (record, steps, tmp_path / name), tmp_path)

    def rows(found):
        """The rows of complete steps; a killed run lacks some of the last."""
        steps = {step: sorted(key for batch in batches for key in batch) for step, batches in found.items()}
        return {step: found for step, found in steps.items() if len(found) == ROWS_OF_A_STEP}

    whole = rows(job(1, 45, name="whole"))
    assert sorted(whole) == list(range(1, 46))  # of six in an epoch
    assert len({tuple(found) for found in whole.values()}) == 45
    seen, step = {}, 0
    for kill in range(11):
        step += draw.randint(2, 4)
        found = rows(job(draw.choice([1, 2, 3, 6]), 45, kill_in=step if kill < 10 else None))
        assert found == {step: whole[step] for step in found}
        seen |= found
    assert seen == whole
