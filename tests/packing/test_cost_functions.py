"""Costs that there are already are kept for the function that made them, and for no other of its name."""

import functools
import tarfile
import threading

import numpy as np
import pytest

from energon_stream import compute_costs, read_costs
from energon_stream.errors import CostsError
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import CRUDE_YAML, write_shards

SCALE = 2


def scaled(factor, *, more=0):
    return lambda sample: factor * len(sample["txt"]) + more


def by_global(sample):
    return SCALE * len(sample["txt"])


def measured(sample, factor=1, *, more=0):
    return factor * len(sample["txt"]) + more


class Measure:
    unit = 1

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, sample):
        return self.scale(len(sample["txt"]))

    def scale(self, length):
        return length * self.factor * self.unit

    def method(self, sample):
        return self(sample)


class Other(Measure):
    def scale(self, length):
        return length + 1


def functions():
    """Pairs of functions of one name that do not give the same."""

    def local(sample, factor=2):
        return factor * len(sample["txt"])

    first = local

    def local(sample, factor=3):
        return factor * len(sample["txt"])

    return {
        "lambdas": (lambda sample: 2 * len(sample["txt"]), lambda sample: 3 * len(sample["txt"])),
        "closures": (scaled(2), scaled(3)),
        "closures of keywords": (scaled(2), scaled(2, more=1)),
        "closures of functions": (
            (lambda inner: lambda sample: inner(len(sample["txt"])))(lambda length: length + 2),
            (lambda inner: lambda sample: inner(len(sample["txt"])))(lambda length: length + 3),
        ),
        "defaults": (first, local),
        "partials": (functools.partial(measured, factor=2), functools.partial(measured, factor=3)),
        "nested partials": (
            functools.partial(functools.partial(measured, more=1), factor=2),
            functools.partial(functools.partial(measured, more=2), factor=2),
        ),
        "objects": (Measure(2), Measure(3)),
        "methods": (Measure(2).method, Measure(3).method),
        "methods that call others": (Measure(2).method, Other(2).method),
        "tables": (scaled(np.int64(2)), scaled(np.int64(3))),
    }


@pytest.fixture
def folder(tmp_path):
    write_shards(tmp_path, shards=2, samples_per_shard=2, parts=lambda index: {"txt": b"x" * (index + 1)})
    prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0), dataset_yaml=CRUDE_YAML)
    return str(tmp_path)


def by_hand(folder, function):
    """What a function gives for the samples, as tarfile has them."""
    found = []
    for number in range(2):
        with tarfile.open(f"{folder}/data-{number:06d}.tar") as tar:
            found += [function({"txt": tar.extractfile(member).read()}) for member in tar]
    return found


@pytest.mark.parametrize("pair", functions())
def test_costs_of_another_function_are_not_kept(folder, pair):
    first, second = functions()[pair]
    same = functions()[pair][0]
    assert compute_costs(folder, "lengths", first).computed > 0
    assert compute_costs(folder, "lengths", same).computed == 0
    report = compute_costs(folder, "lengths", second)
    assert report.computed == report.shards
    assert read_costs(folder, "lengths").tolist() == by_hand(folder, second)


def test_costs_of_a_function_whose_globals_changed_are_not_kept(folder, monkeypatch):
    assert compute_costs(folder, "lengths", by_global).computed > 0
    assert compute_costs(folder, "lengths", f"{__name__}:by_global").computed == 0
    monkeypatch.setitem(globals(), "SCALE", 3)
    assert compute_costs(folder, "lengths", f"{__name__}:by_global").computed > 0


def test_costs_of_a_function_that_cannot_be_told_are_computed_again(folder):
    lock = threading.Lock()
    function = lambda sample: len(sample["txt"]) if lock else 0  # noqa: E731
    for _ in range(2):
        assert compute_costs(folder, "lengths", function).computed > 0


@pytest.mark.parametrize(
    "bad", [float("nan"), float("inf"), -1, 10**30, 10**400, None, [1, 2], ZeroDivisionError("no words")]
)
def test_what_a_function_returns_or_raises_is_named_with_shard_and_key(tmp_path, bad):
    """The key is that of the sample's members by tarfile, in the shard that has it."""

    def cost(sample):
        if sample["__key__"] != key:
            return 1
        if isinstance(bad, Exception):
            raise bad
        return bad

    write_shards(tmp_path / "odd", shards=3, samples_per_shard=4, parts=lambda index: {"txt": b"x"})
    prepare_dataset(str(tmp_path / "odd"), dataset_yaml=CRUDE_YAML, split_ratio=(1, 0, 0))
    shard = sorted((tmp_path / "odd").glob("*.tar"))[1]
    with tarfile.open(shard) as members:
        key = members.getnames()[-1].partition(".")[0]
    with pytest.raises(CostsError, match=r"the cost of a sample (is|cannot be computed)") as raised:
        compute_costs(str(tmp_path / "odd"), "tokens", cost)
    assert f"{shard.name}, {key}" in str(raised.value)
    assert (raised.value.__cause__ is bad) == isinstance(bad, Exception)
    bad = 2  # the function corrected
    assert compute_costs(str(tmp_path / "odd"), "tokens", cost).total == 13
