"""The command line: the literal answers of the tutorials, options, errors, exit status."""

import shutil
from itertools import islice

import pytest
from click.testing import CliRunner

from energon_stream import WorkerConfig, get_loader, get_train_dataset
from energon_stream.cli.main import main
from energon_stream.index.yaml_io import load_yaml
from energon_stream.testing.datasets import captioning_dataset, prepared_captioning_dataset

CAPTIONING = {"__module__": "megatron.energon", "__class__": "CaptioningSample"}
NON_INTERACTIVE = ["--non-interactive", "--split-ratio", "8,1,1"]


def run(*arguments, answers=None):
    """Run the command; answers are the lines of standard input."""
    text = None if answers is None else "".join(f"{line}\n" for line in answers)
    return CliRunner().invoke(main, [str(argument) for argument in arguments], input=text)


def document(folder, name="dataset.yaml"):
    path = folder / ".nv-meta" / name
    return load_yaml(path.read_bytes(), name) if path.exists() else None


@pytest.fixture(scope="module")
def tars(tmp_path_factory):
    """Folders of ten tars with jpg, json and txt, and with png and txt."""
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in ("jpg", "png")}
    captioning_dataset(folders["jpg"], shards=10, samples_per_shard=3, with_json=True)
    captioning_dataset(folders["png"], shards=10, samples_per_shard=3, image_format="PNG")
    return folders


@pytest.fixture
def copied(tars, tmp_path):
    """Copies of those folders, not prepared."""
    for kind, folder in tars.items():
        shutil.copytree(folder, tmp_path / kind)
    return tmp_path


@pytest.mark.parametrize(
    ("kind", "answers", "train", "field_map"),
    [
        ("jpg", "8,1,1|CaptioningWebdataset|Yes|jpg|txt", 8, {"image": "jpg", "caption": "txt"}),
        (
            "jpg",
            "8,1,1|CaptioningWebdataset|Yes|jpg|json[caption]",
            8,
            {"image": "jpg", "caption": "json[caption]"},
        ),
        ("png", "10,0,0|0|png|txt", 10, {"image": "png", "caption": "txt"}),
        ("png", "10,0,0|y|0|y|png|txt", 10, {"image": "png", "caption": "txt"}),  # what 7.4.1 needs
        ("png", "10,0,0||CaptioningSample||png,jpg|txt", 10, {"image": "png,jpg", "caption": "txt"}),
        ("png", "0.8, 0.1,0.1|Y|x|99|0|y|jpg||png|txt", 8, {"image": "png", "caption": "txt"}),  # asked again
    ],
)
def test_the_tutorials_answers_work_as_printed(copied, kind, answers, train, field_map):
    result = run("prepare", copied / kind, "--no-progress", answers=answers.split("|"))
    assert result.exit_code == 0, result.output
    assert "0. CaptioningSample" in result.output
    assert "'image' (<class 'torch.Tensor'>)" in result.output
    assert "'caption' (<class 'str'>)" in result.output
    assert document(copied / kind) == {"sample_type": CAPTIONING, "field_map": field_map}
    split = document(copied / kind, "split.yaml")["split_parts"]
    assert split["train"] == [f"data-{{000000..{train - 1:06d}}}.tar"]
    assert (split["val"], split["test"]) == (
        (["data-000008.tar"], ["data-000009.tar"]) if train == 8 else ([], [])
    )
    names = {path.name for path in (copied / kind / ".nv-meta").iterdir()}
    assert names == {".info.json", "dataset.yaml", "split.yaml", "index.sqlite", "index.uuid"}
    assert len(list((copied / kind).glob("*.tar.idx"))) == 10


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ("8,1,1|n", None),
        ("8,1,1|y|11", {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}),
        ("8,1,1|CrudeWebdataset", {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}),
        (
            "8,1,1|ImageClassificationSample|y|jpg|json[index]|",
            {"sample_type": {**CAPTIONING, "__class__": "ImageClassificationSample"},
             "field_map": {"image": "jpg", "label": "json[index]"}},
        ),
        (
            "8,1,1|CaptioningSample|n",
            {"sample_type": CAPTIONING, "sample_loader": "sample_loader.py:sample_loader",
             "part_filter": "sample_loader.py:part_filter"},
        ),
    ],
)  # fmt: skip
def test_other_ways_through_the_wizard(copied, answers, expected):
    result = run("prepare", copied / "jpg", "--no-progress", answers=answers.split("|"))
    assert result.exit_code == 0, result.output
    assert document(copied / "jpg") == expected
    template = copied / "jpg" / ".nv-meta" / "sample_loader.py"
    assert template.exists() == (expected is not None and "sample_loader" in expected)
    if template.exists():
        functions = {}
        exec(template.read_text().replace("TODO", "txt"), functions)
        assert functions["sample_loader"]({"txt": 1}) == {"image": 1, "caption": 1}
        assert functions["part_filter"]("jpg")
        assert not functions["part_filter"]("png")


