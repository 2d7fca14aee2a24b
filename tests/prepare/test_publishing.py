"""A preparation that stops after any of its writes leaves the old dataset or the new one, and goes on."""

import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hooked_store import hooked

from energon_stream import WorkerConfig, get_savable_loader, get_train_dataset
from energon_stream.auxiliary import WebdatasetFileStore
from energon_stream.errors import NotPreparedError, StorageError
from energon_stream.index.dataset import read_metadata
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.storage import StoreSpec
from energon_stream.testing.datasets import CAPTIONING_YAML, write_shards

CRUDE = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}
RATIO = {"train": 2.0, "val": 1.0}


class Stopped(BaseException):
    """The process is gone."""


class Writes:
    """Lets so many writes pass, and no more."""

    def __init__(self):
        self.left, self.count = None, 0

    def of(self, folder):
        """URL of a folder whose writes count."""
        return hooked(folder, put=self, put_file=self, delete=self)

    def __call__(self, write, *arguments, **options):
        if self.left == 0:
            raise Stopped
        self.count += 1
        self.left = None if self.left is None else self.left - 1
        return write(*arguments, **options)


@pytest.fixture
def writes():
    return Writes()


@pytest.fixture(scope="module")
def tars(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tars")
    write_shards(folder, shards=6, samples_per_shard=2, parts=lambda i: {"txt": b"%d" % i}, name="{:02d}.tar")
    return folder


def put_tars(folder, source, numbers):
    folder.mkdir(exist_ok=True)
    for path in folder.glob("*.tar"):
        path.unlink()
    for number in numbers:
        shutil.copy2(source / f"{number:02d}.tar", folder)


def samples(url):
    """Keys of all samples by split part, as training delivers them; None if there is no dataset."""
    try:
        parts = read_metadata(StoreSpec(str(url))).split.split_parts
    except NotPreparedError:
        return None
    found = {}
    options = {"shuffle_buffer_size": None, "max_samples_per_sequence": None, "repeat": False}
    for part in parts:
        config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        dataset = get_train_dataset(str(url), split_part=part, batch_size=1, worker_config=config, **options)
        found[part] = sorted((batch["__key__"][0], batch["txt"][0]) for batch in get_savable_loader(dataset))
    return found


def check_lookups(url, found):
    """Look all samples up in ``index.sqlite``, which may be absent for a moment, but never wrong."""
    with suppress(NotPreparedError):
        store = WebdatasetFileStore(StoreSpec(str(url)))
        for key, text in (sample for part in found.values() for sample in part):
            assert store[f"{key.rpartition('/')[2]}.txt"][0].decode() == text


def files(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def prepare(url, **options):
    how = {"split_ratio": RATIO, "dataset_yaml": CRUDE, "workers": 1, **options}
    return prepare_dataset(str(url), **how)


CHANGES = {
    "first": ([], [0, 1, 2], {"force": False}),
    "grown at the end": ([0, 1], [0, 1, 2, 3], {}),
    "grown inside": ([0, 3, 5], [0, 1, 2, 3, 4, 5], {"checksums": True}),
    "shrunk": ([0, 1, 2, 3, 4], [1, 3], {}),
    "exchanged": ([0, 1, 2], [3, 4, 5], {"checksums": True}),
    "split anew": ([0, 1, 2, 3], [0, 1, 2, 3], {"split_ratio": {"train": 1.0, "val": 1.0}}),
    "appended": ([0, 1, 3], [0, 1, 3, 2, 4], {"append": True, "force": False, "dataset_yaml": None}),
}


@pytest.mark.every(5)
@pytest.mark.parametrize("change", CHANGES)
def test_a_stop_after_any_write_leaves_a_whole_dataset(tmp_path, tars, writes, change):
    before, after, options = CHANGES[change]
    options = {"force": True, **options}
    start, clean = tmp_path / "start", tmp_path / "clean"
    for folder in (start, clean):
        put_tars(folder, tars, before)
        if before:
            prepare(folder, checksums=options.get("checksums", change == "appended"))
        put_tars(folder, tars, sorted({*before, *after}))  # the old dataset stays readable
    if set(before) - set(after):
        options["shards"] = [f"{number:02d}.tar" for number in after]
    old = samples(start)
    writes.count = 0
    prepare(writes.of(clean), **options)
    steps, new = writes.count, samples(clean)
    expected = files(clean)
    assert not any(path.startswith(".nv-staging") for path in expected)
    seen, loaded = [], {}
    for step in range(steps):
        folder = tmp_path / f"{step:02d}"
        shutil.copytree(start, folder)
        writes.left = step
        with pytest.raises(Stopped):
            prepare(writes.of(folder), **options)
        writes.left = None
        state = frozenset((path, data) for path, data in files(folder).items() if ".nv-staging" not in path)
        if state not in loaded:
            loaded[state] = samples(folder)
            check_lookups(folder, loaded[state] or {})
        found = loaded[state]
        assert found in (old, new), f"after write {step}"
        seen.append(found == new)
        if not (found == new and not (folder / ".nv-staging/publishing.json").exists()):
            prepare(folder, **options)
            assert files(folder) == expected, f"after write {step}"
    # Old ones first, then new ones: there is one switch.
    assert seen == sorted(seen)
    assert old == new or not seen[0]


def test_the_new_dataset_is_that_of_a_preparation_of_its_tars_alone(tmp_path, tars):
    """Nothing of the datasets before is left."""
    one, other = tmp_path / "one", tmp_path / "other"
    put_tars(one, tars, [0, 1, 2, 3])
    prepare(one, checksums=True, split_config="split.yaml")
    put_tars(one, tars, [1, 3, 4])
    prepare(one, force=True)
    put_tars(other, tars, [1, 3, 4])
    prepare(other)
    left = {path: data for path, data in files(one).items() if path not in ("00.tar.idx", "02.tar.idx")}
    assert left == files(other)


def test_appending_in_order_is_preparing_all_at_once(tmp_path, tars):
    one, other = tmp_path / "one", tmp_path / "other"
    put_tars(one, tars, [0, 1])
    put_tars(other, tars, [0, 1, 2, 3])
    patterns = [r"train:0[02]", r"val:0[13]"]
    prepare(one, split_ratio=None, split_patterns=patterns, checksums=True)
    prepare(other, split_ratio=None, split_patterns=patterns, checksums=True)
    for number in (2, 3):
        shutil.copy2(tars / f"{number:02d}.tar", one)
    report = prepare(one, split_ratio=None, split_patterns=patterns, append=True)
    assert list(report.shard_counts) == ["00.tar", "01.tar", "02.tar", "03.tar"]
    assert files(one) == files(other)


def test_a_used_index_is_not_written_again(tmp_path, tars, monkeypatch):
    put_tars(tmp_path / "a", tars, [0, 1, 2])
    prepare(tmp_path / "a")
    before = {path.name: path.stat().st_ino for path in (tmp_path / "a").glob("*.idx")}
    prepare(tmp_path / "a", force=True)
    prepare(tmp_path / "a", tar_index_only=True)
    assert {path.name: path.stat().st_ino for path in (tmp_path / "a").glob("*.idx")} == before


def test_dataset_yaml_stays_when_none_is_given(tmp_path, tars):
    put_tars(tmp_path / "a", tars, [0, 1, 2])
    prepare(tmp_path / "a", dataset_yaml=CAPTIONING_YAML)
    before = (tmp_path / "a/.nv-meta/dataset.yaml").read_bytes()
    prepare(tmp_path / "a", dataset_yaml=None, force=True)
    assert (tmp_path / "a/.nv-meta/dataset.yaml").read_bytes() == before


@pytest.mark.parametrize("refused", [".scan", ".tar.idx", "index.sqlite", ".info.json", "split.yaml"])
def test_a_store_that_refuses_a_write_keeps_the_old_dataset(tmp_path, tars, refused):
    full = [refused]

    def refuse(put, path, *arguments, **options):
        if full and refused in path:
            raise StorageError("no space left", where=path, hint="free some space")
        put(path, *arguments, **options)

    url = hooked(tmp_path / "a", put=refuse, put_file=refuse)
    put_tars(tmp_path / "a", tars, [0, 1, 2])
    prepare(tmp_path / "a")
    put_tars(tmp_path / "a", tars, [0, 1, 2, 3, 4])
    old = samples(tmp_path / "a")
    with pytest.raises(StorageError, match=f"no space left.*{refused}"):
        prepare(url, force=True)
    full.clear()
    assert samples(tmp_path / "a") == old
    prepare(url, force=True)
    assert samples(tmp_path / "a") != old
    assert not list(Path(tmp_path / "a/.nv-staging").glob("*"))


@pytest.mark.parametrize(
    ("change", "old"),
    [("grown at the end", "/.info.json"), ("exchanged", "/.info.json"), ("exchanged", "/split.yaml")],
)
def test_a_reader_that_overlaps_a_publication_reads_once_more(tmp_path, tars, change, old):
    before, after, options = CHANGES[change]
    put_tars(tmp_path, tars, before)
    prepare(tmp_path)
    stale = (tmp_path / f".nv-meta{old}").read_bytes()
    put_tars(tmp_path, tars, after)
    prepare(tmp_path, **{"force": True, **options})
    reads = []

    def get_old_once(get_suffix, path, *arguments, **keywords):
        answer = get_suffix(path, *arguments, **keywords)
        reads.append(path)
        is_first = path.endswith(old) and reads.count(path) == 1
        return replace(answer, data=memoryview(stale), total_size=len(stale)) if is_first else answer

    metadata = read_metadata(StoreSpec(hooked(tmp_path, get_suffix=get_old_once)))
    listed = [path for paths in metadata.split.split_parts.values() for path in paths]
    assert reads.count(f".nv-meta{old}") == 2
    assert (
        sorted(listed) == sorted(metadata.shard_counts) == [f"{number:02d}.tar" for number in sorted(after)]
    )
