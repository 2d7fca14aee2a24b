"""The first ten calls of a user's function, failed by one mistake, end a run, with one short traceback."""

import json
import logging
import traceback

import children
import pytest

from energon_stream import (
    BatchDataset,
    BlendDataset,
    DefaultTaskEncoder,
    FatalSampleError,
    FilterDataset,
    MapDataset,
    WorkerConfig,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from energon_stream.testing.operator_suite import NumbersDataset


def numbers(workers=0, size=300, **options):
    return NumbersDataset(size, WorkerConfig(rank=0, world_size=1, num_workers=workers, **options))


def no_attribute(x):
    return x.captoin


def no_key(x):
    return {"caption": x}["captoin"]


def no_element(x):
    return [x][1]


def no_argument(x):
    return len()


def no_addition(x):
    return "number " + x


def rejects(x):
    raise ValueError("too small")


def asserts(x):
    assert x < 0, "too large"


def by_library(x):
    return json.loads("{")


def fails_by_call(run, fails, **options):
    """Return the calls of a function that fails, until the run ended, and the error that ended it."""
    calls = []

    def counted(x):
        calls.append(x)
        return fails(x)

    with pytest.raises(FatalSampleError) as caught:
        list(run(counted, **options))
    return len(calls), caught.value


def mapped(function, **options):
    return MapDataset(numbers(), function, **options)


@pytest.mark.parametrize("fails", [no_attribute, no_key, no_element, no_argument, no_addition])
@pytest.mark.parametrize("run", [mapped, lambda function: FilterDataset(numbers(), function)])
def test_ten_first_calls_with_one_mistake_end_the_run(fails, run):
    calls, error = fails_by_call(run, fails)
    assert calls == 10
    with pytest.raises((AttributeError, LookupError, TypeError)) as alone:
        fails(1)
    assert type(error.__cause__) is alone.type
    assert str(error).startswith(f"the first 10 samples failed, the last with {alone.typename}: ")
    assert f"test_typos.py:{alone.tb.tb_next.tb_lineno}" in str(error)  # Python's own line


@pytest.mark.parametrize("fails", [rejects, asserts, by_library])
def test_data_that_a_function_rejects_end_the_run_after_a_hundred(fails):
    assert fails_by_call(mapped, fails)[0] == 100


def test_ten_batches_with_one_mistake():
    assert fails_by_call(lambda batcher: BatchDataset(numbers(), 2, batcher), no_attribute)[0] == 10


def test_a_function_that_worked_once_or_fails_in_two_lines_has_a_hundred():
    assert fails_by_call(mapped, lambda x: x if x == 4 else no_key(x))[0] == 5 + 100
    calls, error = fails_by_call(mapped, lambda x: no_key(x) if x % 3 else rejects(x))
    assert calls == 100
    assert "100 samples in a row failed: 66 KeyError (" in str(error)
    assert "; 34 ValueError (" in str(error)
    assert "the last with ValueError: too small [" in str(error)


@pytest.mark.parametrize("tolerance", [3, 10, 40, 100])
def test_an_explicit_tolerance_is_kept(tolerance):
    assert fails_by_call(mapped, no_key, failure_tolerance=tolerance)[0] == tolerance


def test_an_explicit_tolerance_of_none_is_kept():
    assert list(MapDataset(numbers(), lambda x: no_key(x) if x < 200 else x, failure_tolerance=0)) == [
        *range(200, 300)
    ]


@pytest.mark.parametrize(
    ("mark", "of_encoder", "calls"),
    [(None, None, 10), (25, None, 25), (None, 30, 30), (25, 30, 25), (100, None, 100)],
)
def test_hooks_of_an_encoder(captions, mark, of_encoder, calls):
    seen = []

    class Encoder(DefaultTaskEncoder):
        def encode_sample(self, sample):
            seen.append(sample)
            return sample.captoin

    if mark is not None:
        Encoder.encode_sample = stateless(failure_tolerance=mark)(Encoder.encode_sample)
    if of_encoder is not None:
        Encoder.__default_failure_tolerance__ = of_encoder
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    dataset = get_train_dataset(captions, batch_size=2, task_encoder=Encoder(), worker_config=config)
    with pytest.raises(FatalSampleError):
        list(get_loader(dataset))
    assert len(seen) == calls


def test_by_energons_conventions_a_hundred_end_the_run():
    dataset = MapDataset(numbers(conventions="energon"), no_key)
    with pytest.raises(FatalSampleError, match=r"^100 samples in a row failed, "):
        list(dataset)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_row_begins_anew_where_a_run_resumes(workers):
    streams = max(1, workers)
    bad = MapDataset(numbers(workers, size=6 * streams), no_key)  # fewer in a pass than end a run
    blend = BlendDataset((bad, 1), (numbers(workers, size=10 * streams), 1))
    loader = get_savable_loader(blend)
    first = list(loader)
    state = loader.save_state_rank()
    with pytest.raises(FatalSampleError, match=r"^the first 10 samples failed, "):
        [list(loader) for _ in range(2)]
    resumed = get_savable_loader(blend)
    resumed.restore_state_rank(state)
    for _ in range(15):
        assert sorted(resumed) == sorted(first)  # they were 6 + 15 x 6: later than without a stop
    with pytest.raises(FatalSampleError, match=r"^100 samples in a row failed, "):
        [list(resumed) for _ in range(3)]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_cause_is_the_users_error_in_the_users_line(workers):
    with pytest.raises(FatalSampleError) as caught:
        list(get_loader(MapDataset(numbers(workers), no_key)))
    cause = caught.value.__cause__
    assert isinstance(cause, KeyError)
    assert cause.args == ("captoin",)
    text = "".join(traceback.format_exception(caught.value))
    assert text.count('return {"caption": x}["captoin"]') == 1
    assert "in no_key" in text
    assert "energon_stream/" not in text.replace("energon_stream/testing", "")


@pytest.mark.parametrize(("workers", "method"), [(0, None), (2, "fork"), (1, "forkserver")])
def test_a_log_at_debug_keeps_all_frames(workers, method, caplog):
    caplog.set_level(logging.DEBUG, "energon_stream")
    with pytest.raises(FatalSampleError) as caught:
        list(get_loader(MapDataset(numbers(workers), no_key), start_method=method))
    text = "".join(traceback.format_exception(caught.value))
    assert "pipeline/failures.py" in text
    if not workers:
        assert "Traceback" in caplog.text


def test_the_log_names_a_kind_once(caplog):
    with pytest.raises(FatalSampleError):
        list(get_loader(MapDataset(numbers(), no_key)))
    (line,) = [text for text in caplog.messages if text.startswith("skipping sample")]
    assert "KeyError: 'captoin' (test_typos.py:" in line
    assert "\n" not in line
    assert "Traceback" not in caplog.text


PROGRAM = """
import sys
from energon_stream import *

class Encoder(DefaultTaskEncoder):
    pass

def no_field(self, value):
    return value.captoin  # no such field

def no_name(self, value):
    return valeu.caption  # no such name

hook, mistake, workers, path = sys.argv[1:]
setattr(Encoder, hook, globals()[mistake])
config = WorkerConfig(rank=0, world_size=1, num_workers=int(workers))
options = dict(shuffle_buffer_size=10, max_samples_per_sequence=100, worker_config=config)
for batch in get_loader(get_train_dataset(path, batch_size=1, task_encoder=Encoder(), **options)):
    pass
"""


@pytest.mark.every(5)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("hook", "mistake", "line"),
    [
        ("encode_sample", "no_field", "return value.captoin"),
        ("batch", "no_field", "return value.captoin"),
        ("encode_batch", "no_name", "return valeu.caption"),
    ],
)
def test_a_typo_prints_at_most_40_lines(captions, tmp_path, hook, mistake, line, workers):
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    done = children.run(program, hook, mistake, workers, captions)
    printed = done.stdout + done.stderr
    assert done.returncode == 1
    assert len(printed.splitlines()) <= 40, printed
    assert printed.count(line) == 1, printed
    assert "train.py" in printed
