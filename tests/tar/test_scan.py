"""Walking tars by ranges: whatever lies in them and however windows fall, the same as through a memory
map.
"""

import contextlib
import io
import itertools
import tarfile
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from repetitions import examples

from energon_stream.errors import StorageError
from energon_stream.storage import ListEntry, StoreSpec
from energon_stream.tar.format import sample_parts
from energon_stream.tar.scan import LinkedParts, scan_shard

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


_LINK = st.tuples(st.booleans(), st.integers(0, 5), st.sampled_from(["jpg", "txt", "no"]))
_NAMES = ("jpg", "txt", "cls", "json")


@given(
    st.lists(st.lists(st.binary(max_size=9) | _LINK, min_size=1, max_size=4), min_size=1, max_size=5),
    st.sampled_from(["", "d/", "./d/"]),
)
@examples(200)
def test_links_are_followed_as_tarfile_follows_them(found, folder):
    """Parts are bytes, or a link: whether it is a hard one, and sample and part that it leads to."""
    members = [
        (number, name, part)
        for number, parts in enumerate(found)
        for name, part in zip(_NAMES, parts, strict=False)
    ]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as file:
        for number, name, part in members:
            info = tarfile.TarInfo(f"{folder}{number}.{name}")
            if isinstance(part, bytes):
                info.size = len(part)
            else:
                is_hard = part[0] and part[1] < number  # hard links lead to members before them
                info.type = tarfile.LNKTYPE if is_hard else tarfile.SYMTYPE
                info.linkname = f"{folder if is_hard else ''}{part[1]}.{part[2]}"
            file.addfile(info, io.BytesIO(part if isinstance(part, bytes) else b""))
    expected = {f"{folder}{number}": {} for number, _, part in members if isinstance(part, bytes)}
    with tarfile.open(fileobj=io.BytesIO(buffer.getvalue())) as file:
        for number, name, _ in members:
            with contextlib.suppress(KeyError, RecursionError):  # a link to nowhere, or in a circle
                content = file.extractfile(f"{folder}{number}.{name}")
                expected.get(f"{folder}{number}", {})[name] = content.read()
    with tempfile.TemporaryDirectory() as base:
        (Path(base) / "x.tar").write_bytes(buffer.getvalue())
        store = StoreSpec(base).open()
        (entry,) = store.list()
        scan, data, linked = scan_shard(store, entry), store.get("x.tar").data, LinkedParts(store)
        read = {}
        for start, stop in itertools.pairwise([0, *scan.offsets[1:]]):
            sample = sample_parts(data, start, stop)
            places = zip(sample.names, sample.starts, sample.stops, strict=True)
            parts = {name: data[first:last] for name, first, last in places}
            parts |= linked.read("x.tar", sample.key, sample.links)
            read[sample.key] = {name: bytes(part) for name, part in parts.items()}
    assert read == expected
    counted = sum(scan.remarks.get(kind, (0, ""))[0] for kind in ("links", "followed_links"))
    assert counted == sum(not isinstance(part, bytes) for _, _, part in members)