def test_a_type_without_a_field_map_gets_the_parts_that_say_their_fields(copied):
    how = [*NON_INTERACTIVE, "--force-overwrite", "--sample-type"]
    result = run("prepare", copied / "jpg", *how, "CaptioningSample")
    assert (result.exit_code, "Fields: image from jpg, caption from txt." in result.output) == (0, True), (
        result.output
    )
    assert document(copied / "jpg")["field_map"] == {"image": "jpg", "caption": "txt"}
    options = {"worker_config": WorkerConfig(0, 1, 0), "batch_size": 2}
    (batch,) = islice(get_loader(get_train_dataset(copied / "jpg", **options)), 1)
    assert (type(batch).__name__, type(batch.caption[0])) == ("CaptioningSample", str)
    assert run("prepare", copied / "jpg", *how, "CrudeSample").exit_code == 0
    asked = run(
        "prepare", copied / "jpg", "--sample-type", "VQASample", answers=["y", "8,1,1", "jpg", "txt", "", ""]
    )
    assert asked.exit_code == 0, asked.output
    assert document(copied / "jpg")["field_map"] == {"image": "jpg", "context": "txt"}


def test_types_of_columns(tmp_path):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table({"id": [1, 2], "text": ["a", "b"]}), tmp_path / "a.parquet")
    how = ["--non-interactive", "--split-ratio", "1,0,0", "--force-overwrite", "--sample-type"]
    for more in ((), ("--field-map", '{"text": "text"}')):
        result = run("prepare", tmp_path, *how, "TextSample", *more)
        assert result.exit_code == 0, result.output
        assert document(tmp_path)["field_map"] == {"text": "text"}
    assert (
        "They have: id, text"
        in run("prepare", tmp_path, *how, "TextSample", "--field-map", '{"text": "txt"}').stderr
    )
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "a.jsonl").write_text('{"text": "a"}')
    refused = run("prepare", tmp_path / "lines", *how, "TextSample")
    assert (refused.exit_code, "have no type" in refused.stderr) == (2, True)


def test_without_questions(copied, s3_server, tmp_bucket):
    s3_server.upload_folder(copied / "png", f"{tmp_bucket}/d")
    options = [
        f"--storage-option={key}={value}"
        for key, value in s3_server.storage_options.items()
        if key != "client_kwargs"
    ]
    options.append('--storage-option=client_kwargs={"region_name": "us-east-1"}')
    how = [
        *NON_INTERACTIVE,
        "--sample-type",
        "CaptioningSample",
        "--field-map",
        '{"image":"png","caption":"txt"}',
    ]
    result = run("prepare", f"{tmp_bucket}/d", *options, *how)
    assert result.exit_code == 0, result.output
    result = run("info", f"{tmp_bucket}/d", *options)
    assert result.exit_code == 0, result.output
    for text in ("30 samples in 10 shards", "CaptioningSample", "png, txt", "val: 3 samples in 1 shard"):
        assert text in result.output
    result = run("lint", f"{tmp_bucket}/d", *options)
    assert (result.exit_code, "0 shards with errors" in result.output) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--non-interactive"], "--split-ratio or --split-pattern is missing"),
        (NON_INTERACTIVE, "--sample-type or --skip-dataset-yaml is missing"),
        ([*NON_INTERACTIVE, "--sample-type", "CaptionSample"], "id you mean 'CaptioningSample'"),
        ([*NON_INTERACTIVE, "--sample-type", "VQASample"], '{"image": "jpg", "context": "json[context]"}'),
        (
            [*NON_INTERACTIVE, "--sample-type", "ImageClassificationSample"],
            "no part says that it is the field 'label'",
        ),
        ([*NON_INTERACTIVE, "--sample-type", "CaptioningSample", "--field-map", '{"image": "gif"}'], "'gif'"),
        (
            [*NON_INTERACTIVE, "--sample-type", "CaptioningSample", "--field-map", '{"image": "jpg"}'],
            "lacks caption",
        ),
        ([*NON_INTERACTIVE, "--sample-type", "CaptioningSample", "--field-map", '{"imag": "jpg"}'], "'imag'"),
        ([*NON_INTERACTIVE, "--sample-type", "CaptioningSample", "--field-map", "{"], "JSON"),
        (["--non-interactive", "--split-ratio", "8,1"], "split ratio"),
        (["--exclude", "tar"], "none of the"),
        (["--exclude", "("], "regular expression"),
        (["--storage-option", "a=1"], "local files have no storage options"),
    ],
)
def test_what_cannot_work_is_one_line(tars, arguments, message):
    result = run("prepare", tars["jpg"], *arguments)
    assert result.exit_code == (1 if message == "none of the" else 2)
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (tars["jpg"] / ".nv-meta").exists()


