"""The ``energon`` command: its subcommands, its conventions, and that Megatron-Energon's own goes first."""

import os
import sys
from pathlib import Path

import children
import pytest
from click.testing import CliRunner

from energon_stream import WorkerConfig, get_savable_loader, get_train_dataset
from energon_stream.cli.main import energon, main
from energon_stream.conventions import conventions
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.state import dumps
from energon_stream.testing.datasets import (
    CRUDE_YAML,
    captioning_dataset,
    prepared_captioning_dataset,
    write_shards,
)

RUN = "from energon_stream.cli import run_energon as run; run()"
LIKE_7_4_1 = {
    "analyze-debug": "--heatmap-path --heatmap-steps --heatmap-samples --heatmap-gain --force-loading-order "
    "--include-modality --skip --no-colors",
    "checkpoint info": "",
    "checkpoint redist": "--new-world-size",
    "info": "--split-config --dataset-config",
    "lint": "--split-parts --dataset-config --split-config --parallel",
    "prepare": "--progress --no-progress --split-parts --exclude --num-workers --tar-index-only --shuffle-tars "
    "--media-metadata-by-glob --media-metadata-by-header --media-metadata-by-extension --fix-duplicates "
    "--non-interactive --split-ratio --force-overwrite --skip-dataset-yaml --dataset-yaml-name --sample-type "
    "--field-map --tmp-path",
    "prepare-media": "--progress --no-progress --num-workers --media-metadata-by-glob --media-metadata-by-header "
    "--media-metadata-by-extension --tmp-path",
    "preview": "--split-parts --dataset-config",
}  # fmt: skip


def run(*arguments, answers="", command=energon):
    return CliRunner().invoke(command, [str(argument) for argument in arguments], input=answers)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("energon") / "data"
    return prepared_captioning_dataset(path, shards=4, samples_per_shard=3, split_ratio=(2, 1, 1))


@pytest.fixture(scope="module")
def crude(tmp_path_factory):
    path = tmp_path_factory.mktemp("energon") / "crude"
    write_shards(
        path, shards=1, samples_per_shard=2, parts=lambda i: {"json": b'{"a": [1, "x"]}', "raw": b"123"}
    )
    prepare_dataset(str(path), split_ratio=(1, 0, 0), dataset_yaml=CRUDE_YAML)
    return path


@pytest.mark.energon(
    "cli: analyze-debug",
    "cli: checkpoint info",
    "cli: checkpoint redist",
    "cli: info",
    "cli: lint",
    "cli: prepare",
    "cli: prepare-media",
    "cli: preview",
)
@pytest.mark.parametrize("command", LIKE_7_4_1)
def test_all_commands_and_options_of_7_4_1_exist(command):
    result = run(*command.split(), "--help")
    assert result.exit_code == 0, result.output
    words = result.output.replace(",", " ").split()
    assert set(LIKE_7_4_1[command].split()) <= set(words)
    assert run(*command.split(), "-h").output == result.output
    assert run(*command.split(), "--help", command=main).exit_code == 0


@pytest.mark.energon("cli: --version", "cli: -V", differs="prints the version of energon-stream too")
def test_the_version_names_both():
    for flag in ("--version", "-V"):
        assert run(flag).output.startswith("energon-stream ")
        assert "megatron-energon 7.4.1" in run(flag).output
    assert run().exit_code == 0
    assert "prepare-media" in run().output
    assert run("prewarm").exit_code == 2


@pytest.mark.energon("cli: prepare")
def test_the_last_line_is_done(tmp_path):
    captioning_dataset(tmp_path, shards=2, samples_per_shard=2)
    how = ["--non-interactive", "--split-ratio", "1,1,0", "--skip-dataset-yaml"]
    result = run("prepare", tmp_path, *how)
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "Done")
    assert "Done" not in run("prepare", tmp_path, *how, "--force-overwrite", command=main).output
    assert run("prepare-media", tmp_path, "--media-metadata-by-header").stdout.splitlines()[-1] == "Done"


