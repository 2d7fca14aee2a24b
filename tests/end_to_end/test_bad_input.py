"""Bad input gets a named error that says what, where and what to do; nothing hangs, no secret is shown."""

import json
import shutil
import traceback
from dataclasses import dataclass
from typing import Any

import pytest
import runs
from runs import SECRET

from energon_stream import FatalSampleError, ReadOptions, WorkerConfig, get_train_dataset, get_val_dataset
from energon_stream.errors import (
    AccessDeniedError,
    ConfigError,
    EmptyDatasetError,
    EmptyStreamError,
    EnergonStreamError,
    IndexMismatchError,
    MetadataError,
    NotPreparedError,
    ObjectChangedError,
    ObjectNotFoundError,
    StateError,
    StateInUseError,
    StateMismatchError,
    StateVersionError,
    UnknownArgumentError,
    WorkerError,
)
from energon_stream.index.sqlite_index import INDEX_SQLITE

SHARD, INDEX = "data-000001.tar", "data-000001.tar.idx"
SMALL = ReadOptions(first_samples=3, max_request=4096, byte_budget=32_768)  # reads little ahead
LARGE = ReadOptions(first_samples=3, max_request=4096, byte_budget=4096)  # reads each sample alone


@dataclass
class Ground:
    """What a case may use: the dataset on a stand-in server and a copy in a local folder."""

    server: Any
    url: str
    options: dict[str, Any]
    folder: Any
    workers: int = 0
    read_options: ReadOptions = SMALL

    def open(self, url=None, **changes):
        url = self.url if url is None else str(url)
        options = self.options if "://" in url else None
        arguments = {"workers": self.workers, "options": options, "read_options": self.read_options} | changes
        return runs.open_loader(url, **arguments)

    def read(self, **changes):
        """Two passes."""
        with self.open(**changes) as loader:
            runs.take(loader, 50)

    def state(self, **changes):
        with self.open(self.folder, **changes) as loader:
            runs.take(loader, 2)
            return loader.save_state_rank()

    def edit(self, name, old, new):
        """Change a text file of ``.nv-meta`` in the local copy, and open it."""
        path = self.folder / ".nv-meta" / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        self.open(self.folder)


@pytest.fixture
def ground(s3_server, captions_url, options, own_captions):
    return Ground(s3_server, captions_url, options, own_captions)


def restored(ground, state, **changes):
    ground.open(ground.folder, **changes).restore_state_rank(state)


def in_use(ground):
    loader = ground.open()
    state = loader.save_state_rank()
    next(iter(loader))
    try:
        loader.restore_state_rank(state)
    finally:
        loader.close()


def without_metadata(ground):
    shutil.rmtree(ground.folder / ".nv-meta")
    ground.open(ground.folder)


def other_data(ground):
    state = ground.state()
    ground.edit(".info.json", f'"{SHARD}": 16', f'"{SHARD}": 15')
    restored(ground, state)


