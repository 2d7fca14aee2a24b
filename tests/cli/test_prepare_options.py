"""Options of ``prepare`` and ``prepare-media``: duplicates, names of files, the temporary folder."""

import io
import json
import tarfile

import pytest
from click.testing import CliRunner

from energon_stream import WorkerConfig, get_val_dataset
from energon_stream.cli.main import energon, main
from energon_stream.compat.dataset_classes import BaseWebdatasetFactory
from energon_stream.errors import ConfigError, DuplicateKeyError
from energon_stream.index.yaml_io import load_yaml
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import captioning_dataset

TEXTS = ["--sample-type", "TextSample", "--field-map", '{"text": "txt"}']
HOW = ["--non-interactive", "--split-ratio", "1,0,0", *TEXTS]
CONFIG = WorkerConfig(0, 1, 0)


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def write_tar(path, keys, tar_format=tarfile.USTAR_FORMAT, links=()):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=tar_format) as tar:
        for key in keys:
            data = f"{path.name}: {key}".encode()
            member = tarfile.TarInfo(f"{key}.txt")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        for name, target, kind in links:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            tar.addfile(member)


def names(path):
    with tarfile.open(path) as tar:
        return tar.getnames()


def texts(path, **options):
    dataset = get_val_dataset(path, batch_size=None, split_part="train", worker_config=CONFIG, **options)
    return {sample.__key__: sample.text for sample in dataset}


@pytest.fixture
def shared_keys(tmp_path):
    """Three tars of different formats, with keys in common and names that do not fit after renaming."""
    folder = tmp_path / "data"
    write_tar(folder / "a.tar", ["x", "sub/y"])
    write_tar(folder / "b.tar", ["x", "l" * 98, "é" * 120], tarfile.GNU_FORMAT)
    write_tar(folder / "deep" / "c.tar", ["x", "z" * 240], tarfile.PAX_FORMAT)
    return folder


@pytest.mark.energon("cli: prepare --fix-duplicates")
def test_members_of_tars_with_shared_keys_are_renamed(shared_keys):
    refused = run("prepare", shared_keys, *HOW)
    assert refused.exit_code == 1
    assert "pass --fix-duplicates" in refused.output
    result = run("prepare", shared_keys, *HOW, "--fix-duplicates")
    assert result.exit_code == 0, result.output
    assert names(shared_keys / "a.tar") == ["a.tar/x.txt", "a.tar/sub/y.txt"]
    assert names(shared_keys / "deep" / "c.tar") == ["deep/c.tar/x.txt", f"deep/c.tar/{'z' * 240}.txt"]
    assert texts(shared_keys) == {
        "a.tar/a.tar/x": "a.tar: x",
        "a.tar/a.tar/sub/y": "a.tar: sub/y",
        "b.tar/b.tar/x": "b.tar: x",
        f"b.tar/b.tar/{'l' * 98}": f"b.tar: {'l' * 98}",
        f"b.tar/b.tar/{'é' * 120}": f"b.tar: {'é' * 120}",
        "deep/c.tar/deep/c.tar/x": "c.tar: x",
        f"deep/c.tar/deep/c.tar/{'z' * 240}": f"c.tar: {'z' * 240}",
    }


def test_renaming_goes_on_where_it_was_interrupted(shared_keys):
    prepare_dataset(str(shared_keys), split_ratio=(1, 0, 0), fix_duplicates=True)
    renamed = names(shared_keys / "b.tar")
    for name in ("a.tar", "e.tar"):
        write_tar(shared_keys / name, ["x"])
    prepare_dataset(str(shared_keys), split_ratio=(1, 0, 0), fix_duplicates=True, force=True)
    assert names(shared_keys / "a.tar") == ["a.tar/x.txt"]
    assert names(shared_keys / "b.tar") == renamed


def test_unique_keys_are_not_renamed(tmp_path):
    write_tar(tmp_path / "a.tar", ["x"])
    write_tar(tmp_path / "b.tar", ["y"])
    before = (tmp_path / "a.tar").read_bytes()
    prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0), fix_duplicates=True)
    assert (tmp_path / "a.tar").read_bytes() == before


@pytest.mark.energon("cli: prepare --fix-duplicates")
def test_a_key_twice_in_one_tar_changes_no_tar(tmp_path):
    write_tar(tmp_path / "a.tar", ["x"])
    write_tar(tmp_path / "b.tar", ["x", "y", "x"])
    with pytest.raises(DuplicateKeyError, match=r"'x' appears 2 times in one tar .*b\.tar"):
        prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0), fix_duplicates=True)
    assert names(tmp_path / "a.tar") == ["x.txt"]


