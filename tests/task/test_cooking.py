"""Marks of cookers."""

import pytest

from energon_stream.task import cooker


def cook(sample, **stores):
    return sample, stores


@pytest.mark.parametrize(
    ("mark", "needs"),
    [
        (cooker, (False, False, None)),
        (cooker(), (False, False, None)),
        (cooker(need_cache=True), (True, False, None)),
        (cooker(None, need_primary=True, parts=["json"]), (False, True, {"json"})),
    ],
)
def test_a_mark_in_every_form_returns_the_function(mark, needs):
    def function(sample):
        return sample

    marked = mark(function)
    assert marked is function
    names = ("__cooker_need_cache__", "__cooker_need_primary__", "__cooker_parts__")
    assert tuple(getattr(marked, name) for name in names) == needs


def test_a_function_and_options_in_one_call():
    assert cooker(cook, need_cache=True) is cook
    assert cook.__cooker_need_cache__
