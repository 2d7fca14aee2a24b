"""Odd tars become sound datasets with exactly the whole samples, whatever stops the work."""

import gzip
import io
import itertools
import json
import os
import random
import signal
import tarfile
import zlib
from pathlib import Path

import children
import numpy as np
import odd_datasets as odd
import pytest
from click.testing import CliRunner
from hooked_store import hooked
from hypothesis import assume, given
from hypothesis import strategies as st
from PIL import Image, ImageSequence
from repetitions import examples, is_nightly

from energon_stream import (
    Cooker,
    DefaultTaskEncoder,
    LocalEngine,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    repair_dataset,
)
from energon_stream.cli.main import main
from energon_stream.errors import (
    ConfigError,
    DuplicateKeyError,
    EmptyDatasetError,
    NotPreparedError,
    ObjectChangedError,
    ObjectNotFoundError,
)
from energon_stream.index.dataset import read_metadata
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.storage import StoreSpec
from energon_stream.tools.repair.sound_samples import KINDS
from energon_stream.write.finish import CRUDE

INLINE = LocalEngine(0)


def whole(folder):
    """Samples of a folder as webdataset reads them, which fails on a name that is there twice."""
    found = odd.read_with_webdataset(folder)
    assert not found.errors
    samples = dict(found.samples)
    assert len(samples) == len(found.samples)
    return samples


class AsTheyAre(DefaultTaskEncoder):
    """Yields the parts of crude samples as bytes."""

    decoder = None
    cookers = [Cooker(lambda sample: dict(sample))]

    def batch(self, samples):
        return samples


def loaded(folder, part="train"):
    """Samples as this library's loader yields them, by key."""
    dataset = get_train_dataset(
        folder,
        batch_size=1,
        split_part=part,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        repeat=False,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        task_encoder=AsTheyAre(),
    )
    return {
        sample["__key__"].rpartition(".tar/")[2]: {
            name: bytes(value) for name, value in sample.items() if not name.startswith("__")
        }
        for (sample,) in get_savable_loader(dataset)
    }


def write(folder, **tars):
    """Write tars of named members."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, named in tars.items():
        (folder / f"{name}.tar").write_bytes(odd.body(named) + odd.END)
    return folder


def content(folder):
    """Bytes of all files, but for the name that each preparation draws."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "index.uuid"
    }


def without(samples, *keys):
    return {key: parts for key, parts in samples.items() if key not in keys}


def named(change, part=lambda name: name):
    """What is whole, with other keys and parts."""
    return lambda samples: {
        key if key >= "0100" and key < "0102" else change(key): {
            part(name): data for name, data in parts.items() if part(name)
        }
        for key, parts in samples.items()
    }


ESCAPED = named(lambda key: key.replace(".", "%2e"))
LOWER = named(lambda key: key, str.lower)


def bytes_escaped(name):
    """Percent signs and numbers for the bytes that are not UTF-8, as tarfile keeps them."""
    return "".join(f"%{ord(sign) - 0xDC00:02x}" if 0xDC80 <= ord(sign) <= 0xDCFF else sign for sign in name)


DIFFERENT = {
    # what a reader would take for a sample, and those who made the tar would not
    "cut_between_parts": lambda samples: without(samples, "0003"),
    "hard_link_to_nowhere": lambda samples: without(samples, "0001"),
    "symlink_outside": lambda samples: without(samples, "0001"),
    "symlink_to_other_tar": lambda samples: without(samples, "0001"),
    "windows_files": lambda samples: without(samples, "Thumbs", "desktop"),
    # what readers of today do not see, or only once
    "gzip_beside": lambda samples: samples | odd.samples(),
    "upper_case_tar": lambda samples: samples | odd.samples(),
    "key_in_two_tars": lambda samples: samples | {f"{key}~1": parts for key, parts in samples.items()},
    # names that no dataset can have, or that no field can come from
    "absolute": named(lambda key: key.lstrip("/")),
    "parent_folder": named(lambda key: key.replace("..", "%2e%2e")),
    "latin_1": named(lambda key: key.replace("\udce9", "%e9")),
    "shift_jis": named(lambda key: key.replace("\udc90", "%90")),
    "gbk": named(bytes_escaped),
    "pax_binary": named(bytes_escaped),
    "latin_1_extension": named(bytes_escaped, bytes_escaped),
    "upper_case": LOWER,
    "mixed_case": LOWER,
    "both_cases": named(lambda key: key, lambda name: {"JPG": "2.jpg"}.get(name, name)),
    "dotted_numbers": ESCAPED,
    "dotted_pairs": ESCAPED,
    "dotted_versions": ESCAPED,
    "reader_fields": named(lambda key: key, lambda name: name.replace("__url", "%5f_url")),
    "key_field": named(lambda key: key, lambda name: name.replace("__key", "%5f_key")),
    "trailing_dots": named(lambda key: key),
}
"""How the samples after a repair differ from those that the corpus calls whole, by name of the dataset."""


