"""What differs from a state's plan is refused when it is restored, what fits no pack when it is opened."""

import re
from dataclasses import dataclass

import numpy as np
import pytest
from packed import SAMPLES, STREAMS, opened, taken, tokens, write

from energon_stream import compute_costs, get_savable_loader, read_costs
from energon_stream.errors import ConfigError, StateMismatchError
from energon_stream.state.digest import with_digest

OVERLONG = 117  # the sample that is longer than the packs of a window
LONGEST = 5000


def quadratic():
    def load(lengths):
        return float((lengths.astype(float) ** 2).sum())

    return load


def longest():
    def load(lengths):
        return lengths.max()

    return load


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("changes")
    lengths = np.clip(np.random.default_rng(0).lognormal(2.5, 1.1, SAMPLES), 1, 260).astype(int)
    compute_costs(write(root / "texts", lengths), "tokens", tokens)
    lengths[OVERLONG] = LONGEST
    compute_costs(write(root / "overlong", lengths), "tokens", tokens)
    return root


def state_after(path, steps, **options):
    loader = get_savable_loader(opened(path, **options))
    batches = iter(loader)
    for _ in range(steps):
        next(batches)
    state = loader.save_state_rank()
    loader.close()
    return state


def goes_on(state, path, **options):
    """Batches after a restore."""
    loader = get_savable_loader(opened(path, **options))
    loader.restore_state_rank(state)
    batches = iter(loader)
    found = [next(batches)[0] for _ in range(20)]
    loader.close()
    return found


@dataclass
class Squares:
    """An instance that cannot be hashed, as those of any dataclass."""

    factor: float

    def __call__(self, lengths):
        return self.factor * quadratic()(lengths)


def test_a_load_may_be_an_object_without_a_hash(root):
    path = str(root / "texts")
    assert taken(opened(path, load=Squares(2.0)), 20) == taken(opened(path, load=quadratic()), 20)


def test_a_state_knows_what_its_load_function_returns(root):
    """Functions of one name: the same one goes on, another one is refused, and the hint's remedy works."""
    path = str(root / "texts")
    state, straight = state_after(path, 9, load=quadratic()), taken(opened(path, load=quadratic()), 29)
    assert goes_on(state, path, load=quadratic()) == straight[9:]
    assert taken(opened(path, load=longest()), 29)[9:] != straight[9:]  # so that it matters
    for on_change in ("error", "continue"):
        loader = get_savable_loader(opened(path, load=longest()))
        with pytest.raises(StateMismatchError, match="load function of planned packs"):
            loader.restore_state_rank(state, on_change=on_change)
        loader.close()


def test_a_state_without_a_digest_of_loads_goes_on(root):
    """Earlier versions knew the name of a load function alone."""
    path = str(root / "texts")
    state = state_after(path, 9, load=quadratic())
    del state["fingerprint"]["loads"]
    assert (
        goes_on(with_digest(state), path, load=quadratic()) == taken(opened(path, load=quadratic()), 29)[9:]
    )
    assert "loads" not in state_after(path, 1)["fingerprint"]  # and nothing changed where it has a name


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"capacity": 120}, "capacity of planned packs was 100, is 120"),
        ({"window": 3}, "window of planned packs was 2, is 3"),
        ({"load": "linear"}, "load of planned packs was 'quadratic', is 'linear'"),
        ({"overlong": "drop"}, "overlong of planned packs was 'split', is 'drop'"),
        ({"global_batch_size": 2 * STREAMS}, "global_batch_size of planned packs was 16, is 8"),
        ({"cost": [5] * SAMPLES}, "a hash of the costs of planned packs was"),
    ],
)
def test_other_options_are_refused_by_name(root, change, told):
    path = str(root / "texts")
    state = state_after(path, 3)
    for on_change in ("error", "continue"):
        loader = get_savable_loader(opened(path, **change))
        with pytest.raises(StateMismatchError, match=re.escape(told)) as raised:
            loader.restore_state_rank(state, on_change=on_change)
        assert 'With on_change="continue"' not in str(raised.value)  # no hint that fails as well
        loader.close()
    assert goes_on(state, path) == taken(opened(path), 23)[3:]  # with the options of then


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1, "3", None, 1j, [1, 2]])
def test_a_load_that_is_no_number_is_refused_when_it_is_opened(root, bad):
    with pytest.raises(ConfigError, match=r"the load of a pack (is|cannot be computed).* of the lengths \["):
        opened(str(root / "texts"), load=lambda lengths: bad)


def test_an_error_in_a_load_function_is_named(root):
    with pytest.raises(ConfigError, match=r"cannot be computed: ZeroDivisionError.*of the lengths") as raised:
        opened(str(root / "texts"), load=lambda lengths: 1 / 0)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_a_sample_longer_than_a_windows_packs_is_refused_when_it_is_opened(root):
    """The error has its shard, key and cost; each of its three remedies works, with the numbers it gives."""
    path = str(root / "overlong")
    with pytest.raises(ConfigError, match="5,000 is longer than the 32 packs of 100 of a window") as raised:
        opened(path)
    assert f"data-{OVERLONG // 32:06}.tar, {OVERLONG:05}" in str(raised.value)
    numbers = re.search(
        r"raise the capacity to (\d+), or the window to (\d+), or .*overlong='drop'", str(raised.value), re.I
    )
    capacity, window = map(int, numbers.groups())
    costs = read_costs(path, "tokens")
    for remedy, lengths in [
        ({"capacity": capacity}, costs),
        ({"window": window}, costs),
        ({"overlong": "drop"}, costs[costs <= 100]),
    ]:
        packs = [pack for batch in opened(path, repeat=False, **remedy) for pack in batch]
        assert sum(stop - start for pack in packs for _, start, stop in pack) == lengths.sum()
        assert len({key for pack in packs for key, _, _ in pack}) == len(lengths)
    for less in ({"capacity": capacity - 1}, {"window": window - 1}):  # and no smaller number does
        with pytest.raises(ConfigError, match="longer than the"):
            opened(path, **less)
