"""`lint` as a gate: every problem of every kind in one report."""

import json
import tarfile

import pytest
from click.testing import CliRunner
from hooked_store import hooked
from media_corpus import ffmpeg

from energon_stream import lint_dataset
from energon_stream.cli.main import main
from energon_stream.engine.processes import LocalEngine
from energon_stream.engine.tasks import Part
from energon_stream.errors import ConfigError
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import CAPTIONING_YAML, captioning_dataset, write_shards


def run(*arguments):
    return CliRunner().invoke(main, ["lint", *map(str, arguments)])


def damaged(folder):
    """A prepared dataset in which much is wrong; returns what a report must name, by shard."""

    def parts(i):
        found = {"jpg": picture, "txt": b"text"}
        if i == 1:
            found["jpg"] = b"no image"
        if i == 2:
            found["json"] = b"{"  # no field of the sample type
        if i == 3:
            found["txt"] = b"\xff"
            found["jpg"] = b"no image either"
        if i == 5:
            del found["txt"]
        return found

    captioning_dataset(folder / "pictures", shards=1, samples_per_shard=1)
    with tarfile.open(folder / "pictures/data-000000.tar") as tar:
        picture = tar.extractfile("00000000.jpg").read()
    data = folder / "data"
    write_shards(data, shards=5, samples_per_shard=4, parts=parts)
    prepare_dataset(str(data), split_ratio=(3, 2, 0), dataset_yaml=CAPTIONING_YAML, checksums=True)
    content = bytearray((data / "data-000002.tar").read_bytes())
    content[0] ^= 1
    (data / "data-000002.tar").write_bytes(content)
    (data / "data-000003.tar").unlink()
    (data / "data-000004.tar.idx").write_bytes(bytes(8))
    return data


EXPECTED = [
    ("data-000000.tar", "00000001", "DecodeError", "jpg"),
    ("data-000000.tar", "00000002", "DecodeError", "json"),
    ("data-000000.tar", "00000003", "DecodeError", "jpg"),
    ("data-000000.tar", "00000003", "DecodeError", "txt"),
    ("data-000001.tar", "00000005", "FieldError", "txt"),
    ("data-000002.tar", None, "CorruptTarError", "checksum"),
    ("data-000003.tar", None, "IndexMismatchError", "does not exist"),
    ("data-000004.tar", None, "IndexMismatchError", "the index"),
]


@pytest.mark.parametrize("engine", [None, LocalEngine(2)])
def test_all_problems_are_in_one_report(tmp_path, engine):
    told = []
    report = lint_dataset(str(damaged(tmp_path)), engine=engine, on_problem=told.append)
    found = [(p.shard, p.sample, p.kind) for p in report.problems]
    assert found == [expected[:3] for expected in EXPECTED]
    for problem, (_, _, _, text) in zip(report.problems, EXPECTED, strict=True):
        assert text in str(problem)
    assert tuple(told) == report.problems
    assert (report.shards, report.bad_shards, report.samples) == (5, 3, 20)
    assert (report.made, report.failed) == ({"train": 4, "val": 4}, {"train": 4, "val": 0})


def test_the_command_is_a_gate(tmp_path):
    data = damaged(tmp_path)
    result = run(data, "--json")
    report = json.loads(result.stdout)
    assert (result.exit_code, report["clean"], len(report["problems"])) == (1, False, len(EXPECTED))
    assert (result.stderr, report["problems"][0]["sample"]) == ("", "00000001")
    assert run(data).stderr.count("\n") == len(EXPECTED)
    clean = run(tmp_path / "pictures", "--json")
    assert (clean.exit_code, json.loads(clean.stdout)["clean"]) == (0, True)
    for wrong in (["--part", "4/4"], ["--sample-rate", "2"], ["--ray-address", "x:1"]):
        assert run(data, *wrong).exit_code != 0


