"""diff, merge, split and sample: what they make, what they fetch, and that sources stay as they are."""

import json
import tarfile

import pytest
from click.testing import CliRunner

from energon_stream import (
    WorkerConfig,
    diff_datasets,
    get_val_dataset,
    lint_dataset,
    map_shards,
    merge_datasets,
    sample_dataset,
    split_dataset,
)
from energon_stream.cli.main import main
from energon_stream.engine.processes import LocalEngine
from energon_stream.engine.tasks import Part
from energon_stream.errors import ConfigError, DuplicateKeyError, NotPreparedError
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import TEXT_YAML, write_shards


def make(
    folder, *, shards=3, samples=4, first=0, text="text {}", tar_format=tarfile.USTAR_FORMAT, config=TEXT_YAML
):
    """A prepared dataset of texts; two thirds of the shards are in train."""

    def parts(i):
        return {"txt": text.format(i + first).encode(), "bin": bytes(1000)}

    write_shards(
        folder,
        shards=shards,
        samples_per_shard=samples,
        parts=parts,
        key=f"k{first}-{{:04d}}",
        tar_format=tar_format,
    )
    prepare_dataset(str(folder), split_ratio=(2, 1, 0), dataset_yaml=config)
    return str(folder)


def texts(url, split="train", **options):
    config = WorkerConfig(0, 1, 0)
    dataset = get_val_dataset(url, batch_size=None, split_part=split, worker_config=config, **options)
    return {sample.__key__.rpartition("/")[2]: sample.text for sample in dataset}