def test_conventions_hold_for_the_run_only(folder):
    assert " - __key__ (<class 'str'>): '00000000'" in run("preview", folder).output
    assert conventions() == "own"
    assert "'data-000000.tar/00000000'" in run("preview", folder, command=main).output


@pytest.mark.parametrize("installed", [True, False])
def test_megatron_energons_own_command_goes_first(tmp_path, installed):
    (tmp_path / "theirs.py").write_text("def main():\n    print('theirs')\n    return 3\n")
    about = tmp_path / "megatron_energon-7.4.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: megatron-energon\nVersion: 7.4.1\n")
    if installed:
        (about / "entry_points.txt").write_text("[console_scripts]\nenergon = theirs:main\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = children.run("-c", RUN, "-V", env={**os.environ, "PYTHONPATH": path})
    expected = (3, "theirs\n") if installed else (0, run("-V").output)
    assert (done.returncode, done.stdout) == expected, done.stderr


@pytest.mark.energon("cli: info --split-config", "cli: info --dataset-config", differs="prints other words")
def test_info_reads_the_named_files(folder):
    meta = folder / ".nv-meta"
    (meta / "other.yaml").write_text("split_parts: {halves: ['data-000000.tar']}\nexclude: []\n")
    (meta / "texts.yaml").write_text("__module__: megatron.energon\n__class__: CrudeWebdataset\n")
    result = run("info", folder, "--split-config", "other.yaml", "--dataset-config", "texts.yaml")
    assert result.exit_code == 0, result.output
    assert "halves: 3 samples in 1 shard\n" in result.output
    assert "CrudeWebdataset" in result.output


@pytest.mark.energon("cli: lint --split-parts", differs="ends with status 2, not 1, if there is no such part")
def test_lint_makes_the_samples_of_the_named_parts(folder):
    result = run("lint", folder, "--split-parts", "val,test")
    assert result.exit_code == 0, result.output
    assert result.output.startswith("Checking the index files...")
    assert "val: 3 samples made, 0 errors\ntest: 3 samples made, 0 errors" in result.output
    assert "train" not in result.output
    assert run("lint", folder, "--split-parts", "none").exit_code == 2


@pytest.mark.energon("cli: lint --dataset-config", "cli: lint --split-config")
def test_lint_reads_the_named_files(folder):
    (folder / ".nv-meta" / "one.yaml").write_text("split_parts: {one: ['data-000003.tar']}\nexclude: []\n")
    (folder / ".nv-meta" / "bad.yaml").write_text(
        "sample_type: {__module__: megatron.energon, __class__: TextSample}\nfield_map: {text: gif}\n"
    )
    assert "one: 3 samples made, 0 errors" in run("lint", folder, "--split-config", "one.yaml").output
    result = run("lint", folder, "--dataset-config", "bad.yaml", "--split-config", "one.yaml")
    assert (result.exit_code, "one: 0 samples made, " in result.output) == (1, True), result.output
    result = run("lint", folder, "--dataset-config", "absent.yaml")
    assert (result.exit_code, "absent.yaml" in result.output) == (1, True)


@pytest.mark.energon("cli: lint --parallel")
@pytest.mark.parametrize("parallel", [1, 2])
def test_lint_counts_failures_of_all_processes(tmp_path, parallel):
    def parts(i):
        return {"txt": b"\xff" if i in (1, 5, 9) else b"a"}

    write_shards(tmp_path, shards=4, samples_per_shard=3, parts=parts)
    text = {
        "sample_type": {"__module__": "megatron.energon", "__class__": "TextSample"},
        "field_map": {"text": "txt"},
    }
    prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0), dataset_yaml=text)
    result = run("lint", tmp_path, "--parallel", parallel)
    assert result.exit_code == 1
    assert "train: 9 samples made, 3 errors" in result.output


