"""A dozen of the resumes that ``python tests/packing/resumes.py 1000`` makes."""

import pytest
from repetitions import is_nightly
from resumes import differing, make


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return make(tmp_path_factory.mktemp("resumes"))


def test_batches_after_resumes_are_those_of_a_run_that_nothing_disturbs(root):
    assert differing(root, 12 if is_nightly() else 4, seed=3, workers=0) == []


@pytest.mark.slow
def test_two_hundred_resumes_with_workers(root):
    assert differing(root, 200, seed=4) == []