def content(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_equal_datasets_have_no_difference(tmp_path):
    first, second = make(tmp_path / "a"), make(tmp_path / "b", tar_format=tarfile.PAX_FORMAT)
    assert diff_datasets(first, second).is_equal
    done = run("diff", first, second, "--parallel", 2)
    assert (done.exit_code, done.stdout) == (0, "The samples are the same.\n")


def test_each_difference_is_named(tmp_path):
    first = make(tmp_path / "a")
    second = make(
        tmp_path / "b", shards=4, samples=3, text="Text {}", config={**TEXT_YAML, "subflavors": {"a": 1}}
    )
    found = diff_datasets(first, second, most=3)
    assert found.only_second_shards == ("data-000003.tar",)
    assert found.counts == {f"data-00000{number}.tar": (4, 3) for number in range(3)}
    assert (found.only_first, found.only_second, found.changed) == (0, 0, 12)
    assert found.changed_keys == tuple(f"data-000000.tar/k0-000{number}" for number in range(3))
    assert found.metadata == ("split.yaml", "dataset.yaml")
    assert diff_datasets(first, second, content=False).same_samples  # the sizes are the same
    third = make(tmp_path / "c", first=5)
    found = diff_datasets(first, third)
    assert (found.only_first, found.only_second, found.changed) == (12, 12, 0)
    done = run("diff", first, third, "--json")
    assert (done.exit_code, json.loads(done.stdout)["only_first"]) == (1, 12)
    assert "12 samples only in" in run("diff", first, third).stdout


def test_a_merged_dataset_has_all_samples_in_their_splits(tmp_path):
    first, second = make(tmp_path / "a"), make(tmp_path / "b", first=100)
    before = content(tmp_path)
    merged = str(tmp_path / "all")
    assert sum(merge_datasets([first, second], merged, engine=LocalEngine(2)).values()) == 24
    for split in ("train", "val"):
        assert texts(merged, split) == {**texts(first, split), **texts(second, split)}
    assert lint_dataset(merged).is_clean
    assert {path: data for path, data in content(tmp_path).items() if path in before} == before
    copied = (tmp_path / "all/a/data-000001.tar").read_bytes()
    assert copied == (tmp_path / "a/data-000001.tar").read_bytes()
    assert not (tmp_path / "all/.nv-meta/writing").exists()


def test_a_merge_that_was_stopped_goes_on(tmp_path):
    sources, done = [make(tmp_path / "a"), make(tmp_path / "b", first=100)], []

    def stop(number, total):
        done.append(number)
        if number == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        merge_datasets(sources, str(tmp_path / "all"), on_done=stop)
    with pytest.raises(NotPreparedError):
        diff_datasets(str(tmp_path / "all"), sources[0])
    with pytest.raises(ConfigError, match="not the one"):
        merge_datasets(sources[:1], str(tmp_path / "all"))
    merge_datasets(sources, str(tmp_path / "all"), on_done=stop)
    assert done == [1, 2, 3, 4, 5, 6]
    assert lint_dataset(str(tmp_path / "all")).made == {"train": 16, "val": 8}


def test_what_cannot_be_merged_is_refused(tmp_path):
    first, second = make(tmp_path / "a"), make(tmp_path / "b")
    with pytest.raises(DuplicateKeyError, match="appears twice"):
        merge_datasets([first, second], str(tmp_path / "all"))
    other = make(tmp_path / "c", config={"__module__": "megatron.energon", "__class__": "CrudeWebdataset"})
    with pytest.raises(ConfigError, match="different sample types"):
        merge_datasets([first, other], str(tmp_path / "new"))
    with pytest.raises(ConfigError, match="lies inside"):
        merge_datasets([first], f"{first}/new")
    with pytest.raises(ConfigError, match="has a dataset already"):
        merge_datasets([first], second)
    assert not (tmp_path / "new").exists()


def test_a_ratio_divides_all_samples(tmp_path):
    source = make(tmp_path / "a", shards=4, samples=50)
    targets = {"big": str(tmp_path / "big"), "small": str(tmp_path / "small")}
    counts = split_dataset(source, targets, ratio={"big": 3, "small": 1}, max_count=40)
    assert sum(counts.values()) == 200
    assert 25 < counts["small"] < 75
    big, small = texts(targets["big"]), texts(targets["small"])
    assert {**big, **small} == {**texts(source), **texts(source, "val")}
    assert not big.keys() & small.keys()
    assert split_dataset(source, targets, ratio={"big": 3, "small": 1}, max_count=40) == counts
    assert lint_dataset(targets["big"]).is_clean


def test_keys_divide_samples(tmp_path):
    source = make(tmp_path / "a")
    (tmp_path / "val.txt").write_text("k0-0003\nk0-0009\n")
    done = run(
        "split",
        source,
        f"v={tmp_path}/v",
        f"t={tmp_path}/t",
        "--keys",
        f"v={tmp_path}/val.txt",
        "--rest",
        "t",
    )
    assert (done.exit_code, done.stdout) == (0, "v: 2 samples\nt: 10 samples\n")
    assert texts(str(tmp_path / "v")) == {"k0-0003": "text 3", "k0-0009": "text 9"}
    (tmp_path / "val.txt").write_text("k0-0003\nnone\n")
    wrong = [f"v={tmp_path}/val.txt"], [f"x={tmp_path}/val.txt"], [f"v={tmp_path}/no.txt"]
    for (keys,), text in zip(
        wrong, ("1 key is not in the dataset", "needs a target", "cannot be read"), strict=True
    ):
        done = run("split", source, f"v={tmp_path}/new", "--keys", keys)
        assert (done.exit_code, text in done.stderr) == (1 if "cannot" in text else 2, True), done.stderr
    assert not (tmp_path / "new").exists()


def test_a_sample_fetches_its_own_ranges_only(s3_server, tmp_bucket, tmp_path):
    write_shards(
        tmp_path / "a", shards=8, samples_per_shard=50, parts=lambda i: {"bin": i.to_bytes(4) * 5000}
    )
    prepare_dataset(str(tmp_path / "a"), split_ratio=(1, 0, 0))
    s3_server.upload_folder(tmp_path / "a", f"{tmp_bucket}/a")
    s3_server.reset_counters()
    options = s3_server.storage_options
    assert sample_dataset(f"{tmp_bucket}/a", f"{tmp_bucket}/few", count=12, storage_options=options) == 12
    fetched = [
        entry.bytes
        for entry in s3_server.log()
        if entry.key.endswith(".tar") and entry.method == "GET" and "/a/" in entry.key
    ]
    assert sum(fetched) == 12 * 20_992  # a header and padded content: 41 records
    report = lint_dataset(f"{tmp_bucket}/few", storage_options=options)
    assert (report.is_clean, report.samples) == (True, 12)
    assert diff_datasets(f"{tmp_bucket}/few", f"{tmp_bucket}/a", storage_options=options).changed == 0


def test_samples_are_named_by_number_share_or_key(tmp_path):
    source = make(tmp_path / "a", shards=4, samples=25)
    drawn = [str(tmp_path / f"{number}") for number in range(3)]
    assert sample_dataset(source, drawn[0], count=10, seed=1) == 10
    assert sample_dataset(source, drawn[1], share=0.1, seed=1) == 10
    assert sample_dataset(source, drawn[2], count=10, seed=2) == 10
    assert texts(drawn[0]) == texts(drawn[1]) != texts(drawn[2])
    (tmp_path / "keys").write_text("k0-0098\nk0-0002\n")
    done = run("sample", source, tmp_path / "keyed", "--keys", tmp_path / "keys")
    assert done.exit_code == 0, done.output
    assert texts(str(tmp_path / "keyed")) == {"k0-0002": "text 2", "k0-0098": "text 98"}
    for wrong in ({}, {"count": 1, "share": 0.5}, {"count": 101}):
        with pytest.raises(ConfigError):
            sample_dataset(source, str(tmp_path / "new"), **wrong)


def texts_of(shard):
    return shard.path, [bytes(sample["txt"]) for sample in shard.samples()]


def test_a_function_runs_over_all_shards(s3_server, tmp_bucket, tmp_path):
    s3_server.upload_folder(make(tmp_path / "a"), f"{tmp_bucket}/a")
    expected = [(f"data-00000{n}.tar", [b"text %d" % i for i in range(4 * n, 4 * n + 4)]) for n in range(3)]
    options = {"in_order": True, "storage_options": s3_server.storage_options}
    assert list(map_shards(f"{tmp_bucket}/a", texts_of, **options)) == expected
    assert list(map_shards(f"{tmp_bucket}/a", texts_of, part=Part(1, 2), **options)) == expected[1::2]
