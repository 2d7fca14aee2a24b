"""Odd datasets that people really have, as plain tars and prepared, beside webdataset and ``tarfile``."""

from __future__ import annotations

import json
import logging
import re
import tarfile
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from odd_datasets import (
    END,
    ODD_DATASETS,
    Parts,
    body,
    jpeg,
    member,
    members,
    read_with_webdataset,
    samples,
)
from told import told

from energon_stream import (
    CrudeSample,
    DefaultTaskEncoder,
    ReadOptions,
    SampleDecoder,
    WorkerConfig,
    get_loader,
    get_val_dataset,
    lint_dataset,
    reraise_exception,
)
from energon_stream.auxiliary import WebdatasetFileStore
from energon_stream.cli.main import main
from energon_stream.errors import (
    BadShardsError,
    CorruptTarError,
    DuplicateKeyError,
    EmptyDatasetError,
    EnergonStreamError,
    FatalSampleError,
)
from energon_stream.index.bad_samples import BadSample, write_bad_samples
from energon_stream.index.jsonl_index import prepare_jsonl
from energon_stream.prepare.media_headers import MediaFilter
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.storage import ListEntry, StoreSpec
from energon_stream.tar.format import walk_sample
from energon_stream.tar.scan import scan_shard
from energon_stream.tools.curation.derive import merge_datasets
from energon_stream.tools.shard_copies import SampleRange, read_samples

_UNPACK, _CUT, _LINKS, _SYSTEM = "packed by {}", "ends inside", "links", "macOS"
_NUMBERS, _UPPER, _SORT = "numbered parts", "upper case", "not adjacent|appears twice"

SAID: Mapping[str, str] = {  # what an error or a warning says of each dataset that has one
    "no_end_mark": "without an end mark",
    "crumbs_of_zeros": "without an end mark",
    "cut_between_parts": "without an end mark.*may lack parts",
    "cut_in_header": _CUT,
    "cut_in_payload": "beyond the end",
    "cut_in_later_part": "beyond the end",
    "cut_in_padding": "beyond the end",
    "cut_in_long_name": "extended header without its member",
    "empty_tar": "without samples",
    "zero_byte_tar": "without samples",
    "only_empty_tars": "no tar has samples|the tar has no samples",
    "no_samples": "without samples",
    "concatenated": "another tar begins, at byte 15360",
    "concatenated_blocks": "another tar begins, at byte 30720",
    "garbage_after_end": "data after the end mark",
    "garbage_instead_of_end": "damaged tar header",
    "damaged_header": "damaged tar header",
    "html_page": "HTML",
    "lfs_pointer": "Git LFS",
    "gzip_as_tar": _UNPACK.format("gzip"),
    "bzip2_as_tar": _UNPACK.format("bzip2"),
    "xz_as_tar": _UNPACK.format("xz"),
    "zstd_as_tar": _UNPACK.format("Zstandard"),
    "zip_as_tar": _UNPACK.format("zip"),
    "gzip_beside": "compressed tars are left out",
    "upper_case_tar": "do not end in .tar",
    "hard_link": _LINKS,
    "hard_link_in_folder": _LINKS,
    "hard_link_chain": _LINKS,
    "hard_link_whole_sample": _LINKS,
    "hard_link_to_nowhere": _LINKS,
    "symlink": _LINKS,
    "symlink_forward": _LINKS,
    "symlink_outside": _LINKS,
    "symlink_to_other_tar": _LINKS,
    "old_sparse": "sparse",
    "pax_sparse": "sparse",
    "apple_double": _SYSTEM,
    "apple_double_in_folder": _SYSTEM,
    "apple_double_once": _SYSTEM,
    "ds_store": _SYSTEM,
    "macosx_folder": _SYSTEM,
    "pax_header_files": _SYSTEM,
    "latin_1": "not UTF-8",
    "shift_jis": "not UTF-8",
    "gbk": "not UTF-8",
    "pax_binary": "not UTF-8",
    "latin_1_extension": "not UTF-8",
    "upper_case": _UPPER,
    "mixed_case": _UPPER,
    "both_cases": _UPPER,
    "dotted_numbers": _NUMBERS,
    "dotted_pairs": _NUMBERS,
    "dotted_versions": _NUMBERS,
    "reader_fields": "fields that samples have",
    "key_field": "fields that samples have",
    "name_twice": "already.*the last one counts",
    "appended_again": _SORT,
    "sample_twice": _SORT,
    "part_by_part": _SORT,
    "unsorted": _SORT,
    "one_stray_part": _SORT,
}
SAID_PREPARED: Mapping[str, str] = {  # of prepared datasets alone: their keys are unique
    "key_in_two_tars": "appears twice.*fix_duplicates",
    "split_over_tars": "appears twice.*all its parts into one tar",
}


