"""Samples are dealt to split parts in fair shares, whatever their order, and no part is empty unasked."""

import json
import tarfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner
from hooked_store import hooked
from repetitions import is_nightly

from energon_stream import LocalEngine, ShardWriter, convert_dataset, finish_dataset, split_dataset
from energon_stream.cli.main import main
from energon_stream.errors import ConfigError, StorageError
from energon_stream.testing.datasets import prepared_text_dataset
from energon_stream.write.dealing import Dealer, parse_dealing

RATIOS = [
    (8, 1, 1), (98, 1, 1), (9, 1, 0), (0.9, 0.05, 0.05), (1 / 3, 1 / 3, 1 / 3), (50, 49, 1), (0.333, 0.333, 0.334),
    {"a": 0.5, "b": 0.3, "c": 0.1, "d": 0.05, "e": 0.05},
]  # fmt: skip


def split_of(folder: Path) -> dict[str, list[str]]:
    """The keys of each split part, by split.yaml and tarfile."""
    text = (folder / ".nv-meta" / "split.yaml").read_text()
    found = {}
    for name, shards in json.loads(_as_json(text))["split_parts"].items():
        found[name] = []
        for shard in shards:
            with tarfile.open(folder / shard) as tar:
                found[name] += list(dict.fromkeys(member.split(".")[0] for member in tar.getnames()))
    return found


def _as_json(text: str) -> str:
    import yaml
    from braceexpand import braceexpand

    document = yaml.safe_load(text)
    parts = {
        name: [s for each in shards for s in braceexpand(each)]
        for name, shards in document["split_parts"].items()
    }
    return json.dumps({"split_parts": parts})


def run(*arguments: object) -> str:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    return f"{result.exit_code} {result.output}"


def files(folder: Path) -> dict[str, bytes]:
    random = ("index.uuid", "index.sqlite")
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.endswith(random))
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.mark.parametrize("ratio", RATIOS, ids=str)
def test_every_number_of_first_samples_has_fair_shares(ratio):
    shares = {n: s for n, s in zip("abcde", ratio, strict=False) if s} if isinstance(ratio, tuple) else ratio
    given = {name: share for name, share in shares.items() if share}
    dealer, counts = Dealer(parse_dealing(given)), Counter()
    for number in range(700):
        counts[dealer.part(number)] += 1
        for name, share in given.items():
            assert abs(counts[name] - (number + 1) * share / sum(given.values())) <= 1 + 1e-6


def test_periods_in_the_order_are_not_seen():
    """Chi-square of the place within ten of 3,000 samples in val: the 99.9th percentile for 9 is 27.9."""
    dealer = Dealer(parse_dealing((8, 1, 1)))
    found = Counter(number % 10 for number in range(30_000) if dealer.part(number) == "val")
    assert sum((found[place] - 300) ** 2 / 300 for place in range(10)) < 27.9


@pytest.fixture(scope="module")
def sorted_pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sorted") / "photos"
    for number in range(600):
        path = folder / f"class{number // 100}" / f"{number:04d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\xff\xd8\xff" + str(number).encode())
    return folder


@pytest.mark.every(3)
@pytest.mark.parametrize(
    "options", [(), ("--no-shuffle",), ("--max-size", "60kB"), ("--max-size", "60kB", "--no-shuffle")]
)
def test_sorted_pictures_are_dealt_within_one_sample_and_by_chance(tmp_path, sorted_pictures, options):
    """Each class in each part within chance: chi-square of 6 classes in 3 parts, 10 degrees, 99.9 %: 29.6."""
    out = tmp_path / "out"
    shown = run(
        "convert", sorted_pictures, out, "--split-ratio", "8,1,1", "--no-check", "--num-workers", 0, *options
    )
    assert "train 480, val 60, test 60" in shown, shown
    split = split_of(out)
    assert sorted(key for keys in split.values() for key in keys) == [
        f"class{number // 100}/{number:04d}" for number in range(600)
    ]
    chi = 0.0
    for keys in split.values():
        found = Counter(key.split("/")[0] for key in keys)
        chi += sum((found[f"class{n}"] - len(keys) / 6) ** 2 / (len(keys) / 6) for n in range(6))
    assert chi < 29.6
    if "--no-shuffle" not in options:  # the first tar of training has all classes, about equally often
        with tarfile.open(next(iter(sorted(out.glob("*-train-*.tar"))))) as tar:
            first = Counter(name.split("/")[0] for name in tar.getnames())
        assert len(first) == 6


def test_processes_change_no_byte(tmp_path, sorted_pictures):
    for workers in (0, 2):
        options = {"split_ratio": (8, 1, 1), "max_size": 200_000, "check": False}
        convert_dataset(sorted_pictures, tmp_path / str(workers), engine=LocalEngine(workers), **options)
    assert files(tmp_path / "0") == files(tmp_path / "2")
    assert len(list((tmp_path / "0").glob("*-val-*.tar"))) > 1


def write(url, count=100, **options):
    with ShardWriter(str(url), split_ratio=(8, 1, 1), max_count=7, **options) as writer:
        for number in range(writer.written, count):
            writer.write({"__key__": f"{number:04d}", "txt": f"{number}"})


