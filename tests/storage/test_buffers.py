import subprocess
import sys
import textwrap
import tracemalloc

import pytest

from energon_stream.storage.buffers import BytesBuilder, as_bytes

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


def test_bytes_are_built_in_place():
    """Only one object of that size is allocated."""
    size, piece = 20 << 20, bytes(range(256)) * 4096
    tracemalloc.start()
    try:
        with BytesBuilder(size) as builder:
            for at in reversed(range(0, size, len(piece))):
                builder.write(at, memoryview(piece))
            result = builder.finish()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result == piece * (size // len(piece))
    assert peak < size + 100_000
    assert as_bytes(memoryview(result)) is result


def test_bytes_of_length_zero():
    with BytesBuilder(0) as builder:
        assert builder.finish() == b""


def test_an_error_while_building_leaves_no_view():
    """Python 3.13, or development mode, reports a BytesIO that is finalized before its view."""
    program = """
        import gc
        from energon_stream.storage.buffers import BytesBuilder

        def fail():
            cycle = []
            with BytesBuilder(100) as builder:
                cycle += [builder, cycle]
                builder.write(0, b"1")
                raise OSError("the store is gone")

        try:
            fail()
        except OSError:
            pass
        gc.collect()
    """
    command = [sys.executable, "-X", "dev", "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