OURS = ("energon_stream.index", "energon_stream.prepare")  # other tests may leave threads that warn


class Raw(DefaultTaskEncoder):
    """Leaves the parts as they are."""

    decoder = None


def read(path: str | Path, **options: Any) -> list[tuple[str, Parts]]:
    """Return key and parts of all samples, in order."""
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    options = {"sample_type": CrudeSample, "batch_size": None} | options
    made = get_val_dataset(str(path), split_part="train", worker_config=config, task_encoder=Raw(), **options)
    metadata = ("__restore_key__", "__subflavors__", "__sources__", "__shard__", "__key__")
    return [
        (
            sample["__key__"].removeprefix(f"{sample['__shard__']}/"),
            {name: data for name, data in sample.items() if name not in metadata},
        )
        for sample in made
    ]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENERGON_STREAM_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))


@pytest.mark.every(5)
@pytest.mark.parametrize("is_prepared", [False, True], ids=["plain", "prepared"])
@pytest.mark.parametrize("name", ODD_DATASETS)
def test_what_is_read_is_whole_or_said(name, is_prepared, tmp_path, caplog):
    meant = ODD_DATASETS[name].write(tmp_path)
    others = read_with_webdataset(tmp_path)
    said = SAID.get(name, "") or (SAID_PREPARED.get(name, "") if is_prepared else "")
    caplog.set_level(logging.WARNING)
    found: list[tuple[str, Parts]] | EnergonStreamError
    try:
        if is_prepared:
            report = prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0))
            assert len(report.remarks) == len(
                {text for text in caplog.messages if text.endswith(report.remarks)}
            )
        found = read(tmp_path)
    except EnergonStreamError as error:
        found = error
    if isinstance(found, EnergonStreamError):
        assert said
        assert re.search(said, str(found))
        assert found.hint
        return
    folded = [(key, {part.lower(): data for part, data in parts.items()}) for key, parts in found]
    is_as_meant, is_as_others = dict(found) == meant, folded == others.samples and not others.errors
    if name == "key_field":  # the part is there, and a crude sample has room for one ``__key__``
        is_as_meant = True
    assert is_as_meant or is_as_others
    warnings = "\n".join(told(caplog, *OURS))
    assert re.search(said, warnings) if said else not warnings
    # What neither says, both read alike.
    assert said or is_as_others


def test_every_text_is_of_a_dataset():
    assert SAID.keys() | SAID_PREPARED.keys() <= ODD_DATASETS.keys()
    assert len(ODD_DATASETS) >= 60


def test_remarks_are_told_again_at_each_start(tmp_path, caplog):
    ODD_DATASETS["no_end_mark"].write(tmp_path)
    for _ in range(2):
        caplog.clear()
        read(tmp_path)
        assert ["without an end mark" in text for text in told(caplog)] == [True]


@pytest.mark.parametrize("name", ["cut_in_payload", "gzip_as_tar", "unsorted"])
def test_plain_tars_that_cannot_be_used_are_left_out_on_request(name, tmp_path, caplog):
    ODD_DATASETS[name].write(tmp_path)
    assert dict(read(tmp_path, skip_bad=True)) == samples(100, 2)
    assert "1 of 2 tars cannot be used, and are left out, such as odd.tar" in caplog.text


def test_no_plain_tar_is_left(tmp_path):
    (tmp_path / "odd.tar").write_bytes(b"not a tar" * 100)
    with pytest.raises(EmptyDatasetError, match="no tar has samples"):
        read(tmp_path, skip_bad=True)
    with pytest.raises(CorruptTarError):
        read(tmp_path)


def test_a_prepared_dataset_names_the_empty_tars(tmp_path):
    ODD_DATASETS["zero_byte_tar"].write(tmp_path)
    report = prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0))
    assert report.shard_counts == {"good.tar": 2}
    assert report.skipped == {"odd.tar": "the tar has no samples"}
    assert "odd.tar" in (tmp_path / ".nv-meta/skipped.json").read_text()


