"""What people bring from elsewhere: other formats, other loaders' paths and states. Errors have remedies."""

import json
import logging
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from told import told

from energon_stream import (
    CaptioningSample,
    CrudeSample,
    WorkerConfig,
    generic_batch,
    get_loader,
    get_savable_loader,
    get_train_dataset,
)
from energon_stream.cli.main import main
from energon_stream.compat.placeholders import SavableDataLoaderState
from energon_stream.errors import (
    AccessDeniedError,
    ConfigError,
    NotPreparedError,
    ObjectNotFoundError,
    StateError,
)
from energon_stream.testing.datasets import captioning_dataset, prepared_captioning_dataset

CONFIG = WorkerConfig(rank=0, world_size=1, num_workers=0)


def first(path, **options):
    with get_loader(get_train_dataset(path, batch_size=2, worker_config=CONFIG, **options)) as loader:
        return next(iter(loader))


def picture(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(path)
    path.with_suffix(".txt").write_text("a caption")


def pictures(folder):
    for number in range(3):
        picture(folder / f"{number}.jpg")


def classes(folder):
    for name in ("cat", "dog"):
        pictures(folder / name)


def parquet(folder):
    folder.mkdir()
    pq.write_table(pa.table({"text": ["a", "b", "c"]}), folder / "part.parquet")


def lines(folder):
    folder.mkdir()
    (folder / "a.csv").write_text("text,label\nx,1\ny,2\nz,3\n")


@pytest.mark.parametrize("make", [pictures, classes, parquet, lines])
def test_a_folder_of_another_format_says_convert_and_that_works(tmp_path, make):
    make(tmp_path / "data")
    with pytest.raises(NotPreparedError, match="no tars, but files such as") as raised:
        first(tmp_path / "data")
    command = raised.value.hint.partition("`")[2].partition("`")[0].split()
    assert command[:2] == ["energon-stream", "convert"]
    as_it_is = f"`energon-stream prepare {tmp_path / 'data'}` takes the files as they are"
    assert (as_it_is in raised.value.hint) == (make is parquet)
    prepared = CliRunner().invoke(main, ["prepare", str(tmp_path / "data")])
    assert prepared.exit_code == 1
    if make is not parquet:
        assert " ".join(command) in prepared.output
    done = CliRunner().invoke(main, [*command[1:-1], str(tmp_path / "made")], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    batch = first(tmp_path / "made")
    assert len(batch["__key__"] if isinstance(batch, dict) else batch.__key__) == 2


def mds(folder):
    folder.mkdir()
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": []}))
    (folder / "shard.00000.mds").write_bytes(b"x")


def videos(folder):
    folder.mkdir()
    (folder / "clip.mp4").write_bytes(b"\0\0\0\x18ftypmp42")


def arrow(folder):
    folder.mkdir()
    (folder / "data-00000-of-00001.arrow").write_bytes(b"x")


def zips(folder):
    folder.mkdir()
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        archive.writestr("a.jpg", b"x")


@pytest.mark.parametrize("make", [mds, videos, arrow, zips])
def test_other_files_say_convert(tmp_path, make):
    make(tmp_path / "data")
    with pytest.raises(NotPreparedError, match=f"energon-stream convert {tmp_path}/data NEW_FOLDER"):
        first(tmp_path / "data")
    (file,) = list((tmp_path / "data").iterdir())[:1]
    with pytest.raises(ObjectNotFoundError, match="takes tables; of other files, pass the folder, unpacked"):
        first(file)


@pytest.fixture(scope="module")
def tars(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tars")
    captioning_dataset(folder, shards=2, samples_per_shard=3, name="{:03d}.tar")
    return folder


def test_tars_say_prepare_or_a_type_and_both_work(tars, tmp_path):
    with pytest.raises(NotPreparedError, match=r"energon-stream prepare .* sample_type="):
        first(tars)
    assert len(first(tars, sample_type=CrudeSample)["txt"]) == 2
    field_map = {"image": "jpg", "caption": "txt"}
    assert len(first(tars, sample_type=CaptioningSample, field_map=field_map).caption) == 2
    assert len(first(tars / "000.tar")["txt"]) == 2


def test_a_folder_around_datasets_and_one_in_them_name_the_dataset(tmp_path):
    made = prepared_captioning_dataset(tmp_path / "all" / "pairs", shards=1, samples_per_shard=3)
    with pytest.raises(NotPreparedError, match=f"such as {made}$"):
        first(tmp_path / "all")
    with pytest.raises(NotPreparedError, match=r"Pass the folder that has \.nv-meta"):
        first(made / ".nv-meta")


def test_empty_folders_and_paths_without_files(tmp_path, s3_server, tmp_bucket):
    (tmp_path / "a" / "b").mkdir(parents=True)
    with pytest.raises(NotPreparedError, match=r"nor any other file.*Check the path"):
        first(tmp_path)
    with pytest.raises(NotPreparedError, match=r"nor any other file.*Check the path"):
        first(f"{tmp_bucket}/captoins", storage_options=s3_server.storage_options)


@pytest.mark.parametrize(
    ("habit", "message"),
    [
        ("pipe:cat {folder}/000.tar", "pass the URL itself"),
        ("pipe:aws s3 cp s3://bucket/000.tar -", "pass the URL itself"),
        (
            "{folder}/*.tar",
            r"write \{000\.\.099\}\.tar in place of wildcards; or pass the folder, with sample_type",
        ),
        ("{folder}/*", "in place of wildcards"),
        ("s3:/bucket/data", "two slashes: s3://bucket/data"),
        ("https:/host/data", "two slashes: https://host/data"),
        (
            "{folder}/{{007..008}}.tar",
            "2 of 2 tars do not exist, the first is '007.tar'.*check bucket, folder and braces",
        ),
        ("{folder}/{{001..002}}.tar", "1 of 2 tars do not exist, the first is '002.tar'"),
        ("{folder}/nope", "no such folder"),
    ],
)
def test_habits_of_other_loaders_say_what_to_write(tars, habit, message):
    with pytest.raises(ObjectNotFoundError, match=f"(?i){message}"):
        first(habit.format(folder=tars))


def test_lists_of_paths_say_what_to_write_and_that_works(tars):
    for wrong in ([f"{tars}/000.tar", f"{tars}/001.tar"], (), None, 3):
        with pytest.raises(ConfigError, match=r"the path is .*by braces .*pass their folder"):
            first(wrong)
    assert len(first(f"{tars}/{{000..001}}.tar")["txt"]) == 2


def test_a_folder_that_was_not_prepared_is_told_without_frames_of_the_library(tars):
    with pytest.raises(NotPreparedError, match="run `energon-stream prepare") as caught:
        get_train_dataset(tars, batch_size=2, worker_config=CONFIG)
    assert len(caught.traceback) <= 4


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (
            SavableDataLoaderState(worker_states=[], next_worker_id=0, micro_batch_size=1),
            "megatron-energon.md",
        ),
        ("state.pt", r"torch\.load"),
        (Path("state.pt"), r"torch\.load"),
        ([], "restore_state_global"),
        ({"step": 3}, "save_state_rank"),
    ],
    ids=["7.4.1", "text", "path", "list", "dict"],
)
def test_states_of_others_say_what_to_do(tars, state, message):
    loader = get_savable_loader(get_train_dataset(tars / "000.tar", batch_size=2, worker_config=CONFIG))
    with pytest.raises(StateError, match=message):
        loader.restore_state_rank(state)
    if not isinstance(state, dict | list):
        with pytest.raises(StateError, match=message):
            loader.restore_state_global([state])


def test_wrong_things_around_loaders(tars):
    dataset = get_train_dataset(tars / "000.tar", batch_size=2, worker_config=CONFIG)
    for wrong in ("captions", [1, 2], get_loader(dataset), torch.utils.data.DataLoader([1])):
        for function in (get_loader, get_savable_loader):
            with pytest.raises(ConfigError, match=r"a loader is for a dataset.*get_train_dataset"):
                function(wrong)
    with pytest.raises(ConfigError, match="in place of a torch DataLoader"):
        next(iter(torch.utils.data.DataLoader(get_loader(dataset))))


def test_samples_of_several_types_are_a_list_with_a_warning(caplog):
    pair = CaptioningSample(__key__="a", __restore_key__=(), image=torch.zeros(1), caption="x")
    with caplog.at_level(logging.WARNING):
        assert generic_batch([pair, {"caption": "y"}]) == [pair, {"caption": "y"}]
        generic_batch([pair, {"caption": "z"}])
        generic_batch([1, 2.0, None])
        generic_batch([{"caption": "y"}, {"caption": None}])
    assert told(caplog) == [
        "samples of several types (CaptioningSample, dict) make a list and no batch: encode_sample can make one type of "
        "them"
    ]


def test_missing_credentials_name_the_variables_and_the_options(s3_server, tmp_bucket):
    options = {"endpoint_url": s3_server.endpoint_url}
    for transport in ("obstore", "fsspec"):
        with pytest.raises(AccessDeniedError) as raised:
            first(f"{tmp_bucket}/captions", storage_options=options, transport=transport)
        message = str(raised.value)
        for word in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "'key'", "{'anon': True}"):
            assert message.count(word) == 1, message