def test_replacing_a_preparation_is_asked_for(tmp_path):
    prepared_captioning_dataset(tmp_path, shards=3, samples_per_shard=2)
    assert run("prepare", tmp_path, answers=["n"]).exit_code == 1
    again = ["--non-interactive", "--split-ratio", "2,0,1", "--skip-dataset-yaml", "--no-progress"]
    assert "prepared already" in run("prepare", tmp_path, *again).stderr
    assert run("prepare", tmp_path, *again, "--force-overwrite").exit_code == 0
    assert run("prepare", tmp_path, "--skip-dataset-yaml", answers=["y", "1,1,1"]).exit_code == 0
    assert document(tmp_path, "split.yaml")["split_parts"]["val"] == ["data-000001.tar"]


def test_lint_finds_what_disagrees(tmp_path):
    prepared_captioning_dataset(tmp_path, shards=4, samples_per_shard=5)
    captioning_dataset(tmp_path, shards=1, samples_per_shard=4, name="data-000002.tar")
    (tmp_path / "data-000003.tar").unlink()
    (tmp_path / "data-000000.tar.idx").write_bytes(bytes(8))
    result = run("lint", tmp_path)
    assert result.exit_code == 1
    assert "20 samples in 4 shards, 3 shards with errors" in result.output
    for text in ("data-000000.tar.idx", "the tar has 4 samples, .info.json says 5", "does not exist"):
        assert text in result.stderr


def test_lint_compares_samples_with_their_checksums(tmp_path):
    captioning_dataset(tmp_path, shards=3, samples_per_shard=5)
    options = ["--checksums", "--non-interactive", "--split-ratio", "1,1,1", "--skip-dataset-yaml"]
    assert run("prepare", tmp_path, *options).exit_code == 0
    result = run("lint", tmp_path)
    assert result.exit_code == 0
    assert "0 shards with errors, all samples compared with their checksums" in result.output
    tar = tmp_path / "data-000001.tar"
    content = bytearray(tar.read_bytes())
    content[600] ^= 1  # in a payload, where nothing else would notice
    tar.write_bytes(content)
    result = run("lint", tmp_path)
    assert result.exit_code == 1
    assert "1 shard with errors" in result.output
    assert "sample 0 of the shard do not have their checksum" in result.stderr
    assert "data-000001.tar" in result.stderr


def test_info_on_tars_that_are_not_prepared(tars, s3_server, tmp_bucket, monkeypatch, tmp_path):
    from energon_stream import CrudeSample, WorkerConfig, get_val_dataset

    monkeypatch.setenv("ENERGON_STREAM_CACHE_DIR", str(tmp_path / "cache"))
    s3_server.upload_folder(tars["jpg"], f"{tmp_bucket}/d")
    options = ["--storage-option", f"endpoint_url={s3_server.endpoint_url}"]
    options += [f"--storage-option={name}=test" for name in ("key", "secret")]
    braces = f"{tmp_bucket}/d/data-{{000000..000004}}.tar"
    for path, tar_count in ((f"{tmp_bucket}/d", 10), (braces, 5)):
        result = run("info", path, *options)
        assert result.exit_code == 0, result.output
        assert f"{tmp_bucket}/d: {tar_count} tars of " in result.output
        assert "Indexed on this node: 0 of them" in result.output
        assert "Parts of the first samples: jpg, json, txt" in result.output
    get_val_dataset(
        braces,
        batch_size=None,
        sample_type=CrudeSample,
        worker_config=WorkerConfig(0, 1, 0),
        storage_options=s3_server.storage_options,
    )
    assert "Indexed on this node: 5 of them, 15 samples" in run("info", f"{tmp_bucket}/d", *options).output
    result = run("info", f"{tmp_bucket}/none", *options)
    assert result.exit_code == 1
    assert "has no .tar files" in result.output
    result = run("prepare", braces, *options)
    assert result.exit_code == 2
    assert "Name the folder of the tars" in result.output