# What is done, the error's class, what the message must name, what its hint must speak of.
OPENING = {
    "folder-missing": (lambda g: g.open(g.folder / "nowhere"), ObjectNotFoundError, "nowhere", "path"),
    "prefix-missing": (lambda g: g.open("s3://bucket/nowhere"), NotPreparedError, "bucket/nowhere", "path"),
    "bucket-missing": (lambda g: g.open("s3://no-bucket/x"), ObjectNotFoundError, "no-bucket", "bucket"),
    "bucket-missing-fsspec": (
        lambda g: g.open("s3://no-bucket/x", transport="fsspec"),
        ObjectNotFoundError,
        "no-bucket",
        "bucket",
    ),
    "unprepared": (without_metadata, NotPreparedError, "captions", "energon-stream prepare"),
    "split-key": (
        lambda g: g.edit("split.yaml", "exclude:", "exclud:"),
        MetadataError,
        "split.yaml",
        "'exclude'",
    ),
    "dataset-key": (
        lambda g: g.edit("dataset.yaml", "field_map:", "fieldmap:"),
        MetadataError,
        "dataset.yaml",
        "'field_map'",
    ),
    "info-key": (
        lambda g: g.edit(".info.json", "shard_counts", "shard_count"),
        MetadataError,
        ".info.json",
        "'shard_counts'",
    ),
    "sample-type": (
        lambda g: g.edit("dataset.yaml", "CaptioningSample", "CaptionSample"),
        MetadataError,
        "dataset.yaml",
        "CaptioningSample",
    ),
    "split-part": (lambda g: g.open(split_part="trian"), ConfigError, "'trian'", "train"),
    "split-part-empty": (lambda g: g.open(split_part="val"), EmptyDatasetError, "'val'", "train"),
    "keyword": (lambda g: g.open(shufle=1), UnknownArgumentError, "shufle", "shuffle_buffer_size"),
    "batch-size-0": (lambda g: g.open(batch_size=0), ConfigError, "batch_size is 0", "1 or more"),
    "batch-size-negative": (lambda g: g.open(batch_size=-2), ConfigError, "batch_size is -2", "1 or more"),
    "packing-buffer-0": (
        lambda g: g.open(packing_buffer_size=0),
        ConfigError,
        "packing_buffer_size is 0",
        "1 or more",
    ),
    "workers-negative": (lambda g: g.open(workers=-1), ConfigError, "num_workers is -1", "0"),
    "rank": (lambda g: WorkerConfig(2, 2, 0), ConfigError, "rank 2", "world_size"),
    "more-streams-than-samples": (
        lambda g: g.open(worker_config=WorkerConfig(0, 5, 13)),
        EmptyStreamError,
        "bucket/captions",
        "fewer workers",
    ),
    "state-of-other-data": (other_data, StateMismatchError, "the data", "arguments"),
    "state-of-other-order": (
        lambda g: restored(g, g.state(), shuffle_buffer_size=7),
        StateMismatchError,
        "shuffle_buffer_size was 20, is 7",
        "arguments",
    ),
    "state-of-other-pipeline": (
        lambda g: restored(g, g.state(), batch_size=4),
        StateMismatchError,
        "batch_size of BatchDataset was 3, is 4",
        "arguments",
    ),
    "state-of-other-topology": (
        lambda g: restored(g, g.state(), worker_config=WorkerConfig(1, 2, 0)),
        StateMismatchError,
        "world_size 1 -> 2",
        "num_streams=1",
    ),
    "state-of-other-version": (
        lambda g: restored(g, g.state() | {"version": 99}),
        StateVersionError,
        "99",
        "version",
    ),
    "state-of-something-else": (
        lambda g: restored(g, {"step": 3}),
        StateError,
        "not a rank's state",
        "save_state_rank",
    ),
    "state-cut-short": (
        lambda g: restored(g, {k: v for k, v in g.state().items() if k != "streams"}),
        StateError,
        "streams",
        "save_state_rank",
    ),
    "state-bytes-cut-short": (
        lambda g: restored(g, runs.dumps(g.state())[:-9]),
        StateError,
        "bytes",
        "state.dumps",
    ),
    "restore-during-iteration": (in_use, StateInUseError, "iterated", "before"),
}


def deleted(ground):
    ground.server.delete(f"{ground.url}/{SHARD}")
    ground.read()


def without_sizes(ground):
    """Damage the sizes of samples: the ``.tar.idx`` files are read."""
    database = f"{ground.url}/{INDEX_SQLITE}"
    ground.server.put(database, (ground.folder / INDEX_SQLITE).read_bytes()[:-1])


def index_deleted(ground):
    without_sizes(ground)
    ground.server.delete(f"{ground.url}/{INDEX}")
    ground.read()


def index_shifted(ground):
    without_sizes(ground)
    offsets = (ground.folder / INDEX).read_bytes()
    moved = (int.from_bytes(offsets[n : n + 8], "little") + 512 for n in range(0, len(offsets), 8))
    ground.server.put(f"{ground.url}/{INDEX}", b"".join(n.to_bytes(8, "little") for n in moved))
    ground.read()


def index_short(ground):
    without_sizes(ground)
    ground.server.put(f"{ground.url}/{INDEX}", (ground.folder / INDEX).read_bytes()[:-8])
    ground.read()