@pytest.mark.energon(
    "cli: preview --split-parts", differs="ends with status 2, not 1, if there is no such part"
)
def test_preview_asks_after_each_sample(folder):
    result = run("preview", folder, "--split-parts", "val,test", answers="y\ny\ny\nn\n")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[:3] == [
        "Sample 0",
        " - __key__ (<class 'str'>): '00000006'",
        " - image (<class 'torch.Tensor'>): Tensor(shape=(3, 12, 16), dtype=torch.float32)",
    ]
    assert result.output.count("Continue? [y/N]: ") == 4
    numbers = [line.rpartition(" ")[2] for line in lines if "Sample " in line]
    assert numbers == ["0", "1", "2", "0"]
    assert lines[-1].endswith("Exiting Preview")


@pytest.mark.energon("cli: preview")
def test_preview_ends_with_its_input(folder):
    result = run("preview", folder)
    assert result.exit_code == 0, result.output
    assert result.output.count("__key__") == 1
    assert result.output.endswith("Exiting Preview\n")


@pytest.mark.energon("cli: preview --dataset-config")
def test_preview_describes_parts_of_crude_samples(folder, crude):
    result = run("preview", crude, answers="y\ny\n")
    assert result.exit_code == 0, result.output
    assert " - json (<class 'dict'>): {'a': [1, 'x']}" in result.output
    assert result.output.count(" - raw (<class 'bytes'>): 3 bytes") == 2
    (folder / ".nv-meta" / "crude.yaml").write_text(
        "__module__: megatron.energon\n__class__: CrudeWebdataset\n"
    )
    assert " - jpg (" in run("preview", folder, "--dataset-config", "crude.yaml").output


def test_preview_shows_other_datasets_and_failures(folder, tmp_path):
    mix = tmp_path / "mix.yaml"
    mix.write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits: {few: {path: "
        + str(folder)
        + ", split_part: val}}\n"
    )
    assert "'00000006'" in run("preview", mix).output
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"a": 1}\n')
    assert run("prepare", lines).output.endswith("Done. Found 1 samples.\n")
    assert "{'a': 1}" in run("preview", lines).output
    write_shards(
        tmp_path / "bad", shards=1, samples_per_shard=2, parts=lambda i: {"txt": b"\xff" if i else b"a"}
    )
    text = {
        "sample_type": {"__module__": "megatron.energon", "__class__": "TextSample"},
        "field_map": {"text": "txt"},
    }
    prepare_dataset(str(tmp_path / "bad"), split_ratio=(1, 0, 0), dataset_yaml=text)
    result = run("preview", tmp_path / "bad", answers="y\n")
    assert result.exit_code == 1
    assert "1 sample cannot be made" in result.output


@pytest.mark.energon(
    "cli: checkpoint info", "cli: checkpoint redist", "cli: checkpoint redist --new-world-size"
)
def test_checkpoints_are_shown_and_dealt(folder, tmp_path):
    options = {"batch_size": 1, "shuffle_buffer_size": None, "max_samples_per_sequence": None}
    files = []
    for rank in range(2):
        dataset = get_train_dataset(folder, worker_config=WorkerConfig(rank, 2, 0), **options)
        files.append(tmp_path / f"state_rank{rank}.bin")
        files[-1].write_bytes(dumps(get_savable_loader(dataset).save_state_rank()))
    assert "rank 0 of 2" in run("checkpoint", "info", *files).output
    result = run("checkpoint", "redist", *files, tmp_path / "out", "--new-world-size", "1")
    assert result.exit_code == 0, result.output
    assert [Path(path).name for path in (tmp_path / "out").iterdir()] == ["state_rank0.bin"]
    result = run("checkpoint", "redist", *files, tmp_path / "asked", answers="2\n")
    assert result.exit_code == 0, result.output
    assert len(list((tmp_path / "asked").iterdir())) == 2
