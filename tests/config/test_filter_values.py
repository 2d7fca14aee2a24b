"""Filters compare exactly, whatever the types: the oracle is `==` and `in` of Python."""

import datetime
import decimal

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from repetitions import examples

from energon_stream.errors import ConfigError
from energon_stream.tables.expressions import parse_filter

LARGE = 1 << 53
NUMBERS = [0, 1, 2, -1, 44, 300, LARGE, LARGE + 1, 2**63 - 1, -(2**63), 2**63 + 1, 2**64 - 1, 2**64]
FLOATS = [0.0, -0.0, 1.0, 1.5, -1.5, float(LARGE), 0.1, 1e300]
COLUMNS = {
    "int8": (pa.int8(), [1, 44, -1, None]),
    "int64": (pa.int64(), [1, LARGE, LARGE + 1, 2**63 - 1, -(2**63), None]),
    "uint64": (pa.uint64(), [1, 2**63 + 1, 2**64 - 1, None]),
    "double": (pa.float64(), [0.0, -0.0, 1.0, 1.5, float(LARGE), float("nan"), None]),
    "float": (pa.float32(), [1.5, float(pa.scalar(0.1, pa.float32()).as_py()), None]),
    "bool": (pa.bool_(), [True, False, None]),
    "string": (pa.string(), ["1", "a", "", None]),
    "large_string": (pa.large_string(), ["1", "a", None]),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), ["1", "a", None]),
    "decimal": (pa.decimal128(9, 2), [decimal.Decimal("1.50"), decimal.Decimal(1), None]),
    "date": (pa.date32(), [datetime.date(1970, 1, 6), None]),
    "timestamp": (pa.timestamp("us", "Europe/Berlin"), [datetime.datetime(2020, 1, 1), None]),
    "duration": (pa.duration("us"), [datetime.timedelta(microseconds=5), None]),
}
items = st.sampled_from([*NUMBERS, *FLOATS, True, False, "1", "a", ""])


def answer(text, column):
    kind, values = COLUMNS[column]
    return parse_filter(text).evaluate({"x": pa.array(values, kind)}).to_pylist()


def is_refused(text, column):
    try:
        answer(text, column)
    except ConfigError:
        return True
    return False


@pytest.mark.parametrize("column", COLUMNS)
@given(st.lists(items, min_size=1, max_size=4))
@example([1.5])
@example(["1"])
@example([True])
@example([5])
@example([0.1])
@example([float(LARGE)])
@example([2**63 + 1])
@example([-0.0])
@examples(60)
def test_a_value_is_in_a_list_if_it_equals_one_of_its_items(column, listed):
    rows = COLUMNS[column][1]
    expected = [None if row is None else any(row == item for item in listed) for row in rows]
    try:
        found = answer(f"x in {listed}", column)
    except ConfigError:  # as `==` does
        assert any(is_refused(f"x == {item!r}", column) for item in listed)
        return
    assert found == expected
    assert answer(f"x not in {listed}", column) == [None if row is None else not row for row in expected]


@pytest.mark.parametrize("column", ["int8", "int64", "uint64", "double", "float"])
@given(st.sampled_from(NUMBERS + FLOATS), st.sampled_from(["==", "!=", "<", "<=", ">", ">="]))
@examples(80)
def test_numbers_are_compared_exactly_or_refused(column, item, how):
    rows = COLUMNS[column][1]
    for text, swap in ((f"x {how} {item!r}", False), (f"{item!r} {how} x", True)):
        names = (lambda row: {"a": item, "b": row}) if swap else (lambda row: {"a": row, "b": item})
        expected = [None if row is None else eval(f"a {how} b", {}, names(row)) for row in rows]
        try:
            assert answer(text, column) == expected
        except ConfigError as error:
            assert "not in range" in str(error) or "too large" in str(error)  # noqa: PT017


@pytest.mark.parametrize("item", [2**63 + 1, 2**64 - 1, 1, float(2**63)])
def test_all_numbers_of_a_column_can_be_compared(item):
    rows = COLUMNS["uint64"][1][:-1]
    assert answer(f"x >= {item!r}", "uint64")[:-1] == [row >= item for row in rows]


@pytest.mark.parametrize(("column", "text"), [
    ("int64", "x in ['1']"), ("int64", "x in [True]"), ("string", "x in [1]"), ("date", "x in [5]"),
    ("timestamp", "x in [1577836800000000]"), ("duration", "x in [5]"), ("bool", "x in [1]"),
    ("timestamp", "x in ['2020-01-01']"), ("string", "x == '\\ud800'"), ("string", "x in ['\\ud800']"),
])  # fmt: skip
def test_types_that_cannot_be_compared_are_named(column, text):
    with pytest.raises(ConfigError, match="x is "):
        answer(text, column)


def test_text_that_is_not_unicode_is_named():
    with pytest.raises(ConfigError, match="no filter"):
        parse_filter("x == '\ud800'")