def test_a_writer_that_deals_goes_on_anywhere(tmp_path):
    write(tmp_path / "whole")
    expected = files(tmp_path / "whole")
    assert {name: len(keys) for name, keys in split_of(tmp_path / "whole").items()} == {
        "train": 80,
        "val": 10,
        "test": 10,
    }
    for stop in (1, 8, 9, 17, 30, 63, 99) if is_nightly() else (1, 9, 63):
        folder = tmp_path / str(stop)
        writer = ShardWriter(str(folder), split_ratio=(8, 1, 1), max_count=7)
        for number in range(stop):
            writer.write({"__key__": f"{number:04d}", "txt": f"{number}"})
        writer.abort()
        write(folder)
        assert files(folder) == expected


@pytest.mark.every(2)
@pytest.mark.parametrize("refused", range(0, 30, 5))
def test_a_round_that_was_uploaded_in_part_is_written_again(tmp_path, refused):
    """The store refuses one of the tars: what is missing is written again, and nothing is left out."""
    write(tmp_path / "whole")
    tars = iter(range(1000))

    def put_file(put, path, *arguments, **options):
        if path.endswith(".tar") and next(tars) == refused:
            raise StorageError("refused", where=path)
        put(path, *arguments, **options)

    url = hooked(tmp_path / "new", put_file=put_file)
    with suppress(StorageError):
        write(url)
        pytest.fail("no tar was refused")
    write(url)
    assert files(tmp_path / "new") == files(tmp_path / "whole")


def test_several_writers_deal_and_one_finishes(tmp_path):
    for part in range(3):
        with ShardWriter(
            str(tmp_path / "a"), part=part, parts=3, split_ratio=(8, 1, 1), max_count=20
        ) as writer:
            for number in range(part, 300, 3):
                writer.write({"__key__": f"{number:04d}", "txt": f"{number}"})
    with pytest.raises(ConfigError, match="were dealt to split parts when they were written"):
        finish_dataset(str(tmp_path / "a"), split_ratio=(1, 1, 1))
    finish_dataset(str(tmp_path / "a"), split_ratio=(8, 1, 1))
    found = {name: len(keys) for name, keys in split_of(tmp_path / "a").items()}
    assert sum(found.values()) == 300
    assert all(abs(found[name] - share) <= 3 for name, share in {"train": 240, "val": 30, "test": 30}.items())


def test_an_empty_part_that_was_asked_for_is_an_error_whose_cure_works(tmp_path):
    with pytest.raises(ConfigError, match=r"(val|test).* would be empty: 5 samples"):
        write(tmp_path / "writer", 5)
    pictures = tmp_path / "photos"
    pictures.mkdir()
    for number in range(5):
        (pictures / f"{number}.jpg").write_bytes(b"\xff\xd8\xff")
    out = tmp_path / "out"
    assert "would be empty: 5 samples" in run("convert", pictures, out, "--split-ratio", "98,1,1")
    assert not out.exists()
    assert run("convert", pictures, out, "--split-ratio", "3,1,1").startswith("0")
    tars = prepared_text_dataset(tmp_path / "tars", shards=3, samples_per_shard=10)
    prepare = (
        "prepare",
        tars,
        "--non-interactive",
        "--force-overwrite",
        "--skip-dataset-yaml",
        "--split-ratio",
    )
    assert "val would be empty: 3 tars" in run(*prepare, "8,1,1")
    assert run(*prepare, "1,1,1").startswith("0")  # a whole tar each
    assert run(*prepare, "1,0,0").startswith("0")  # or the samples
    targets = [f"{name}={tmp_path / name}" for name in ("train", "val", "test")]
    shown = run("split", tars, *targets, "--ratio", "train=8,val=1,test=1", "--json")
    assert json.loads(shown.partition(" ")[2])["samples"] == {"train": 24, "val": 3, "test": 3}
    with pytest.raises(ConfigError, match="b would be empty: 30 samples"):
        split_dataset(
            str(tars), {"a": str(tmp_path / "a"), "b": str(tmp_path / "b")}, ratio={"a": 99, "b": 1}
        )


def test_converting_again_with_other_options_is_refused(tmp_path):
    source = tmp_path / "table.jsonl"
    source.write_text("".join(f'{{"text": "{number}"}}\n' for number in range(40)))
    command = ("convert", source, tmp_path / "out", "--num-workers", 0)
    assert run(*command, "--split-ratio", "8,1,1").startswith("0")
    before = files(tmp_path / "out")
    for other in (
        ("--split-ratio", "2,1,1"), (), ("--split-ratio", "8,1,1", "--max-count", "3"),
        ("--split-ratio", "8,1,1", "--sample-type", "CrudeWebdataset"),
    ):  # fmt: skip
        shown = run(*command, *other)
        assert shown.startswith("2"), shown
        assert "other options" in shown
    assert run(*command, "--split-ratio", "8,1,1.0").startswith("0")
    assert files(tmp_path / "out") == before