def test_links_and_folders_are_renamed_too(tmp_path):
    links = [("f", "", tarfile.DIRTYPE), ("h", "x.txt", tarfile.LNKTYPE), ("s", "x.txt", tarfile.SYMTYPE)]
    write_tar(tmp_path / "a.tar", ["x"], links=links)
    write_tar(tmp_path / "b.tar", ["x"])
    prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0), fix_duplicates=True)
    with tarfile.open(tmp_path / "a.tar") as tar:
        assert [(m.name, m.linkname) for m in tar] == [
            ("a.tar/x.txt", ""), ("a.tar/f", ""), ("a.tar/h", "a.tar/x.txt"), ("a.tar/s", "x.txt")
        ]  # fmt: skip
        assert tar.extractfile("a.tar/h").read() == b"a.tar: x"


def test_tars_on_object_storage_are_renamed(shared_keys, s3_server, tmp_bucket):
    s3_server.upload_folder(shared_keys, f"{tmp_bucket}/d")
    options = {"storage_options": s3_server.storage_options}
    prepare_dataset(f"{tmp_bucket}/d", split_ratio=(1, 0, 0), fix_duplicates=True, **options)
    found = texts(f"{tmp_bucket}/d", sample_type="TextSample", field_map={"text": "txt"}, **options)
    assert found["a.tar/a.tar/x"] == "a.tar: x"
    assert len(found) == 7


def test_renaming_needs_the_whole_index(shared_keys):
    with pytest.raises(ConfigError, match="tar_index_only excludes fix_duplicates"):
        prepare_dataset(str(shared_keys), tar_index_only=True, fix_duplicates=True)


@pytest.mark.energon(
    "cli: prepare --dataset-yaml-name", "cli: prepare --sample-type", "cli: prepare --field-map"
)
def test_dataset_yaml_has_the_given_name(tmp_path):
    write_tar(tmp_path / "a.tar", ["x"])
    result = run("prepare", tmp_path, *HOW, "--dataset-yaml-name", "texts.yaml")
    assert result.exit_code == 0, result.output
    assert not (tmp_path / ".nv-meta" / "dataset.yaml").exists()
    document = load_yaml((tmp_path / ".nv-meta" / "texts.yaml").read_bytes(), "texts.yaml")
    assert document["field_map"] == {"text": "txt"}
    assert texts(tmp_path, dataset_config="texts.yaml") == {"a.tar/x": "a.tar: x"}
    refused = run("prepare", tmp_path, *HOW, "--force-overwrite", "--dataset-yaml-name", "../texts.yaml")
    assert refused.exit_code == 2
    assert "--dataset-config is" in refused.output


@pytest.mark.energon(
    "cli: prepare --skip-dataset-yaml", "cli: prepare --split-ratio", "cli: prepare --non-interactive"
)
def test_no_dataset_yaml(tmp_path):
    write_tar(tmp_path / "a.tar", ["x"])
    how = ["--non-interactive", "--split-ratio", "1,0,0", "--skip-dataset-yaml"]
    assert run("prepare", tmp_path, *how).exit_code == 0
    assert not (tmp_path / ".nv-meta" / "dataset.yaml").exists()


def test_energon_prepares_where_megatron_energon_does(tmp_path, caplog):
    """Megatron-Energon 7.4.1 ends with status 0 in both cases; see tests/interop/test_cli_interop.py."""
    write_tar(tmp_path / "a.tar", ["x"])
    how = [
        "prepare",
        str(tmp_path),
        "--non-interactive",
        "--split-parts",
        "train:a",
        "--split-parts",
        "val:nothing",
    ]
    refused = CliRunner().invoke(main, [*how, "--skip-dataset-yaml"])
    assert (refused.exit_code, "'val:nothing' matches no shard" in refused.output) == (2, True)
    done = CliRunner().invoke(energon, how)
    assert done.exit_code == 0, done.output
    assert "--sample-type is missing" in done.stderr
    assert not (tmp_path / ".nv-meta" / "dataset.yaml").exists()
    split = load_yaml((tmp_path / ".nv-meta" / "split.yaml").read_bytes(), "split.yaml")
    assert split["split_parts"] == {"train": ["a.tar"], "val": []}
    assert "the split pattern 'val:nothing' matches no shard" in caplog.text
    assert (
        CliRunner()
        .invoke(main, ["prepare", str(tmp_path), *HOW[:1], "--split-ratio", "1,0,0", "--force-overwrite"])
        .exit_code
        == 2
    )


