"""Walking tars by ranges: whatever lies in them and however windows fall, the same as through a memory
map.
"""

import io
import tarfile
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from repetitions import examples

from energon_stream.errors import StorageError
from energon_stream.storage import ListEntry, StoreSpec
from energon_stream.tar.scan import scan_shard

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


def tar(sizes, tar_format=tarfile.PAX_FORMAT, long_names=False):
    """A tar of samples with one part each; every third name is too long for a header."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tar_format) as file:
        for number, size in enumerate(sizes):
            is_long = long_names and number % 3 == 0 and tar_format != tarfile.USTAR_FORMAT
            member = tarfile.TarInfo(f"{number:06d}{'x' * (1500 if is_long else 0)}.bin")
            member.size = size
            file.addfile(member, io.BytesIO(bytes([number % 250 + 1]) * size))
    return buffer.getvalue()


@pytest.fixture
def walk(s3_server, tmp_path):
    """Walks a tar's bytes on the stand-in server and in a local file; both must give the same."""
    remote = StoreSpec("s3://bucket", s3_server.storage_options).open()
    local = StoreSpec(str(tmp_path)).open()

    def walk(content, **options):
        s3_server.put("s3://bucket/x.tar", content)
        (tmp_path / "x.tar").write_bytes(content)
        s3_server.reset_counters()
        found = scan_shard(remote, ListEntry("x.tar", remote.head("x.tar")), **options)
        assert found == scan_shard(local, ListEntry("x.tar", local.head("x.tar")))
        asked = [entry.range for entry in s3_server.log() if entry.method == "GET"]
        return SimpleNamespace(found=found, asked=asked, sent=s3_server.counters().bytes_sent)

    return walk


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(
        st.one_of(st.integers(0, 600), st.integers(2000, 9000), st.just(40_000)), min_size=1, max_size=40
    ),
    tar_format=st.sampled_from(FORMATS),
    ahead=st.integers(0, 5),
)
def test_windows_do_not_change_what_is_found(walk, sizes, tar_format, ahead):
    walked = walk(tar(sizes, tar_format, long_names=True), ahead=ahead, window=256)
    assert len(walked.found.keys) == len(sizes)
    assert len(set(walked.asked)) == len(walked.asked), "a window was asked for twice"


def test_small_payloads_are_read_along_in_large_windows_and_large_ones_are_skipped(walk):
    content = tar([50_000] * 100)
    walked = walk(content, ahead=2)
    assert walked.sent < 1.01 * len(content)
    assert len(walked.asked) <= 6  # 256 KiB, 1 MiB and then 2 MiB each
    walked = walk(tar([3_000_000] * 6), ahead=8)
    assert walked.sent < 256_000 + 6 * 40_000  # the first window, and a small one for each header
    assert len(walked.asked) <= 8


def test_a_walk_can_be_stopped(walk):
    asked = []

    def check():
        asked.append(1)
        if len(asked) == 3:
            raise StorageError("enough")

    with pytest.raises(StorageError, match="enough"):
        walk(tar([50_000] * 200), check=check)
