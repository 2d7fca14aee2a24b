"""The page of errors has all of them, and each survives its way to another process."""

import inspect
import pickle
import re
from pathlib import Path

import pytest

from energon_stream import errors
from energon_stream.errors import EnergonStreamError, IgnoreSample, SkipSample
from energon_stream.samples import SourceInfo, TextSample

ERRORS = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, EnergonStreamError)
]


def test_the_table_has_every_error_and_what_it_is_besides():
    page = (Path(__file__).parent.parent / "docs/reference/errors.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+Error)` \|([^|]*)\|", page, re.MULTILINE))
    assert rows.keys() == {error.__name__ for error in ERRORS} - {"EnergonStreamError"}
    for error in ERRORS[1:]:
        named = {*re.findall(r"`(\w+)`", rows[error.__name__])}
        assert named <= {base.__name__ for base in error.__mro__}
        assert named >= {base.__name__ for base in error.__bases__ if base.__module__ == "builtins"}


def test_every_error_says_what_it_is():
    assert IgnoreSample is SkipSample
    assert not issubclass(SkipSample, EnergonStreamError)
    assert all(error.__doc__ for error in ERRORS)


@pytest.mark.parametrize("error", ERRORS)
def test_each_survives_pickling(error):
    first = error("no such thing", where="s3://b/k", hint="look elsewhere")
    first.extra = 1
    again = pickle.loads(pickle.dumps(first))
    assert type(again) is error
    assert str(again) == "no such thing [s3://b/k]. Look elsewhere"
    assert (again.what, again.where, again.hint, again.extra) == (first.what, first.where, first.hint, 1)


def test_a_message_shows_both_ends_of_a_long_place():
    where = "s3://bucket/" + "7" * 4000 + ".tar"
    error = errors.MetadataError("no such file", where=where, hint="look elsewhere")
    assert len(str(error)) < 600
    assert str(error).startswith("no such file [s3://bucket/777")
    assert str(error).endswith("777.tar]. Look elsewhere")
    assert pickle.loads(pickle.dumps(error)).where == error.where == where


@pytest.mark.parametrize("error", [errors.SampleError, errors.FatalSampleError])
@pytest.mark.parametrize(
    ("sample", "named"),
    [
        ({"__key__": "a.tar/7", "json": b"{}"}, "a.tar/7"),
        (TextSample(__key__="k", __restore_key__=(), text="x"), "k"),
        ([TextSample(__key__="k", __restore_key__=(), text="x"), None], "k"),
        (17, "17"),
    ],
)
def test_an_error_names_a_sample(error, sample, named):
    made = error.from_sample(sample, "no caption")
    assert type(made) is error
    assert str(made) == f"sample {named} failed: no caption"
    assert str(error.from_sample(sample)) == str(error.from_sample_key(named)) == f"sample {named} failed"


def test_an_error_of_a_sample_says_where_it_comes_from():
    source = SourceInfo("s3://b/d", 3, "s3://b/d/a.tar", ("3.txt",))
    sample = TextSample(__key__="k", __restore_key__=(), __sources__=(source,), text="x")
    assert errors.SampleError.from_sample(sample, "bad").where == str((source,))
