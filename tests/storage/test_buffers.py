import subprocess
import sys
import textwrap
import tracemalloc

import pytest

from energon_stream.storage.buffers import BytesBuilder, as_bytes

TEXT = bytes(range(256)) * 16


def test_all_of_a_bytes_object_is_handed_out_as_it_is():
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
def test_a_part_of_something_is_copied(view):
    result = as_bytes(view)
    assert type(result) is bytes
    assert result == view.tobytes()
    assert result is not TEXT


def test_bytes_are_built_in_place():
    """One object of the size, from the first piece to the result."""
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


def test_an_error_between_leaves_no_view_of_the_object():
    """Else the collector may finalize the object before the view, which Python reports (in development mode, or 3.13)."""
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
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