@pytest.mark.every(7)
@pytest.mark.parametrize("name", sorted(odd.ODD_DATASETS))
def test_exactly_the_whole_samples_are_kept(tmp_path, name):
    source = tmp_path / "source"
    source.mkdir()
    expected = DIFFERENT.get(name, dict)(odd.ODD_DATASETS[name].write(source))
    before = content(source), [path.stat().st_mtime_ns for path in sorted(source.iterdir())]
    if not expected:
        with pytest.raises(EmptyDatasetError, match="none of 2 tars has a whole sample"):
            repair_dataset(source, tmp_path / "new", engine=INLINE)
        assert not content(tmp_path / "new")
        return
    report = repair_dataset(source, tmp_path / "new", dataset_yaml=CRUDE, engine=INLINE)
    assert whole(tmp_path / "new") == expected
    assert loaded(tmp_path / "new") == expected
    assert report.samples == sum(tar.samples for tar in report.tars) == len(expected)
    assert before == (content(source), [path.stat().st_mtime_ns for path in sorted(source.iterdir())])
    assert not list((tmp_path / "new").glob(".nv-staging*"))


NUMBERED = odd.samples(0, 6)
with tarfile.open(fileobj=io.BytesIO(odd.body(odd.members(NUMBERED)) + odd.END)) as _tar:
    MEMBERS = _tar.getmembers()
ENDS = [max(m.offset_data + m.size for m in MEMBERS if m.name[:4] == key) for key in NUMBERED]


@examples(100)
@given(cut=st.integers(ENDS[1], ENDS[-1] + 200), is_followed=st.booleans(), is_packed=st.booleans())
def test_a_tar_that_is_cut_anywhere_keeps_what_is_before(tmp_path_factory, cut, is_followed, is_packed):
    # Between two members that follow each other nobody can see that others were lost.
    assume(not is_followed or cut not in [member.offset for member in MEMBERS])
    source = tmp_path_factory.mktemp("cut")
    data = odd.body(odd.members(NUMBERED))[:cut]
    expected = {key: NUMBERED[key] for key, end in zip(NUMBERED, ENDS, strict=True) if end <= cut}
    if is_followed:  # by another tar: `cat a.tar b.tar`, at whatever byte it begins
        data += odd.body(odd.members(odd.samples(50, 2))) + odd.END
        expected |= odd.samples(50, 2)
    (source / "a.tar").write_bytes(gzip.compress(data, 1) if is_packed else data)
    report = repair_dataset(source, source / "../new" / source.name, engine=INLINE, check=False)
    assert whole(source.parent / "new" / source.name) == expected
    assert report.dropped == (0 if cut >= ENDS[-1] else report.dropped) <= 1


@pytest.mark.parametrize("short", [1, 20, 400])
def test_compressed_tars_that_are_cut_off(tmp_path, short):
    packed = gzip.compress(odd.body(odd.members(NUMBERED)) + odd.END)[:-short]
    plain = zlib.decompressobj(wbits=31).decompress(packed)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.tar.gz").write_bytes(packed)
    report = repair_dataset(tmp_path / "source", tmp_path / "new", engine=INLINE)
    assert report.changes["unpacked"] == report.changes["damaged_compression"] == 1
    ends = zip(NUMBERED, ENDS, strict=True)
    assert whole(tmp_path / "new") == {key: NUMBERED[key] for key, end in ends if end <= len(plain)}