@pytest.mark.energon("cli: prepare --tmp-path", "cli: prepare-media --tmp-path")
def test_files_are_built_in_the_given_folder(tmp_path, monkeypatch):
    captioning_dataset(tmp_path / "data", shards=1, samples_per_shard=2)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    how = ["--non-interactive", "--split-ratio", "1,0,0", "--skip-dataset-yaml", "--fix-duplicates"]
    result = run("prepare", tmp_path / "data", *how, "--tmp-path", tmp_path / "new" / "tmp")
    assert result.exit_code == 0, result.output
    media = ["--media-metadata-by-extension", "--tmp-path", tmp_path / "other"]
    result = run("prepare-media", tmp_path / "data", *media)
    assert result.exit_code == 0, result.output
    assert list((tmp_path / "new" / "tmp").iterdir()) == list((tmp_path / "other").iterdir()) == []


@pytest.mark.energon("BaseWebdatasetFactory.prepare_dataset")
def test_the_class_method_takes_all_options(shared_keys, tmp_path):
    parts = BaseWebdatasetFactory.prepare_dataset(
        shared_keys,
        ["*.tar", "deep/c.tar"],
        split_parts_ratio=[("train", 1.0)],
        split_config="halves.yaml",
        fix_duplicates=True,
        index_sqlite_tmp_path=tmp_path / "tmp",
    )
    assert parts == {"txt"}
    assert names(shared_keys / "a.tar")[0] == "a.tar/x.txt"
    assert not (shared_keys / ".nv-meta" / "split.yaml").exists()
    how = {"sample_type": "TextSample", "field_map": {"text": "txt"}}
    assert len(texts(shared_keys, split_config="halves.yaml", **how)) == 7


@pytest.mark.energon(
    "cli: prepare --split-parts", "cli: prepare --exclude", "cli: prepare --num-workers", "cli: prepare --shuffle-tars",
    "cli: prepare --force-overwrite", "cli: prepare --progress/--no-progress", "cli: prepare --tar-index-only",
)  # fmt: skip
def test_shards_are_chosen_split_and_shuffled(tmp_path):
    captioning_dataset(tmp_path, shards=6, samples_per_shard=1)
    how = ["--non-interactive", "--skip-dataset-yaml", "--num-workers", "2", "--exclude", "000005"]
    parts = ["--split-parts", "train:data-00000[0-3].tar", "--split-parts", "val:data-000004.tar"]
    result = run("prepare", tmp_path, *how, *parts, "--progress")
    assert result.exit_code == 0, result.output
    split = load_yaml((tmp_path / ".nv-meta" / "split.yaml").read_bytes(), "")["split_parts"]
    assert split == {"train": ["data-{000000..000003}.tar"], "val": ["data-000004.tar"]}
    assert len(json.loads((tmp_path / ".nv-meta" / ".info.json").read_text())["shard_counts"]) == 5
    again = ["--split-ratio", "3,2,0", "--shuffle-tars", "--no-progress"]
    assert run("prepare", tmp_path, *how, *again).exit_code == 2
    assert run("prepare", tmp_path, *how, *again, "--force-overwrite").exit_code == 0
    shuffled = load_yaml((tmp_path / ".nv-meta" / "split.yaml").read_bytes(), "")["split_parts"]
    assert shuffled["train"] != ["data-{000000..000002}.tar"]
    (tmp_path / "data-000000.tar.idx").unlink()
    assert run("prepare", tmp_path, "--tar-index-only").exit_code == 0
    assert (tmp_path / "data-000000.tar.idx").exists()


@pytest.mark.energon(
    "cli: prepare --media-metadata-by-glob", "cli: prepare --media-metadata-by-header",
    "cli: prepare --media-metadata-by-extension", "cli: prepare-media --media-metadata-by-glob",
    "cli: prepare-media --media-metadata-by-header", "cli: prepare-media --media-metadata-by-extension",
    "cli: prepare-media --num-workers", "cli: prepare-media --progress/--no-progress",
)  # fmt: skip
@pytest.mark.parametrize("option", ["by-glob=*.jpg", "by-header", "by-extension"])
def test_media_are_indexed(tmp_path, option):
    captioning_dataset(tmp_path, shards=2, samples_per_shard=3)
    media = f"--media-metadata-{option}"
    how = ["--non-interactive", "--split-ratio", "1,0,0", "--skip-dataset-yaml"]
    assert "media metadata of 6 files" in run("prepare", tmp_path, *how, media).output
    result = run("prepare-media", tmp_path, media, "--num-workers", "2", "--no-progress")
    assert "media metadata of 6 files" in result.output
