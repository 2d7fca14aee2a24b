"""torchdata nodes: a loader as the source, alone, in ``Loader`` and before ``Prefetcher``, and going on from
any state.
"""

from itertools import islice

import pytest

nodes = pytest.importorskip("torchdata.nodes", reason="no torchdata (the extra 'torchdata')")

from framework_examples import TEN_KILLS, Example  # noqa: E402

from energon_stream import ReadOptions, WorkerConfig, get_savable_loader, get_train_dataset, get_val_dataset  # noqa: E402
from energon_stream.errors import StateInUseError, StateMismatchError  # noqa: E402
from energon_stream.integrations.torchdata import LoaderNode  # noqa: E402


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
    for epoch, given, state in states:
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
    example.check_kills(whole, (2, 3, 1))


@pytest.mark.slow
def test_ten_kills_with_resizes(run, data, tmp_path):
    example = Example(run, "torchdata_nodes.py", "--checkpoint", data / "coco", tmp_path)
    example.check_kills(example.whole(40), TEN_KILLS)
