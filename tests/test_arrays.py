import pytest

from energon_stream.arrays import as_bytes

TEXT = bytes(range(256)) * 16


def test_a_view_of_a_whole_bytes_object_is_not_copied():
    for view in (TEXT, memoryview(TEXT), memoryview(TEXT)[:], memoryview(TEXT)[10:][:0][:0]):
        assert as_bytes(view) == bytes(view)
    assert as_bytes(TEXT) is TEXT
    assert as_bytes(memoryview(TEXT)) is TEXT
    assert as_bytes(memoryview(TEXT)[0 : len(TEXT)]) is TEXT


@pytest.mark.parametrize(
    "view",
    [
        memoryview(TEXT)[1:],
        memoryview(TEXT)[:-1],
        memoryview(TEXT)[::-1],
        memoryview(bytearray(TEXT)),
        memoryview(TEXT)[:0],
    ],
)
def test_other_views_are_copied(view):
    result = as_bytes(view)
    assert type(result) is bytes
    assert result == view.tobytes()
    assert result is not TEXT