@pytest.mark.parametrize("blocks", range(1, 12))
def test_a_tar_that_was_appended_within_a_payload(tmp_path, blocks):
    """Also where the payload that was cut off seems to end at a header of the other tar."""
    first = odd.body([*odd.members(odd.samples(0, 1)), ("0001.jpg", bytes(5120)), ("0001.txt", b"x")])
    cut = first.index(b"0001.jpg") + (1 + blocks % 5) * odd.RECORD
    second = odd.samples(50, 6, "txt", "json") if blocks < 6 else odd.samples(50, 6)
    (tmp_path / "a.tar").write_bytes(first[:cut] + odd.body(odd.members(second)) + odd.END)
    report = repair_dataset(tmp_path / "a.tar", tmp_path / "new", engine=INLINE, check=False)
    assert whole(tmp_path / "new") == odd.samples(0, 1) | second
    assert report.changes["cut_off"] == 1


def header_places(data):
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return [(member.offset, member.offset_data - member.offset, member.name) for member in tar]


@pytest.mark.every(3)
@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_one_wrong_bit_in_a_header_costs_one_sample(tmp_path, form):
    samples = {f"{'n' * 120}/{key}" if form else key: parts for key, parts in odd.samples(0, 3).items()}
    data = odd.body(odd.members(samples), format=form) + odd.END
    chances = random.Random(3)
    for number, (offset, length, name) in enumerate(header_places(data)):
        if number % 2 and not is_nightly():
            continue
        for place in {0, 124, 150, 156, 257, length - 512}:  # in both headers of a long name
            damaged = bytearray(data)
            damaged[offset + place] ^= 1 << chances.randrange(7)
            source = tmp_path / f"{number}-{place}.tar"
            source.write_bytes(damaged)
            repair_dataset(source, tmp_path / f"{number}-{place}", engine=INLINE, check=False)
            found = whole(tmp_path / f"{number}-{place}")
            assert found in (samples, without(samples, name.partition(".")[0])), (name, place)


def test_headers_without_end_take_neither_memory_nor_time(tmp_path):
    record = odd.header(b"x", 10, kind=b"x") + odd.padded(b"9 a=bcd\n\n")
    hostile = [
        record * 200,
        odd.header(b"x.jpg", 0, changes={124: b"\xff" * 12}),  # of negative size
        odd.header(b"x", 8**11 - 1, kind=b"x"),
        odd.member(
            "GNUSparseFile.0/0009.bin",
            odd.padded(b"1\n999999999990\n6\n") + b"sparse",
            format=tarfile.PAX_FORMAT,
            pax_headers={
                "GNU.sparse.major": "1",
                "GNU.sparse.minor": "0",
                "GNU.sparse.name": "0009.bin",
                "GNU.sparse.realsize": "999999999996",
            },
        ),
        odd.member("a.jpg", kind=b"2", link="b.jpg") + odd.member("b.jpg", kind=b"2", link="a.jpg"),
    ]
    data = odd.body(odd.members(odd.samples(0, 2)))
    data += b"".join(one + odd.body(odd.members(odd.samples(10 + n, 1))) for n, one in enumerate(hostile))
    (tmp_path / "a.tar").write_bytes(data + odd.END)
    report = repair_dataset(tmp_path / "a.tar", tmp_path / "new", engine=INLINE)
    # 0012 follows an extended header that cannot be read, so that its names are not known.
    assert whole(tmp_path / "new") == without(odd.samples(0, 2) | odd.samples(10, 5), "0012")
    assert report.changes["too_large"] == 1
    assert report.changes["dangling_link"] == 2


