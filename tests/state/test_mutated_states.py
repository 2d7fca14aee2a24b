"""Damaged states are refused by name, or go on exactly; see ``mutate_states.py`` for the full run."""

import json
import tracemalloc
import zlib

import msgpack
import pytest
import torch
from mutate_states import CASES, run
from mutations import plain
from repetitions import is_nightly
from save_states import write_datasets
from saved_pipelines import PIPELINES, open_loader, take

from energon_stream import WorkerConfig, get_savable_loader, get_train_dataset
from energon_stream.errors import StateError, StateMismatchError, StateVersionError
from energon_stream.pipeline import BatchDataset, ConcatDataset, IterMapDataset, MapDataset, PackingDataset
from energon_stream.state import dumps, loads, read_rank_state, redistribute, with_digest
from energon_stream.state.description import read_leaves
from energon_stream.testing.operator_suite import NumbersDataset, assert_exact_resume

SLOW = 60.0
"""Processor seconds after which a test says that a restore hangs, on the slowest of machines."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("datasets")
    write_datasets(folder)
    return folder


@pytest.fixture(scope="module")
def saved(folder):
    """States by pipeline, as read from msgpack, and the batches after them."""
    found = {}
    for name in ("plain", "two", "many"):
        with open_loader(PIPELINES[name], folder, 0, 1) as loader:
            take(loader, PIPELINES[name].steps)
            found[name] = plain(loader.save_state_rank()), take(loader, 4)
    return found


def go_on(name, folder, state):
    with open_loader(PIPELINES[name], folder, 0, 1) as loader:
        loader.restore_state_rank(state)
        return take(loader, 4)


def test_damaged_states_are_refused_or_go_on_exactly(folder):
    count, names = (120, None) if is_nightly() else (10, [*CASES][::4])  # of each kind of damage
    result = run(folder, structures=count, strings=count, seed=5, seconds=SLOW, names=names)
    assert result.wrong == []
    refused = sum(count for (_, _, outcome), count in result.counts.items() if outcome == "refused")
    assert refused > 1.16 * count


def test_each_changed_bit_of_a_saved_state_is_refused(folder, saved):
    """A bit of each byte of the part that says where the streams are; by day, of each fifth byte."""
    data = dumps(saved["plain"][0])
    begin = data.index(b"streams")
    with open_loader(PIPELINES["plain"], folder, 0, 1) as loader:
        for place in range(begin, len(data), 1 if is_nightly() else 5):
            damaged = bytearray(data)
            damaged[place] ^= 1 << place % 8
            with pytest.raises(StateError):
                loader.restore_state_rank(bytes(damaged))


def test_the_digest_outlives_formats_and_orders(folder, saved, tmp_path):
    state, expected = saved["many"]
    tuples = json.loads(json.dumps(state, default=lambda data: {"hex": data.hex()}), object_hook=_from_hex)
    assert go_on("many", folder, tuples) == expected
    torch.save({"state": state}, tmp_path / "state.pt")
    assert go_on("many", folder, torch.load(tmp_path / "state.pt", weights_only=True)["state"]) == expected
    assert go_on("many", folder, dumps(dict(sorted(state.items(), reverse=True)))) == expected
    assert go_on("many", folder, _reordered(state)) == expected


def _from_hex(value):
    return bytes.fromhex(value["hex"]) if "hex" in value else value


def _reordered(value):
    """Dicts in another order, and tuples for lists."""
    if isinstance(value, dict):
        return {key: _reordered(value[key]) for key in sorted(value, reverse=True)}
    return tuple(map(_reordered, value)) if isinstance(value, list) else value


def test_states_that_were_dealt_have_digests(saved):
    dealt = redistribute([saved["plain"][0]], 2)
    assert all(read_rank_state(state) == with_digest(state) == state for state in dealt)
    wrong = {**dealt[0], "rotation": dealt[1]["rotation"]}
    with pytest.raises(StateError, match="digest does not match"):
        redistribute([wrong, dealt[1]], 1)


def test_a_state_must_have_a_digest(folder, saved):
    without = {name: value for name, value in saved["plain"][0].items() if name != "digest"}
    with pytest.raises(StateError, match="it has no digest"):
        go_on("plain", folder, without)


def at(state, *path):
    for key in path:
        state = state[key]
    return state


NODE = ("streams", "0", "node")
CURSOR = (*NODE, "in", "at")


@pytest.mark.parametrize(
    ("path", "key", "change", "said"),
    [
        (CURSOR, 2, [0, 5, 9, 1], "is no place in pass 0 of dataset 0"),  # it looped for ever
        (CURSOR, 2, [0, 18, 1, 7], "is no place in pass 0 of dataset 0"),
        (CURSOR, 1, 7, "repetition|is no place"),
        ((*NODE, "in"), "epoch", 3, "pass"),
        (("streams", "0"), "node", {}, r"fields 'in', 'n', 'end' \[BatchDataset in stream 0\]"),
        (NODE, "in", None, r"'in' is None \[BatchDataset in stream 0\]"),
        (NODE, "n", -1, r"'n' is -1 \[BatchDataset in stream 0\]"),
        (NODE, "n", 2**62, "'n' is"),
        (NODE, "end", 0, "'end' is 0"),
        (("streams",), "0", None, r"no batches, where the rotation has 4 in pass 0 \[stream 0\]"),
        (("streams", "0"), "batches", 99, "99 batches, where the rotation has 4"),
        (("streams", "0"), "batches", True, "a bool batches"),
        (("streams", "0"), "counts", [9, 1], r"samples that were read, and that failed \[stream 0\]"),
        (("streams", "0"), "counts", [9, -1, 1], "samples that were read, and that failed"),
        (("streams", "0"), "counts", None, "samples that were read, and that failed"),
        ((), "rotation", [0, [], 7, 0, 0], "stream 0 comes next after 7 batches"),
        (("rotation",), 2, 2**70, "rotation of other values"),
        (("topology",), "num_streams", 10**12, "1000000000000 streams"),
        (("topology",), "rank", "0", "rank '0' of 1"),
        ((), "fingerprint", {"data": "\x1b[31m"}, "no hashes"),
    ],
)
def test_values_are_checked_where_the_digest_fits(folder, saved, path, key, change, said):
    state = plain(saved["plain"][0])
    at(state, *path)[key] = change
    with pytest.raises(StateError, match=said) as caught:
        go_on("plain", folder, with_digest(state))
    assert "damaged" in caught.value.what
    assert caught.value.hint


def test_states_without_counts_of_samples_go_on(folder, saved):
    """As the first states of this version."""
    state, batches = plain(saved["plain"][0]), saved["plain"][1]
    assert at(state, "streams", "0").pop("counts")[0] > 0
    assert str(go_on("plain", folder, with_digest(state))) == str(batches)


def test_draws_of_a_blend_must_be_its_samples(folder, saved):
    state = plain(saved["two"][0])
    cursor = at(state, *CURSOR)
    cursor[1] += 1
    with pytest.raises(StateError, match="draws of a blend, of which"):
        go_on("two", folder, with_digest(state))


def laughs(depth):
    """A list of lists that repeat each other: a pickle of it is small."""
    value = [0] * 10
    for _ in range(depth):
        value = [value] * 10
    return value


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def endless():
    value = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    "value",
    [laughs(12), nested(10**5), endless(), {1, 2}, object(), 10**5000, -(10**5000), [float("nan")], 2**64,
     torch.zeros(2), "\ud800", {("a", 1): 2}, {"a": 1, 2: 3}],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_odd_values_are_refused_in_little_memory(folder, saved, value):
    state, _ = saved["plain"]
    tracemalloc.start()
    for path, key in [((), "options"), ((), "rotation"), ((*NODE, "in"), "at"), ((), "version")]:
        damaged = plain(state)
        at(damaged, *path)[key] = value
        with pytest.raises(StateError):
            go_on("plain", folder, damaged)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50 << 20


@pytest.mark.parametrize(
    "data",
    [
        b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\x91" * 10**5,
        b"\x81\x91\x01\x02", b"\xd6\xff\xff\xff\xff\xff", b"\xc7\x0c\xff" + b"\xff" * 12, b"\xc1", b"",
        msgpack.packb(msgpack.ExtType(5, b"x")),
    ],
)  # fmt: skip
def test_bytes_that_promise_more_than_they_have_are_refused(folder, data):
    tracemalloc.start()
    with pytest.raises(StateError), open_loader(PIPELINES["plain"], folder, 0, 1) as loader:
        loader.restore_state_rank(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50 << 20


@pytest.fixture(scope="module")
def bomb():
    return zlib.compress(bytes(1 << 26))


@pytest.mark.parametrize(
    "make",
    [
        lambda bomb: [[10**12, bomb, b""]],
        lambda bomb: [[1 << 17, bomb, b""]] * 100,
        lambda bomb: [[24, bomb, b"x" * 48]],
        lambda bomb: [[10**10, 10**10, b""]],
        lambda bomb: [[3, bomb + b"x", b"x" * 6]],
        lambda bomb: [[-1, b"", b""]],
    ],
)
def test_compressed_bytes_are_measured_before_they_grow(bomb, make):
    leaves = make(bomb)
    tracemalloc.start()
    with pytest.raises(StateError, match="the datasets with which it was saved"):
        read_leaves(leaves)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50 << 20


def numbers(**options):
    return NumbersDataset(40, WorkerConfig(0, 1, 0), **options)


def thrice(number):
    for place in range(3):
        yield (number, place)


def pairs(buffer):
    return [buffer[at : at + 2] for at in range(0, len(buffer), 2)]


@pytest.mark.parametrize(
    ("make", "damage", "said"),
    [
        (lambda: MapDataset(numbers(), thrice), {"open": [["Number", 1], 1, 10**9, 1]}, "has 3 elements"),
        (lambda: MapDataset(numbers(), str), {"open": [["Number", 1], 1, 1, 1]}, "element 1 of '1'"),
        (lambda: MapDataset(numbers(), thrice), {"open": [1]}, "damaged"),
        (lambda: IterMapDataset(numbers(), iter), {"n": 10**9}, "the pass has 40 elements"),
        (
            lambda: PackingDataset(numbers(), 6, pairs, tuple),
            {"groups": [[["Number", 1]] * 7]},
            "buffer of 6",
        ),
        (
            lambda: ConcatDataset(numbers(), numbers(offset=9)),
            {"i": 1, "in": [None, 3]},
            r"\[0\] have not begun",
        ),
        (lambda: ConcatDataset(numbers(), numbers(offset=9)), {"i": 2, "in": [1, 3]}, "damaged"),
    ],
)
def test_nodes_check_their_states(make, damage, said):
    loader = get_savable_loader(make())
    first = take_numbers(loader, 2)
    state = loader.save_state_rank()
    again = get_savable_loader(make())
    again.restore_state_rank(state)
    assert take_numbers(again, 1) != first[:1]
    at(state, *NODE).update(damage)
    again = get_savable_loader(make())
    again.restore_state_rank(with_digest(state))
    with pytest.raises(StateError, match=said) as caught:
        next(iter(again))
    assert "stream 0" in str(caught.value.where)


def take_numbers(loader, count):
    batches = iter(loader)
    return [next(batches) for _ in range(count)]


def test_a_damaged_state_is_named_from_a_worker_too(folder, saved):
    state = plain(saved["plain"][0])
    at(state, *CURSOR)[2] = [0, 5, 9, 1]
    config = WorkerConfig(0, 1, 1, num_streams=2)
    with get_savable_loader(PIPELINES["plain"].build(folder, config)) as loader:
        loader.restore_state_rank(with_digest(state))
        with pytest.raises(StateError, match="is no place in pass"):
            next(iter(loader))


def test_the_states_of_all_ranks_are_a_list():
    loader = get_savable_loader(BatchDataset(numbers(), 2, list))
    for wrong in (5, "states", {"0": loader.save_state_rank()}, loader.save_state_rank()):
        with pytest.raises(StateError, match="not the states of all ranks"):
            loader.restore_state_global(wrong)
    for version in (None, [4], {}, 4.0, "4", True):
        with pytest.raises(StateVersionError, match="reads 4"):
            loader.restore_state_rank({**loader.save_state_rank(), "version": version})


def test_streams_of_a_state_dict_are_what_their_names_say():
    config = WorkerConfig(0, 1, 0, num_streams=2)
    loader = get_savable_loader(BatchDataset(NumbersDataset(40, config), 2, list))
    take_numbers(loader, 3)
    saved = loader.state_dict()
    one, other = saved["streams"].values()
    for streams in (
        {"0": other, "1": one},
        {"0": one, "1": one},
        {},
        None,
        [one, other],
        {"0": one, " 1": other},
    ):
        with pytest.raises(StateError):
            loader.load_state_dict({**saved, "streams": streams})


def test_a_large_integer_of_an_operator_keeps_its_digest():
    state = get_savable_loader(numbers()).save_state_rank()
    wide = with_digest({**state, "options": {"seed": 2**100}})
    assert read_rank_state(wide)["options"] == {"seed": 2**100}
    with pytest.raises(StateError, match="digest"):
        read_rank_state({**wide, "options": {"seed": 2**100 + 1}})


def test_a_node_whose_state_is_none_breaks_the_contract():
    class Silent(NumbersDataset):
        def make_node(self, context, state):
            node = super().make_node(context, None)
            node.state = lambda: None
            return node

    with pytest.raises(AssertionError, match="which stands for the start"):
        assert_exact_resume(lambda: Silent(9))


def test_another_batch_size_is_named_then_and_now(folder, saved):
    config = WorkerConfig(0, 1, 0, num_streams=2)
    arguments = {"batch_size": 5, "shuffle_buffer_size": 10, "max_samples_per_sequence": 4}
    loader = get_savable_loader(get_train_dataset(folder / "a", worker_config=config, **arguments))
    with pytest.raises(StateMismatchError, match="batch_size of BatchDataset was 3, is 5") as caught:
        loader.restore_state_rank(saved["plain"][0])
    assert "on_change" not in str(caught.value)  # it would be refused as well
    assert loads(dumps(saved["plain"][0]))["options"]["pipeline"]["batch_size"] == 3