@pytest.mark.parametrize("name", ["latin_1", "gbk", "pax_binary", "latin_1_extension", "private_use"])
def test_names_that_are_not_utf_8_are_found_wherever_keys_are(name, tmp_path):
    """The keys are those of ``tarfile``; lookups, lists, appending, merging and ``lint`` know them."""
    folder = tmp_path / "data"
    folder.mkdir()
    ODD_DATASETS[name].write(folder)
    with tarfile.open(folder / "odd.tar") as tar:
        meant = {member.name: tar.extractfile(member).read() for member in tar}
    prepare_dataset(str(folder), split_ratio=(1, 0, 0), media_filter=MediaFilter("GLOB", ("*.jpg",)))
    store = WebdatasetFileStore(str(folder))
    assert {member: store[member][0] for member in meant} == meant
    pictures = [member for member in meant if member.endswith(".jpg")]
    assert {store.get_media_metadata(member).width for member in pictures} == {24}

    (folder / "z.tar").write_bytes(body(members(samples(50, 2))))
    prepare_dataset(str(folder), split_ratio=(1, 0, 0), append=True)
    found = dict(read(folder))
    keys = [picture.removesuffix(".jpg") for picture in pictures]
    assert [key for key in found if key in keys] == keys
    assert {store.get_media_metadata(member).width for member in pictures} == {24}

    write_bad_samples(str(tmp_path / "bad.jsonl"), [BadSample(str(folder), "odd.tar", key=keys[0])])
    assert dict(read(folder, exclude=str(tmp_path / "bad.jsonl"))).keys() == found.keys() - {keys[0]}
    merge_datasets([str(folder)], str(tmp_path / "copy"))
    assert [*dict(read(tmp_path / "copy")).values()] == [*found.values()]
    assert lint_dataset(str(folder)).is_clean


def test_tars_without_an_end_mark_can_be_appended_and_added_to(tmp_path):
    ODD_DATASETS["no_end_mark"].write(tmp_path)
    prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0))
    (tmp_path / "z.tar").write_bytes(body(members(samples(50, 2))))
    prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0), append=True)
    assert dict(read(tmp_path)) == samples() | samples(100, 2) | samples(50, 2)


def test_an_index_of_other_programs_may_have_system_files(tmp_path):
    """They are samples of their own there, because other programs know no better."""
    data = body([("d/._0001.jpg", b"mac"), ("d/0001.jpg", b"a picture"), ("d/0001.txt", b"text")]) + END

    def read_at(offset: int, length: int) -> memoryview:
        return memoryview(data)[offset : offset + length]

    def take(member: Any) -> bytes:
        return bytes(read_at(member.data_offset, member.size))

    assert walk_sample(read_at, 0, 1024, take) == ("d/", [("_0001.jpg", b"mac")])
    assert walk_sample(read_at, 0, 3072, take) == ("d/0001", [("jpg", b"a picture"), ("txt", b"text")])


@pytest.mark.parametrize(
    "name", ["no_end_mark", "crumbs_of_zeros", "apple_double_in_folder", "zero_byte_tar"]
)
def test_tars_of_a_store_are_read_the_same(name, tmp_path, s3_server, tmp_bucket):
    meant = ODD_DATASETS[name].write(tmp_path)
    store = StoreSpec(tmp_bucket, s3_server.storage_options).open()
    for path in tmp_path.glob("*.tar"):
        store.put(path.name, path.read_bytes())
    assert dict(read(tmp_bucket, storage_options=s3_server.storage_options)) == meant


def test_parts_far_apart_get_the_right_advice(tmp_path):
    ODD_DATASETS["part_by_part"].write(tmp_path)
    with pytest.raises(DuplicateKeyError) as caught:
        prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0))
    assert "repair" in caught.value.hint
    assert "fix_duplicates" not in caught.value.hint
    with pytest.raises(DuplicateKeyError, match="repair"):
        prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0), fix_duplicates=True)


def test_bad_tars_are_named_with_a_way_out(tmp_path):
    ODD_DATASETS["xz_as_tar"].write(tmp_path)
    with pytest.raises(BadShardsError) as caught:
        prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0))
    assert caught.value.shards == {"odd.tar": "the file is packed by xz, and no plain tar"}
    assert "energon-stream repair" in caught.value.hint


def captions(path: Path, **options: Any) -> list[Any]:
    """Read a dataset of typed samples, with its pictures as bytes."""
    options = {"sample_type": "CaptioningSample", "field_map": {"image": "jpg", "caption": "txt"}} | options
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    return list(
        get_val_dataset(
            str(path),
            split_part="train",
            worker_config=config,
            task_encoder=Raw(),
            batch_size=None,
            **options,
        )
    )