def test_a_tar_within_a_tar_that_is_cut_off_gives_no_samples(tmp_path):
    inner = odd.body(odd.members(odd.samples(70, 3))) + odd.END
    source = write(tmp_path / "source")
    data = odd.body(odd.members(odd.samples(0, 2)))
    (source / "a.tar").write_bytes(data + odd.member("0002.tar", inner)[:-3000])
    (source / "b.tar").write_bytes(odd.body([("0005.blob", inner)])[:-3000])
    (source / "c.tar").write_bytes(odd.body([("0009.tar", inner), *odd.members(odd.samples(20, 1))]))
    repair_dataset(source, tmp_path / "new", engine=INLINE)
    assert whole(tmp_path / "new") == odd.samples(0, 2) | {"0009": {"tar": inner}} | odd.samples(20, 1)


def test_the_report_counts_exactly(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    one = odd.body(odd.members(odd.samples(0, 2))) + odd.member("._0000.jpg") + odd.member(".DS_Store")
    one += odd.member("README") + odd.member("0002.JPG", b"a") + odd.member("0002.Txt", b"b")
    one += odd.member("0002.json", kind=tarfile.LNKTYPE, link="0001.json")
    one += odd.member("fifo.x", kind=tarfile.FIFOTYPE) + odd.member("caf\udce9.txt", b"c")
    one += odd.member("0000.txt", b"newer") + odd.member("0009.jpg", kind=tarfile.SYMTYPE, link="/x/y.jpg")
    two = (
        odd.body([("0009.json", b"{}"), ("0009.txt", b"d")])
        + odd.END
        + odd.body(odd.members(odd.samples(0, 1)))
    )
    (source / "a.tar").write_bytes(one + two)
    (source / "b.tar").write_bytes(b"<html>")
    (source / "c.tar").write_bytes(odd.body(odd.members(odd.samples(1, 2)))[:-510])
    options = {"engine": INLINE}
    report = repair_dataset(source, tmp_path / "new", dry_run=True, **options)
    assert not (tmp_path / "new").exists()
    assert [tar.changes for tar in report.tars] == [
        {
            "joined": 1, "no_end_mark": 1, "system_file": 2, "no_part": 1, "link": 1, "special": 1,
            "escaped_name": 1, "dangling_link": 1, "duplicate_part": 1, "incomplete": 1, "renamed": 1,
            "lower_case": 2,
        },
        {"unreadable_tar": 1},
        {"cut_off_member": 1, "no_end_mark": 1, "cut_off": 1, "renamed": 1},
    ]  # fmt: skip
    names = [tar.names for tar in report.tars]
    assert names[0]["incomplete"] == ["0009"]
    assert names[0]["renamed"] == ["0000 → 0000~1"]
    assert names[0]["escaped_name"] == ["caf%e9.txt"]
    assert names[1]["unreadable_tar"] == ["it is HTML or XML, and no tar"]
    assert (names[2]["cut_off"], names[2]["renamed"]) == (["0002"], ["0001 → 0001~2"])
    assert (report.samples, report.dropped, report.shards) == (6, 2, 0)
    done = repair_dataset(source, tmp_path / "new", **options)
    assert [tar.changes for tar in done.tars] == [tar.changes for tar in report.tars]
    assert [tar.shards for tar in done.tars] == [("data-00000-000000.tar",), (), ("data-00002-000000.tar",)]
    assert list(whole(tmp_path / "new")) == ["0000", "0001", "0002", "caf%e9", "0000~1", "0001~2"]
    kept = json.loads((tmp_path / "new/.nv-meta/repair.json").read_text())
    assert kept["changes"] == dict(done.changes)
    assert repair_dataset(source, tmp_path / "new", **options) == done


def test_parallel_as_serial_and_the_order_of_the_source(tmp_path):
    tars = {f"t{n}": odd.members(odd.samples(10 * n, 8)) for n in range(4)}
    tars["t2"] = tars["t2"][1:] + tars["t2"][:1]
    source = write(tmp_path / "source", **tars, u=odd.members(odd.samples(3, 2)))
    repair_dataset(source, tmp_path / "serial", max_count=3, engine=INLINE)
    repair_dataset(source, tmp_path / "parallel", max_count=3, engine=LocalEngine(2))
    assert content(tmp_path / "serial") == content(tmp_path / "parallel")
    order = [key for key, _ in odd.read_with_webdataset(tmp_path / "serial").samples]
    assert order == [*(f"{n:04d}" for t in range(4) for n in range(10 * t, 10 * t + 8)), "0003~4", "0004~4"]


def _repair_until(source, target, number):
    """Repair, and die by SIGKILL at a write to the store."""
    numbers = itertools.count()

    def dying(method, *arguments, **options):
        if next(numbers) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return method(*arguments, **options)

    repair_dataset(source, hooked(target, put=dying, put_file=dying), max_count=2, engine=LocalEngine(0))


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_a_killed_run_goes_on_with_the_same_bytes(tmp_path, step):
    source = write(tmp_path / "source", a=odd.members(odd.samples(0, 5)), b=odd.members(odd.samples(3, 3)))
    with (source / "a.tar").open("r+b") as file:
        file.truncate((source / "a.tar").stat().st_size - 3000)
    repair_dataset(source, tmp_path / "whole", max_count=2, engine=INLINE)
    for number in itertools.count(0, step):
        target = tmp_path / f"killed-{number}"
        killed = children.submit(_repair_until, source, target, number).process.wait_or_kill(60)
        if killed != -signal.SIGKILL:
            break
        with pytest.raises((NotPreparedError, ObjectNotFoundError)):
            read_metadata(StoreSpec(str(target)))
        repair_dataset(source, target, max_count=2, engine=INLINE)
        assert content(target) == content(tmp_path / "whole")
    assert killed == 0
    assert number > 20


def test_from_a_store_to_a_store(tmp_path, s3_server):
    source = write(tmp_path / "source")
    expected = odd.ODD_DATASETS["gzip_as_tar"].write(source) | odd.samples(200, 3)
    (source / "more.tar").write_bytes(odd.body(odd.members(odd.samples(200, 3))))
    (source / "nothing.tar").touch()
    s3_server.create_bucket("repair")
    options = s3_server.storage_options
    store = StoreSpec("s3://repair/source", options).open()
    for path in source.iterdir():
        store.put(path.name, path.read_bytes())
    etags = [entry.meta.etag for entry in store.list()]
    arguments = {"storage_options": options, "source_storage_options": options, "engine": INLINE}
    repair_dataset("s3://repair/source", "s3://repair/new", **arguments)
    repair_dataset(source, tmp_path / "new", engine=INLINE)
    new = StoreSpec("s3://repair/new", options).open()
    tars = {
        entry.path: bytes(new.get(entry.path).data) for entry in new.list() if entry.path.endswith(".tar")
    }
    assert tars == {path: data for path, data in content(tmp_path / "new").items() if path.endswith(".tar")}
    assert [entry.meta.etag for entry in store.list()] == etags
    for path, data in tars.items():
        (tmp_path / path).write_bytes(data)
    assert whole(tmp_path) == expected
    one = repair_dataset("s3://repair/source/odd.tar", "s3://repair/one", **arguments)
    assert one.samples == 4
    with pytest.raises(ConfigError, match="in the folder of the source"):
        repair_dataset("s3://repair/source", "s3://repair/source/new", **arguments)


def test_destinations_that_are_refused(tmp_path):
    source = write(tmp_path / "source", a=odd.members(odd.samples()))
    (tmp_path / "link").symlink_to(source)
    for target in (source, source / "new", tmp_path / "link" / "new", tmp_path / "link"):
        with pytest.raises(ConfigError, match="in the folder of the source"):
            repair_dataset(source, target, engine=INLINE)
    with pytest.raises(ConfigError, match="not empty"):
        repair_dataset(source, tmp_path, engine=INLINE)
    assert list(content(source)) == ["a.tar"]
    with pytest.raises(ObjectNotFoundError):
        repair_dataset(tmp_path / "absent", tmp_path / "new", engine=INLINE)
    with pytest.raises(ConfigError, match="Use auto, first, last"):
        repair_dataset(source, tmp_path / "new", dotted_keys="second", engine=INLINE)
    with pytest.raises(ConfigError, match="unknown encoding"):
        repair_dataset(source, tmp_path / "new", encoding="latin-17", engine=INLINE)
    repair_dataset(source / "a.tar", source / "new", engine=INLINE)  # beside a tar is fine
    assert whole(source / "new") == odd.samples()
    with pytest.raises(ConfigError, match="another conversion"):
        repair_dataset(source / "a.tar", source / "new", duplicates="last", engine=INLINE)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("rename", ["0001=a", "0002=b", "0001~1=c", "0003=d", "0002~1=e", "0003~1=f"]),
        ("first", ["0001=a", "0002=b", "0003=d"]),
        ("last", ["0001=c", "0002=e", "0003=f"]),
        ("error", DuplicateKeyError),
    ],
)
def test_duplicates_by_a_rule(tmp_path, rule, expected):
    source = write(
        tmp_path / "source",
        a=[("0001.txt", b"a"), ("0002.txt", b"b"), ("0001.txt", b"c"), ("0001.txt", b"c")],
        b=[("0003.txt", b"d"), ("0002.txt", b"e")],
    )
    write(tmp_path / "source", c=[("0003.txt", b"f")])
    if rule == "rename":
        expected = ["0001=a", "0002=b", "0001~1=c", "0003=d", "0002~1=e", "0003~2=f"]
    if not isinstance(expected, list):
        with pytest.raises(expected, match="0001"):
            repair_dataset(source, tmp_path / "new", duplicates=rule, engine=INLINE)
        assert not content(tmp_path / "new")
        return
    repair_dataset(source, tmp_path / "new", duplicates=rule, engine=INLINE)
    found = whole(tmp_path / "new")
    assert sorted(f"{key}={parts['txt'].decode()}" for key, parts in found.items()) == sorted(expected)