def tar_short(ground):
    data = (ground.folder / SHARD).read_bytes()
    ground.server.put(f"{ground.url}/{SHARD}", data[: len(data) // 2])
    ground.read()


def tar_short_locally(ground):
    data = (ground.folder / SHARD).read_bytes()
    (ground.folder / SHARD).write_bytes(data[: len(data) // 2])
    ground.read(url=ground.folder)


def replaced(ground):
    """By a tar of the same layout, so that only the store can tell."""
    with ground.open() as loader:
        runs.take(loader, 30)
        for shard in ground.folder.glob("*.tar"):
            ground.server.replace(f"{ground.url}/{shard.name}", shard.read_bytes().replace(b"cap", b"CAP"))
        runs.take(loader, 50)


READING = {
    "shard-deleted": (deleted, ObjectNotFoundError, SHARD, "prepare"),
    "index-deleted": (index_deleted, NotPreparedError, INDEX, "prepare"),
    "index-shifted": (index_shifted, IndexMismatchError, SHARD, "prepare"),
    "index-short": (index_short, IndexMismatchError, INDEX, "prepare"),
    "tar-short": (tar_short, IndexMismatchError, SHARD, "prepare"),
    "tar-short-locally": (tar_short_locally, IndexMismatchError, SHARD, "prepare"),
    "shard-replaced": (replaced, ObjectChangedError, "captions/data-00000", "prepare"),
}


def check(error, kind, place, hint):
    assert type(error) is kind
    assert place in str(error)
    assert error.hint is not None
    assert hint.casefold() in error.hint.casefold()
    assert SECRET not in "".join(traceback.format_exception(error)) + repr(error) + json.dumps(vars(error))


@pytest.mark.every(2)
@pytest.mark.parametrize("case", OPENING)
def test_opening_and_restoring(ground, case):
    act, kind, place, hint = OPENING[case]
    with pytest.raises(EnergonStreamError) as caught:
        act(ground)
    check(caught.value, kind, place, hint)


@pytest.mark.parametrize("case", READING)
def test_reading(ground, case):
    check_reading(ground, case)


@pytest.mark.every(7)
@pytest.mark.parametrize("case", READING)
def test_reading_in_workers(ground, case):
    ground.workers = 2
    check_reading(ground, case)


@pytest.mark.parametrize("case", ["shard-deleted", "tar-short"])
def test_reading_large_samples(ground, case):
    ground.read_options = LARGE
    check_reading(ground, case)


def check_reading(ground, case):
    act, kind, place, hint = READING[case]
    with pytest.raises(EnergonStreamError) as caught:
        act(ground)
    check(caught.value, kind, place, hint)
    if ground.workers:
        assert isinstance(caught.value.__cause__, WorkerError)
        assert "Traceback" in str(caught.value.__cause__)


def test_a_dataset_with_sizes_needs_no_index_of_a_shard(ground):
    with ground.open(ground.folder) as loader:
        wanted = [runs.digest(batch) for batch in runs.take(loader, 50)]
    ground.server.delete(f"{ground.url}/{INDEX}")
    with ground.open() as loader:
        assert [runs.digest(batch) for batch in runs.take(loader, 50)] == wanted


@pytest.mark.seaweedfs
@pytest.mark.parametrize("transport", ["obstore", "fsspec"])
@pytest.mark.parametrize("make", [get_train_dataset, get_val_dataset])
@pytest.mark.parametrize("who", ["wrong-key", "anonymous"])
def test_access_denied(seaweedfs, who, transport, make):
    options = seaweedfs.storage_options | {"secret": SECRET}
    if who == "anonymous":
        options = {"endpoint_url": options["endpoint_url"], "anon": True}
    with pytest.raises(EnergonStreamError) as caught:
        runs.open_loader("s3://private/data", workers=0, options=options, transport=transport, make=make)
    check(caught.value, AccessDeniedError, "s3://private/data", "key, secret")


class Broken(runs.Encoder):
    """A programming error; or a sample that cannot be used, every time."""

    def __init__(self, kind):
        self.kind = kind

    def encode_sample(self, sample):
        if self.kind is NameError:
            return undefined_name  # noqa: F821
        raise self.kind(f"cannot use {sample.__key__}")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("kind", "seen"), [(NameError, NameError), (ValueError, FatalSampleError)])
def test_a_failing_hook_ends_the_loop_with_its_traceback(captions, workers, kind, seen):
    with runs.open_loader(str(captions), workers=workers, task_encoder=Broken(kind)) as loader:
        with pytest.raises(seen) as caught:
            runs.take(loader, 1)
        assert "in encode_sample" in "".join(traceback.format_exception(caught.value))
        assert not loader.worker_pids


def test_one_bad_sample_is_skipped_with_a_warning_or_ends_the_run_as_the_user_wants(captions, caplog):
    from energon_stream import reraise_exception

    class Picky(runs.Encoder):
        def encode_sample(self, sample):
            if sample.__key__.endswith("00000017"):
                raise ValueError("not this one")
            return sample

    arguments = {"workers": 0, "repeat": False, "task_encoder": Picky()}
    with runs.open_loader(str(captions), **arguments) as loader:
        assert sum(len(batch.__key__) for batch in loader) == 63
    assert "00000017" in caplog.text
    strict = WorkerConfig(0, 1, 0, global_error_handler=reraise_exception)
    with (
        runs.open_loader(str(captions), worker_config=strict, **arguments) as loader,
        pytest.raises(ValueError, match="not this one"),
    ):
        list(loader)


def test_secrets_are_in_no_representation(ground):
    with ground.open() as loader:
        runs.take(loader, 1)
        shown = [repr(loader), repr(loader.dataset), repr(vars(loader.dataset)), repr(loader.config())]
        shown += [repr(loader.save_state_rank()), repr(loader.io_counters())]
    assert SECRET not in "".join(shown)