def test_tars_that_are_not_prepared_are_checked(tmp_path):
    captioning_dataset(tmp_path, shards=3, samples_per_shard=4)
    assert run(tmp_path).exit_code == 0
    braces = f"{tmp_path}/data-{{000000..000001}}.tar"
    assert (run(braces).exit_code, "8 samples in 2 shards" in run(braces).stdout) == (0, True)
    (tmp_path / "same.tar").write_bytes((tmp_path / "data-000001.tar").read_bytes())
    (tmp_path / "short.tar").write_bytes((tmp_path / "data-000001.tar").read_bytes()[:3000])
    report = lint_dataset(str(tmp_path))
    assert [(p.shard, p.kind) for p in report.problems] == [
        ("short.tar", "CorruptTarError"),
        ("same.tar", "DuplicateKeyError"),
    ]
    assert "4 sample keys are those of another tar, such as data-000001.tar" in report.problems[1].what
    with pytest.raises(ConfigError, match="no split parts"):
        lint_dataset(str(tmp_path), split_parts=["train"])


def test_parts_of_the_shards_are_those_of_the_whole(tmp_path):
    data = str(damaged(tmp_path))
    reports = [lint_dataset(data, part=Part(number, 3)) for number in range(3)]
    found = {problem for report in reports for problem in report.problems}
    assert found == set(lint_dataset(data).problems)
    assert sum(report.shards for report in reports) == 5


def test_only_what_is_looked_at_is_fetched_and_once(s3_server, tmp_bucket, tmp_path):
    write_shards(
        tmp_path, shards=2, samples_per_shard=40, parts=lambda i: {"bin": bytes(20_000), "txt": b"t"}
    )
    prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0))
    s3_server.upload_folder(tmp_path, f"{tmp_bucket}/d")
    content = sum(path.stat().st_size for path in tmp_path.glob("*.tar"))
    fetched = {}
    for rate in (0.1, 1.0):
        s3_server.reset_counters()
        report = lint_dataset(f"{tmp_bucket}/d", share=rate, storage_options=s3_server.storage_options)
        assert (report.is_clean, report.samples) == (True, 80)
        fetched[rate] = s3_server.counters().bytes_sent
        assert fetched[rate] < report.size + 20_000  # the rest is metadata
    assert 0 < lint_dataset(str(tmp_path), share=0.1).made["train"] < 25
    assert fetched[0.1] < content / 3
    assert content <= fetched[1.0] < content + 20_000


def test_a_shard_that_changes_meanwhile_is_a_problem_of_the_shard(tmp_path):
    captioning_dataset(tmp_path, shards=3, samples_per_shard=2)

    def replaced(read, path, *arguments, **options):
        if path == "data-000001.tar":
            other = tmp_path / "other"
            other.write_bytes((tmp_path / path).read_bytes())
            other.replace(tmp_path / path)
        return read(path, *arguments, **options)

    report = lint_dataset(hooked(tmp_path, get=replaced, get_range=replaced))
    assert [(p.shard, p.kind) for p in report.problems] == [("data-000001.tar", "ObjectChangedError")]
    assert report.made == {"all tars": 4}


def test_videos_that_ffmpeg_turns_are_named(tmp_path):
    source = ["-f", "lavfi", "-i", "testsrc2=s=64x48:r=5:d=0.4", "-c:v", "mpeg4"]
    ffmpeg(*source, "upright.mp4", cwd=tmp_path)
    for angle, name in ((90, "left.mp4"), (180, "down.mkv"), (-90, "right.MOV")):
        ffmpeg("-display_rotation", str(angle), "-i", "upright.mp4", "-c", "copy", name, cwd=tmp_path)
    with tarfile.open(tmp_path / "videos.tar", "w") as tar:
        for path in sorted(path for path in tmp_path.iterdir() if path.suffix != ".tar"):
            tar.add(path, path.name)
    (remark,) = [one.what for one in lint_dataset(str(tmp_path)).remarks if "rotation" in one.what]
    assert remark.startswith("3 videos have a rotation")
    assert remark.endswith(": down.mkv, left.mp4, right.MOV")