def test_one_name_for_all_and_links_to_it(tmp_path):
    data = odd.body([("x.jpg", b"%d" % number) for number in range(100)])
    data += odd.member("x.jpg", kind=b"1", link="x.jpg") * 100 + odd.body([("y.txt", b"")])
    (tmp_path / "a.tar").write_bytes(data + odd.member("y.jpg", kind=b"1", link="x.jpg") + odd.END)
    report = repair_dataset(tmp_path / "a.tar", tmp_path / "new", engine=INLINE)
    assert report.changes == {"link": 101, "renamed": 99, "duplicate_sample": 100}
    found = whole(tmp_path / "new")
    assert [found[f"x~{n}" if n else "x"]["jpg"] for n in range(100)] == [b"%d" % n for n in range(100)]
    assert found["y"] == {"jpg": b"99", "txt": b""}


def test_names_that_no_dataset_may_have(tmp_path):
    named = [
        "/__meta__/a.jpg",
        "//b.jpg",
        "c.__x__.jpg",
        "d/../e.jpg",
        "f..jpg",
        "g.jpg.",
        "h.\t.jpg",
        "1.0.0.",
    ]
    data = odd.body([(name, name.encode()) for name in named])
    for rule in ("first", "last"):
        (tmp_path / f"{rule}.tar").write_bytes(data + odd.body([("good.jpg", b"good")]) + odd.END)
        report = repair_dataset(
            tmp_path / f"{rule}.tar", tmp_path / rule, dotted_keys=rule, engine=INLINE, dataset_yaml=CRUDE
        )
        found = loaded(tmp_path / rule)
        assert found == whole(tmp_path / rule)
        left = report.changes["no_part"]
        assert len([part for parts in found.values() for part in parts]) + left == len(named) + 1
        assert left == (1 if rule == "first" else 3)


