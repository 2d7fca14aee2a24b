"""Costs whose writer was killed: whoever reads finds the old ones or the new ones."""

import os
import signal

import children
import numpy as np
import pytest
from hooked_store import hooked

from energon_stream import compute_costs, read_costs
from energon_stream.errors import CostsError
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import TEXT_YAML, write_shards


@pytest.fixture
def texts(tmp_path):
    write_shards(tmp_path / "texts", shards=2, samples_per_shard=5, parts=lambda i: {"txt": b"x" * i})
    prepare_dataset(str(tmp_path / "texts"), split_ratio=(1, 0, 0), dataset_yaml=TEXT_YAML)
    return str(tmp_path / "texts")


def kill_after(texts, function, calls):
    """Compute costs, and kill this process after so many calls that change the folder."""
    left = [calls]

    def counted(method, *arguments):
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        return method(*arguments)

    compute_costs(hooked(texts, put=counted, delete=counted), "size", function)


def length(sample):
    return len(sample["txt"])


def ten_times(sample):
    return 10 * len(sample["txt"])


def found_costs(texts):
    try:
        return read_costs(texts, "size").tolist()
    except CostsError as error:
        return None if "has no costs" in str(error) else str(error)


@pytest.mark.every(4)
@pytest.mark.parametrize("calls", range(5))
def test_a_killed_writer_leaves_the_old_costs_or_the_new_ones(texts, calls):
    old = np.arange(10)
    for first in (True, False):
        if not first:
            compute_costs(texts, "size", length)
        try:
            children.call(kill_after, texts, length if first else ten_times, calls)
        except AssertionError:
            assert calls < 4  # it was killed
        else:
            assert calls == 4
        found = found_costs(texts)
        assert found in ([None, old.tolist()] if first else [old.tolist(), (10 * old).tolist()])
    compute_costs(texts, "size", ten_times)
    assert read_costs(texts, "size").tolist() == (10 * old).tolist()
    assert sorted(os.listdir(f"{texts}/.nv-meta/costs")) == ["size.json", "size.npy"]