@pytest.mark.parametrize("is_prepared", [False, True], ids=["plain", "prepared"])
@pytest.mark.parametrize("name", ["upper_case", "mixed_case"])
def test_a_field_map_takes_parts_in_upper_case(name, is_prepared, tmp_path):
    meant = ODD_DATASETS[name].write(tmp_path)
    if is_prepared:
        prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0))
    folded = {key: {part.lower(): data for part, data in parts.items()} for key, parts in meant.items()}
    found = captions(tmp_path)
    assert [(sample.image, sample.caption) for sample in found] == [
        (parts["jpg"], parts["txt"]) for _, parts in sorted(folded.items(), key=lambda item: item[0] < "0100")
    ]


def test_a_part_in_the_case_of_the_field_map_wins(tmp_path):
    meant = ODD_DATASETS["both_cases"].write(tmp_path)
    for part in ("jpg", "JPG"):
        found = captions(tmp_path / "odd.tar", field_map={"image": part, "caption": "txt"})
        assert [sample.image for sample in found] == [
            parts[part] for key, parts in meant.items() if key < "0100"
        ]


def test_chosen_parts_are_read_in_any_case_and_no_others(tmp_path, s3_server, tmp_bucket):
    """Of a store, only the bytes of the chosen parts are read."""
    large = {f"{n:04d}": {"JPG": bytes([n]) * 400_000, "TXT": b"text %d" % n} for n in range(6)}
    (tmp_path / "odd.tar").write_bytes(body(members(large)) + END)
    prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0))
    s3_server.upload_folder(tmp_path, f"{tmp_bucket}/d")
    found = read(f"{tmp_bucket}/d", storage_options=s3_server.storage_options, parts=["txt"])
    assert dict(found) == {key: {"TXT": parts["TXT"]} for key, parts in large.items()}
    assert s3_server.counters().bytes_sent < 400_000


def test_a_pickled_array_that_nobody_uses_costs_no_sample(tmp_path):
    meant = ODD_DATASETS["pickled_npy"].write(tmp_path)

    class All(DefaultTaskEncoder):
        decoder = SampleDecoder(image_decode=None)

        def encode_sample(self, sample: Any) -> Any:
            return CrudeSample({**sample})

    config = WorkerConfig(rank=0, world_size=1, num_workers=0, global_error_handler=reraise_exception)
    found = list(
        get_val_dataset(
            str(tmp_path / "odd.tar"),
            split_part="train",
            worker_config=config,
            task_encoder=All(),
            batch_size=None,
        )
    )
    assert [sample["txt"].encode() for sample in found] == [
        parts["txt"] for key, parts in meant.items() if key < "0100"
    ]


def test_lint_remarks_on_what_is_odd_and_can_be_read(tmp_path):
    for name in (
        "exif_orientation",
        "grey_16_png",
        "frames_gif",
        "upper_case",
        "hard_link",
        "dotted_numbers",
    ):
        folder = tmp_path / name
        folder.mkdir()
        ODD_DATASETS[name].write(folder)
        report = lint_dataset(str(folder))
        assert report.is_clean
        assert [remark.shard for remark in report.remarks] == ["odd.tar"]
        result = CliRunner().invoke(main, ["lint", str(folder)])
        assert result.exit_code == 0
        assert report.remarks[0].what in result.output
    pictures = {
        "exif_orientation": "1 picture has an EXIF orientation.*: 0001.jpg$",
        "grey_16_png": "1 picture has grey values of 16 bits.*: 0001.png$",
        "frames_gif": "1 picture has several frames.*: 0001.gif$",
    }
    for name, text in pictures.items():
        assert re.search(text, lint_dataset(str(tmp_path / name)).remarks[0].what)