def test_duplicates_between_tars_are_an_error_by_rule(tmp_path):
    source = write(tmp_path / "source", a=odd.members(odd.samples()), b=odd.members(odd.samples(2, 3)))
    with pytest.raises(DuplicateKeyError, match=r"two tars: a.tar and b.tar"):
        repair_dataset(source, tmp_path / "new", duplicates="error", engine=INLINE)
    assert not content(tmp_path / "new")


def test_keys_with_dots_by_a_rule(tmp_path):
    cameras = [(f"{n}.{side}.jpg", b"x") for n in range(3) for side in ("left", "right")]
    source = write(
        tmp_path / "source", a=cameras, b=[(f"{n}.{k}.png", b"y") for n in range(7, 9) for k in range(3)]
    )
    assert repair_dataset(source, tmp_path / "auto", engine=INLINE).dotted_keys == "first"
    assert set(whole(tmp_path / "auto")) == {"0", "1", "2", "7", "8"}
    repair_dataset(source, tmp_path / "last", dotted_keys="last", engine=INLINE)
    assert "0%2eleft" in whole(tmp_path / "last")


def test_numbers_of_any_size_may_be_keys(tmp_path):
    named = [(f"1.{number}.jpg", b"x") for number in (1, 99_999_999_999_999, 10**30)]
    assert repair_dataset(
        write(tmp_path / "source", a=named), tmp_path / "new", engine=INLINE
    ).dotted_keys in ("first", "last")