@pytest.mark.parametrize(
    "data",
    [
        b'\xef\xbb\xbf{"n": 0}\n{"n": 1}\n',
        b'\xef\xbb\xbf\n{"n": 0}\n{"n": 1}',
        b'\xef\xbb\xbf{"n": 0}\r\n\r\n  \r\n{"n": 1}\r\n',
        b'{"n": 0}\r\n{"n": 1}',
        b'\n\n{"n": 0}\n\n{"n": 1}\n\n',
    ],
)
def test_json_lines_of_other_systems(data, tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(data)
    lines = [json.loads(line) for line in data.decode("utf-8-sig").splitlines() if line.strip()]
    prepare_jsonl(str(path))
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    found = get_val_dataset(str(path), split_part="train", worker_config=config, batch_size=None)
    assert [sample["json"] for sample in found] == lines


@pytest.mark.parametrize("budget", [256 << 20, 4096])
@pytest.mark.parametrize("is_prepared", [False, True], ids=["plain", "prepared"])
def test_links_are_followed_in_stores_and_in_large_samples(
    budget, is_prepared, tmp_path, s3_server, tmp_bucket
):
    """With a budget of 4 KiB, samples are cut while they arrive."""
    picture = bytes(range(256)) * 40
    data = body([("a.jpg", picture), ("a.txt", b"a")])
    data += member("b.jpg", kind=tarfile.LNKTYPE, link="a.jpg") + body([("b.bin", picture), ("b.txt", b"b")])
    data += body([("c.txt", b"c")]) + member("c.jpg", kind=tarfile.SYMTYPE, link="b.jpg")
    meant = {
        "a": {"jpg": picture, "txt": b"a"},
        "b": {"jpg": picture, "bin": picture, "txt": b"b"},
        "c": {"jpg": picture, "txt": b"c"},
    }
    (tmp_path / "x.tar").write_bytes(data + END)
    options: dict[str, Any] = {"read_options": ReadOptions(byte_budget=budget)}
    if is_prepared:
        prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0))
    s3_server.upload_folder(tmp_path, f"{tmp_bucket}/d")
    assert dict(read(tmp_path, **options)) == meant
    options["storage_options"] = s3_server.storage_options
    assert dict(read(f"{tmp_bucket}/d", **options)) == meant
    chosen = dict(read(f"{tmp_bucket}/d", parts=["jpg"], **options))
    assert chosen == {key: {"jpg": picture} for key in meant}


def test_links_are_parts_for_lint_and_for_what_maps_samples(tmp_path):
    ODD_DATASETS["hard_link"].write(tmp_path)
    yaml = {
        "sample_type": {"__module__": "megatron.energon", "__class__": "CaptioningSample"},
        "field_map": {"image": "jpg", "caption": "txt"},
    }
    prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0), dataset_yaml=yaml)
    for rate in (1.0, 0.999):
        report = lint_dataset(str(tmp_path), share=rate)
        assert report.is_clean
        assert report.made["train"] == 5
    scan = scan_shard(StoreSpec(str(tmp_path)).open(), *entries(tmp_path, "odd.tar"))
    places = [SampleRange("odd.tar", *bounds) for bounds in pairwise([0, *scan.offsets[1:]])]
    found = {
        sample["__key__"]: bytes(sample["jpg"])
        for sample in read_samples(StoreSpec(str(tmp_path)).open(), places)
    }
    assert found == {"0000": jpeg(0), "0001": jpeg(0), "0002": jpeg(2)}


def entries(folder: Path, name: str) -> list[ListEntry]:
    return [entry for entry in StoreSpec(str(folder)).open().list() if entry.path == name]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_pass_of_which_all_samples_failed_is_an_error(num_workers, ranks, tmp_path):
    """Validation would otherwise be on nothing, and say so in warnings alone."""
    (tmp_path / "x.tar").write_bytes(body(members(samples(0, 16, "txt"))) + END)
    config = WorkerConfig(rank=0, world_size=ranks, num_workers=num_workers)

    def opened(**options: Any) -> Any:
        return get_val_dataset(
            str(tmp_path),
            split_part="val",
            batch_size=4,
            worker_config=config,
            sample_type="CaptioningSample",
            field_map={"image": "jpg", "caption": "txt"},
            **options,
        )

    found = "all 16 samples" if ranks == 1 else "all 8 samples"
    with (
        get_loader(opened()) as loader,
        pytest.raises(FatalSampleError, match=f"{found} of the pass failed: .* FieldError"),
    ):
        list(loader)
    if not num_workers:
        with pytest.raises(FatalSampleError, match=f"{found} of the pass failed"):
            list(opened())


def test_few_bad_samples_of_one_of_several_ranks_are_no_error(tmp_path):
    (tmp_path / "x.tar").write_bytes(body(members(samples(0, 4, "txt"))) + END)
    config = WorkerConfig(rank=0, world_size=2, num_workers=0)
    options = {
        "batch_size": 2,
        "sample_type": "CaptioningSample",
        "field_map": {"image": "jpg", "caption": "txt"},
    }
    assert list(get_val_dataset(str(tmp_path), split_part="val", worker_config=config, **options)) == []