def test_names_are_decoded_if_their_encoding_is_known(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    odd.ODD_DATASETS["shift_jis"].write(source)
    repair_dataset(source, tmp_path / "new", encoding="cp932", engine=INLINE)
    assert "図0000" in whole(tmp_path / "new")


@pytest.mark.parametrize("name", ["frames_tiff", "frames_gif", "frames_webp", "frames_png"])
def test_frames_become_parts(tmp_path, name):
    (tmp_path / "source").mkdir()
    odd.ODD_DATASETS[name].write(tmp_path / "source")
    report = repair_dataset(tmp_path / "source", tmp_path / "new", frames=True, engine=INLINE)
    assert report.changes == {"frames": 1}
    with Image.open(io.BytesIO(odd.PICTURES[name][2])) as picture:
        expected = [frame.convert("RGB").tobytes() for frame in ImageSequence.Iterator(picture)]
    parts = whole(tmp_path / "new")["0001"]
    kind = "tiff" if name == "frames_tiff" else "png"
    assert sorted(parts) == [f"0.{kind}", f"1.{kind}", f"2.{kind}", "jpg", "json", "txt"]
    found = [Image.open(io.BytesIO(parts[f"{number}.{kind}"])).convert("RGB") for number in range(3)]
    assert [frame.tobytes() for frame in found] == expected


def test_a_sample_over_several_tars_is_whole_again(tmp_path):
    parts = odd.members(odd.samples(0, 3))
    source = write(tmp_path / "source", a=parts[:4], b=parts[4:5], c=parts[5:])
    report = repair_dataset(source, tmp_path / "new", engine=INLINE)
    assert whole(tmp_path / "new") == odd.samples(0, 3)
    assert [tar.samples for tar in report.tars] == [2, 0, 1]


def test_metadata_of_the_source_is_kept_where_it_holds(tmp_path):
    tars = {f"t{n}": odd.members(odd.samples(10 * n, 3)) for n in range(4)}
    tars["t3"] = [(name.replace("jpg", "JPG"), data) for name, data in tars["t3"]]
    source = write(tmp_path / "source", **tars)
    kind = {"__module__": "megatron.energon", "__class__": "CaptioningSample"}
    yaml = {"sample_type": kind, "field_map": {"image": "jpg,JPG", "caption": "txt"}}
    prepare_dataset(str(source), split_ratio=(2, 1, 1), dataset_yaml=yaml)
    split = source / ".nv-meta" / "split.yaml"
    split.write_text(split.read_text().replace("exclude: []", "exclude: [t0.tar/0001, t2.tar]"))
    report = repair_dataset(source, tmp_path / "new", engine=INLINE)
    metadata = read_metadata(StoreSpec(str(tmp_path / "new")))
    assert metadata.dataset_yaml == yaml
    assert {name: list(shards) for name, shards in metadata.split.split_parts.items()} == {
        "train": ["data-00000-000000.tar", "data-00001-000000.tar"],
        "val": [],
        "test": ["data-00003-000000.tar"],
    }
    assert report.changes == {"excluded": 4, "lower_case": 3}
    assert report.dropped == 4
    yaml["field_map"]["image"] = "JPG"
    (source / ".nv-meta" / "dataset.yaml").write_text(json.dumps(yaml))
    report = repair_dataset(source, tmp_path / "other", engine=INLINE)
    assert "dataset.yaml is new: no sample has the parts for image" in report.notes


def test_a_source_that_changes_meanwhile(tmp_path):
    source = write(tmp_path / "source", a=odd.members(odd.samples()), b=odd.members(odd.samples(8, 2)))

    def change(put, path, data):
        if path.endswith("examined-000001"):
            write(source, b=odd.members(odd.samples(8, 3)))
        put(path, data)

    with pytest.raises(ObjectChangedError):
        repair_dataset(source, hooked(tmp_path / "new", put=change), engine=INLINE)


def test_the_guide_has_each_kind_of_change():
    text = (Path(__file__).parents[3] / "docs/guides/repair.md").read_text()
    assert not [kind for kind in KINDS if f"`{kind}`" not in text]


def command(*arguments):
    return CliRunner().invoke(main, ["repair", *map(str, arguments), "--processes", "0"])


def test_the_command(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    odd.ODD_DATASETS["cut_in_payload"].write(source)
    first = command(source, tmp_path / "new", "--dry-run")
    assert first.exit_code == 0
    assert "Samples: 5 of 2 tars, 1 dropped (nothing written yet)" in first.output
    assert "odd.tar: 0003" in first.output
    assert not (tmp_path / "new").exists()
    done = command(source, tmp_path / "new", "--json", "--max-count", "2", "--split-ratio", "1,1,0")
    found = json.loads(done.output)
    assert (found["samples"], found["dropped"], found["shards"]) == (5, 1, 3)
    metadata = read_metadata(StoreSpec(str(tmp_path / "new")))
    assert [len(shards) for shards in metadata.split.split_parts.values()] == [1, 2, 0]
    assert metadata.dataset_yaml["__class__"] == "CrudeWebdataset"
    (source / "good.tar").unlink()
    (source / "odd.tar").write_bytes(b"<html>")
    none = command(source, tmp_path / "none")
    assert none.exit_code == 1
    assert "odd.tar: it is HTML" in none.output


def _memory(source, target):
    """Return by how much the peak of this process grows while it repairs a large tar after a small one."""

    def peak():
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) << 10

    # Shards are read back through maps, whose pages count as memory although the system may drop them.
    options = {"engine": LocalEngine(0), "check": False}
    repair_dataset(source / "small.tar", target / "small", **options)
    before = peak()
    repair_dataset(source / "large.tar", target / "large", **options)
    return peak() - before


@pytest.mark.slow
def test_memory_does_not_grow_with_a_tar_that_is_not_sorted(tmp_path):
    for name, count in (("small", 3), ("large", 2000)):
        with tarfile.open(tmp_path / f"{name}.tar", "w") as tar:
            for part in ("a", "b"):
                for number in range(count):
                    data = np.random.default_rng(number).bytes(50_000)
                    info = tarfile.TarInfo(f"{number:06d}.{part}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    assert children.call(_memory, tmp_path, tmp_path / "new") < 50 << 20
    assert len(whole(tmp_path / "new" / "large")) == 2000


@pytest.mark.slow
def test_large_members_are_not_read_into_memory(tmp_path):
    for name, size in (("small", 100), ("large", 300 << 20)):
        with tarfile.open(tmp_path / f"{name}.tar", "w") as tar, open("/dev/zero", "rb") as zeros:
            info = tarfile.TarInfo("0.bin")
            info.size = size
            tar.addfile(info, zeros)
    repair_dataset(tmp_path / "large.tar", tmp_path / "new", engine=INLINE)
    with tarfile.open(tmp_path / "new" / "data-000000.tar") as tar:
        assert [member.size for member in tar] == [300 << 20]


def test_a_relative_path_is_of_the_present_folder(tmp_path, monkeypatch):
    for name, samples in (("one", 2), ("other", 3)):
        folder = tmp_path / name / "tars"
        folder.mkdir(parents=True)
        with tarfile.open(folder / "a.tar", "w") as tar:
            for number in range(samples):
                tar.addfile(tarfile.TarInfo(f"{number}.txt"))
        monkeypatch.chdir(tmp_path / name)
        report = repair_dataset("tars", "sound", dry_run=True, engine=LocalEngine(0))
        assert [tar.samples for tar in report.tars] == [samples]
