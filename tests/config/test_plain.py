"""WebDatasets that nobody prepared, in buckets that cannot be written: the same samples as prepared ones."""

import io
import logging
import os
import shutil
import tarfile
import uuid

import fsspec
import pytest

from energon_stream import (
    CaptioningSample,
    Cooker,
    CrudeSample,
    DefaultTaskEncoder,
    ReadOptions,
    Sample,
    TextSample,
    WorkerConfig,
    cooker,
    edataclass,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    load_dataset,
    stateless,
    traverse_metadataset,
)
from energon_stream.errors import (
    ConfigError,
    CorruptTarError,
    DuplicateKeyError,
    EmptyDatasetError,
    IndexMismatchError,
    MetadataError,
    NotPreparedError,
    ObjectChangedError,
    ObjectNotFoundError,
    StorageError,
)
from energon_stream.index.jsonl_index import prepare_jsonl
from energon_stream.index.plain import list_tars, open_plain
from energon_stream.index.yaml_io import dump_yaml
from energon_stream.storage import StoreSpec
from energon_stream.testing.datasets import binary_dataset, captioning_dataset, prepared_captioning_dataset
from energon_stream.testing.s3server import Rule

SHARDS, PER_SHARD = 4, 12
CAPTIONS = {"sample_type": CaptioningSample, "field_map": {"image": "jpg", "caption": "txt"}}
TARS = "data-{000000..000003}.tar"
ALONE = WorkerConfig(0, 1, 0)


@pytest.fixture(autouse=True)
def own_cache_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("ENERGON_STREAM_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared") / "data"
    return prepared_captioning_dataset(
        folder, split_ratio=(1, 0, 0), shards=SHARDS, samples_per_shard=PER_SHARD
    )


@pytest.fixture
def tars(prepared, tmp_path):
    """A copy of the tars alone."""
    folder = tmp_path / "data"
    folder.mkdir()
    for tar in sorted(prepared.glob("*.tar")):
        shutil.copy(tar, folder)
    return folder


@pytest.fixture
def bucket(s3_server, tars):
    """The tars in a bucket that can be read only."""
    s3_server.upload_folder(tars, "s3://bucket/data")
    for method in ("PUT", "POST", "DELETE"):
        s3_server.add_rule(Rule("status", method=method, status=403))
    return "s3://bucket/data"


@pytest.fixture
def options(s3_server):
    return s3_server.storage_options


def train(path, *, workers=0, declared=CAPTIONS, **changes):
    arguments = {
        "batch_size": 5,
        "shuffle_buffer_size": 10,
        "max_samples_per_sequence": 4,
        "worker_config": WorkerConfig(0, 1, workers),
        "read_options": ReadOptions(max_ahead=64),  # a tiny dataset would be planned for hundreds of passes
    }
    return get_savable_loader(get_train_dataset(path, **{**arguments, **declared, **changes}))


def val(path, declared=CAPTIONS, **changes):
    arguments = {"batch_size": None, "worker_config": ALONE, **declared, **changes}
    return list(get_val_dataset(path, **arguments))


def seen(loader, batches):
    found = []
    for batch in loader:
        found.append((batch.__key__, batch.caption, batch.image.sum().item()))
        if len(found) == batches:
            break
    return found


def asked(server, ending=".tar"):
    """Return the keys of distinct requests: a late one may be made twice."""
    made = {(e.key, e.range): e.key for e in server.log() if e.method == "GET" and e.key.endswith(ending)}
    return list(made.values())


def known(state):
    """A state without hashes of locations."""
    return {name: value for name, value in state.items() if name not in ("identities", "digest")}


@pytest.mark.every(3)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("transport", ["fsspec", "auto"])
@pytest.mark.parametrize("kind", ["braces", "folder"])
def test_order_samples_and_states_are_those_of_the_same_dataset_prepared(
    s3_server, bucket, options, prepared, kind, transport, workers
):
    path = f"{bucket}/{TARS}" if kind == "braces" else bucket
    remote = {"storage_options": options, "transport": transport, "workers": workers}
    with train(str(prepared), declared={}, workers=workers) as loader:
        expected = seen(loader, 6)
        state = loader.save_state_rank()
        expected += seen(loader, 14)
    with train(path, **remote) as loader:
        assert seen(loader, 6) == expected[:6]
        assert known(loader.save_state_rank()) == known(state)
        own = loader.save_state_rank()
    with train(path, **remote) as loader:
        loader.restore_state_rank(own)
        assert seen(loader, 14) == expected[6:]
    with train(str(prepared), declared={}, workers=workers) as loader:  # prepared later, it goes on
        loader.restore_state_rank(own)
        assert seen(loader, 14) == expected[6:]
    assert not s3_server.counters().requests["PUT"]


@pytest.mark.parametrize("kind", ["braces", "folder", "one tar", "file URL"])
def test_local_tars(tars, prepared, kind):
    names = {"braces": tars / TARS, "folder": tars, "one tar": tars / "data-000001.tar"}
    path = f"file://{tars}/{TARS}" if kind == "file URL" else os.fspath(names[kind])
    expected = val(str(prepared), declared={}, split_part="train")
    if kind == "one tar":
        expected = expected[PER_SHARD : 2 * PER_SHARD]
    found = val(path)
    assert [sample.__key__ for sample in found] == [sample.__key__ for sample in expected]
    assert [sample.caption for sample in found] == [sample.caption for sample in expected]
    assert found[0].__sources__[0].dataset_path == str(tars)
    assert sorted(os.listdir(tars)) == [f"data-{shard:06d}.tar" for shard in range(SHARDS)]


def test_the_first_open_walks_the_tars_and_later_ones_do_not_ask_for_them(s3_server, bucket, options):
    s3_server.reset_counters()
    train(f"{bucket}/{TARS}", storage_options=options).close()
    assert dict(s3_server.counters().requests) == {"HEAD": SHARDS, "GET": SHARDS}
    for path, expected in ((f"{bucket}/{TARS}", {"HEAD": SHARDS}), (bucket, {"LIST": 1})):
        s3_server.reset_counters()
        train(path, storage_options=options).close()
        assert dict(s3_server.counters().requests) == expected
    s3_server.reset_counters()
    with train(bucket, storage_options=options) as loader:
        seen(loader, 10)
    assert not asked(s3_server, ".idx")  # and what is read for samples is not read for indices


@pytest.mark.parametrize("listing", ["allowed", "forbidden"])
def test_many_tars_are_listed_where_that_is_allowed(s3_server, tmp_path, options, listing):
    captioning_dataset(tmp_path / "many", shards=60, samples_per_shard=1)
    (tmp_path / "many" / "other.tar").write_bytes(b"no tar")
    s3_server.upload_folder(tmp_path / "many", "s3://bucket/many")
    if listing == "forbidden":
        s3_server.add_rule(Rule("status", "bucket", method="GET", status=403))
    s3_server.reset_counters()
    path = "s3://bucket/many/data-{000059..000000}.tar"
    found = val(path, storage_options=options)
    assert [sample.caption for sample in found] == [f"caption {number}" for number in range(59, -1, -1)]
    heads = {entry.key for entry in s3_server.log() if entry.method == "HEAD"}  # a late one is asked again
    assert len(heads) == (0 if listing == "allowed" else 60)
    with pytest.raises(
        ObjectNotFoundError, match=r"2 of 62 tars do not exist, the first is 'data-000060\.tar'"
    ):
        val("s3://bucket/many/data-{000000..000061}.tar", storage_options=options)


def test_with_a_cache_the_indices_lie_there_and_what_is_walked_is_kept(s3_server, bucket, options, tmp_path):
    cache = str(tmp_path / "cache")
    expected = val(bucket, storage_options=options, cache=False)
    for path in (bucket, f"{bucket}/{TARS}"):
        shutil.rmtree(cache, ignore_errors=True)
        s3_server.reset_counters()
        found = val(path, storage_options=options, cache=cache)
        assert [sample.caption for sample in found] == [sample.caption for sample in expected]
        assert len(asked(s3_server)) == SHARDS  # all of these small tars, and nothing again for the samples
        assert len(os.listdir(os.path.join(cache, "v1", "indexes"))) == 1
    assert not s3_server.counters().requests["LIST"]  # versions are known: the cache need not list a bucket


def test_a_damaged_index_is_made_again(s3_server, bucket, options, tmp_path, caplog):
    expected = [sample.caption for sample in val(bucket, storage_options=options)]
    (folder,) = (tmp_path / "xdg" / "energon_stream" / "v1" / "indexes").iterdir()
    first, second, *_ = sorted(folder.glob("*.idx"))
    content = bytearray(first.read_bytes())
    content[30] ^= 8
    first.write_bytes(content)
    second.write_bytes(second.read_bytes()[:-8])
    (folder / f"{first.name}.new").write_bytes(b"what a killed process left")
    s3_server.reset_counters()
    assert [sample.caption for sample in val(bucket, storage_options=options)] == expected
    assert "is damaged, and is made again" in caplog.text
    s3_server.reset_counters()
    train(bucket, storage_options=options).close()
    assert not asked(s3_server)
    assert len(list(folder.iterdir())) == SHARDS + 1  # and the file of locks


def test_a_replaced_tar_is_indexed_anew_and_noticed_within_a_run(s3_server, bucket, options, tars, tmp_path):
    with train(bucket, storage_options=options) as loader:
        for tar in tars.iterdir():  # of the same layout, so that only the store can tell
            s3_server.replace(f"{bucket}/{tar.name}", tar.read_bytes().replace(b"caption", b"CAPTION"))
        with pytest.raises(ObjectChangedError, match="data-00000"):
            seen(loader, 1)
    s3_server.reset_counters()
    assert {sample.caption[:7] for sample in val(bucket, storage_options=options)} == {"CAPTION"}
    assert len(set(asked(s3_server))) == SHARDS
    captioning_dataset(tmp_path / "new", shards=2, samples_per_shard=3)
    s3_server.replace(f"{bucket}/data-000001.tar", (tmp_path / "new" / "data-000000.tar").read_bytes())
    assert len(val(bucket, storage_options=options)) == 3 * PER_SHARD + 3


def test_a_store_without_versions_is_told_by_sizes_with_a_warning(tars, tmp_path, caplog):
    memory = fsspec.filesystem("memory")
    folder = f"memory://{uuid.uuid4().hex}"
    memory.put(str(tars), folder, recursive=True)
    try:
        for _ in range(2):
            assert len(val(folder)) == SHARDS * PER_SHARD
        assert "reports no versions" in caplog.text
        captioning_dataset(tmp_path / "new", shards=1, samples_per_shard=PER_SHARD - 1)
        new = (tmp_path / "new" / "data-000000.tar").read_bytes()
        old = (tars / "data-000000.tar").read_bytes()
        memory.pipe(f"{folder}/data-000000.tar", new[: len(old)].ljust(len(old), b"\0"))
        with pytest.raises(IndexMismatchError, match=r"data-000000\.tar.*remove .*/v1/indexes/"):
            val(folder)
    finally:
        memory.rm(folder, recursive=True)


@pytest.mark.parametrize("tars_named", [4, 60])
def test_tars_on_a_web_server(s3_server, tmp_path, tars_named):
    """Whose folders cannot be listed."""
    captioning_dataset(tmp_path / "many", shards=tars_named, samples_per_shard=1)
    s3_server.upload_folder(tmp_path / "many", "s3://bucket/many")
    url = f"{s3_server.endpoint_url}/bucket/many/data-{{000000..{tars_named - 1:06d}}}.tar"
    for transport in ("auto", "fsspec"):
        assert len(val(url, transport=transport)) == tars_named


@edataclass
class Own(Sample):
    words: str


@pytest.mark.parametrize(
    ("declared", "field"),
    [
        ({"sample_type": "CaptioningSample", "field_map": {"image": "jpg", "caption": "txt"}}, "caption"),
        (
            {
                "sample_type": {"__module__": "megatron.energon", "__class__": "TextSample"},
                "field_map": {"text": "json[no],txt"},
            },
            "text",
        ),
        ({"sample_type": Own, "field_map": {"words": "txt"}}, "words"),
        (
            {"sample_type": {"__module__": __name__, "__class__": "Own"}, "field_map": {"words": "txt"}},
            "words",
        ),
        ({}, "txt"),
        ({"sample_type": CrudeSample}, "txt"),
        ({"sample_type": "CrudeSample"}, "txt"),
    ],
)
def test_ways_to_say_what_samples_are(tars, declared, field):
    crude = "field_map" not in declared
    encoder = DefaultTaskEncoder()
    if crude:
        encoder.cookers = [Cooker(_keep)]
    found = val(str(tars / TARS), declared=declared, task_encoder=encoder)
    texts = [sample[field] if crude else getattr(sample, field) for sample in found]
    assert texts == [f"caption {number}" for number in range(SHARDS * PER_SHARD)]
    dataset = load_dataset(str(tars / TARS), **declared).get_datasets(training=False, worker_config=ALONE)
    assert len(list(dataset.datasets[0].dataset)) == SHARDS * PER_SHARD


@stateless
def _keep(sample):
    return dict(sample)


def test_train_and_val_are_all_of_it_and_subset_takes_shares(tars):
    path, length = str(tars / TARS), SHARDS * PER_SHARD
    for part in ("train", "val", "test"):
        assert len(val(path, split_part=part)) == length
    first, rest = (val(path, subset={"range": pair}) for pair in (["0%", "75%"], ["75%", "100%"]))
    assert len(first) == 3 * PER_SHARD
    assert not {sample.__key__ for sample in first} & {sample.__key__ for sample in rest}


def test_parts_are_left_out_but_read(tars):
    dataset = get_val_dataset(
        str(tars / TARS), batch_size=None, worker_config=ALONE, parts=["txt"], task_encoder=_crude()
    )
    assert {tuple(key for key in sample if not key.startswith("__")) for sample in dataset} == {("txt",)}


def _crude():
    encoder = DefaultTaskEncoder()
    encoder.cookers = [Cooker(_keep)]
    return encoder


def test_metadatasets_name_them(s3_server, bucket, options, prepared, tmp_path):
    types = {
        "sample_type": "CaptioningSample",
        "field_map": {"image": "jpg", "caption": "txt"},
    }
    entries = [
        {"path": f"{bucket}/{TARS}", **types, "subflavors": {"from": "braces"}},
        {"path": bucket, **types, "weight": 2, "subset": {"range": [0, 20]}},
        {"path": str(prepared), "split_part": "train"},
    ]
    head = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
    blend = {**head, "splits": {"train": {"blend": entries}}}
    same = [
        {key: entry[key] for key in entry if key not in types} | {"path": str(prepared)} for entry in entries
    ]
    loaders = [
        train(document, declared={}, storage_options=options)
        for document in (blend, {**head, "splits": {"train": {"blend": same}}})
    ]
    plain, expected = (seen(loader, 20) for loader in loaders)
    assert plain == expected
    assert known(loaders[0].save_state_rank()) == known(loaders[1].save_state_rank())
    assert [ref.path for ref in traverse_metadataset(blend, split_part="train")][:2] == [
        f"{bucket}/{TARS}",
        bucket,
    ]


def test_local_tars_of_a_metadataset_have_their_indices_in_its_cache(tars, tmp_path):
    head = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
    types = {"sample_type": "CaptioningSample", "field_map": {"image": "jpg", "caption": "txt"}}
    document = {**head, "splits": {"val": {"path": str(tars / TARS), **types}}}
    assert len(val(document, declared={}, cache=str(tmp_path / "cache"))) == SHARDS * PER_SHARD
    assert len(list((tmp_path / "cache" / "v1" / "indexes").rglob("*.idx"))) == SHARDS


def replaced(folder, name, content):
    (folder / name).write_bytes(content)


def tar_of(*names):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as file:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 100
            file.addfile(member, io.BytesIO(b"x" * 100))
    return buffer.getvalue()


def damaged(folder):
    content = bytearray((folder / "data-000002.tar").read_bytes())
    content[content.index(b"00000026.jpg")] = 0xFF
    replaced(folder, "data-000002.tar", content)


def only_compressed(folder):
    for tar in folder.glob("*.tar"):
        tar.rename(tar.with_suffix(".tar.gz"))


NAMED = {
    "cut off": (
        lambda folder: replaced(folder, "data-000001.tar", (folder / "data-000001.tar").read_bytes()[:5000]),
        {},
        (CorruptTarError, r"data-000001\.tar"),
    ),
    "damaged": (damaged, {}, (CorruptTarError, r"byte \d+: the checksum.*data-000002\.tar")),
    "not by sample": (
        lambda folder: replaced(folder, "data-000003.tar", tar_of("a.jpg", "b.jpg", "a.txt", "b.txt")),
        {},
        (
            DuplicateKeyError,
            r"'a' are not adjacent.*byte 0, others at 2048.*data-000003\.tar at byte 2048",
        ),
    ),
    "no samples": (
        lambda folder: [replaced(folder, f"data-00000{n}.tar", tar_of("README")) for n in range(4)],
        {},
        (EmptyDatasetError, "no tar has samples.*data"),
    ),
    "compressed": (only_compressed, {}, (ConfigError, r"compressed.*data-000000\.tar\.gz")),
    "missing": (
        lambda folder: (folder / "data-000001.tar").unlink(),
        {"path": TARS},
        (ObjectNotFoundError, r"1 of 4 tars do not exist, the first is 'data-000001\.tar'"),
    ),
    "no tars": (shutil.rmtree, {}, (ObjectNotFoundError, r"no \.tar files|no such folder")),
    "not declared": (None, {"declared": {}}, (NotPreparedError, "sample_type=")),
    "split part": (None, {"split_part": "dev"}, (ConfigError, "'dev', because the dataset is not prepared")),
    "split file": (None, {"split_config": "x.yaml"}, (ConfigError, "split_config or dataset_config")),
    "dataset file": (
        None,
        {"path": TARS, "dataset_config": "x.yaml"},
        (ConfigError, "split_config or dataset_config"),
    ),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("where", ["local", "S3"])
@pytest.mark.parametrize("case", NAMED)
def test_what_cannot_be_read_is_named(s3_server, tars, options, case, where):
    change, arguments, (kind, message) = NAMED[case]
    if change is not None:
        change(tars)
    s3_server.create_bucket("bucket")
    root, remote = str(tars), {}
    if where == "S3":
        if tars.exists():
            s3_server.upload_folder(tars, "s3://bucket/data")
        root, remote = "s3://bucket/data", {"storage_options": options}
    arguments = dict(arguments)
    path = f"{root}/{arguments.pop('path')}" if "path" in arguments else root
    with pytest.raises(kind, match=message) as caught:
        val(path, **remote, **arguments)
    assert type(caught.value) is kind
    assert caught.value.hint


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"field_map": {"image": "jpg"}}, "field_map needs a sample_type"),
        ({"sample_type": CaptioningSample}, "'field_map' must map"),
        ({"sample_type": CaptioningSample, "field_map": {"image": "jpg"}}, "lacks caption"),
        ({"sample_type": TextSample, "field_map": {"text": "txt", "image": "jpg"}}, "no field of TextSample"),
        ({"sample_type": TextSample, "field_map": {"text": "txt["}}, r"'text' is 'txt\['"),
        ({"sample_type": "CaptionSample", "field_map": {}}, "Did you mean 'CaptioningSample'"),
        ({"sample_type": CrudeSample, "field_map": {"x": "txt"}}, "no fields"),
        ({"sample_type": int, "field_map": {"x": "txt"}}, "int is no sample type"),
        ({"sample_type": 7, "field_map": {"x": "txt"}}, "__module__ and __class__"),
    ],
)
def test_what_samples_cannot_be_is_said_before_anything_is_read(tmp_path, declared, message):
    with pytest.raises(ConfigError, match=message):
        val(str(tmp_path / "nowhere.tar"), declared=declared)


def test_who_says_what_samples_are_is_never_ignored(prepared, tmp_path):
    with pytest.raises(ConfigError, match=r"declared twice: by this file.*dataset\.yaml"):
        val(str(prepared), split_part="train")
    folder = tmp_path / "prepared"
    shutil.copytree(prepared, folder)
    crude = "__module__: megatron.energon\n__class__: CrudeWebdataset\n"
    (folder / ".nv-meta" / "dataset.yaml").write_text(f"{crude}subflavors: {{a: b}}\n")
    with pytest.raises(ConfigError, match="declared twice"):
        val(str(folder), split_part="train")
    (folder / ".nv-meta" / "dataset.yaml").write_text(crude)
    found = val(str(folder), split_part="train")  # a file that says nothing of the samples is in no way
    assert [(s.caption, s.image.sum()) for s in found] == [
        (s.caption, s.image.sum()) for s in val(str(prepared), {}, split_part="train")
    ]
    (folder / ".nv-meta" / "dataset.yaml").unlink()
    with pytest.raises(NotPreparedError, match="type of the samples is not known"):
        val(str(folder), declared={}, split_part="train")
    assert len(val(str(folder), split_part="train")) == SHARDS * PER_SHARD
    with pytest.raises(EmptyDatasetError):  # it is prepared, and has a split
        val(str(folder))
    (folder / ".nv-meta" / ".info.json").unlink()
    with pytest.raises(
        NotPreparedError, match=r"\.info\.json not found"
    ):  # and is not taken for a folder of tars
        val(str(folder), split_part="train")
    (tmp_path / "x.jsonl").write_text('{"text": "x"}\n')
    prepare_jsonl(str(tmp_path / "x.jsonl"))
    with pytest.raises(ConfigError, match="JSONL"):
        val(str(tmp_path / "x.jsonl"))
    meta = {"splits": {"val": {"datasets": [{"path": str(folder)}]}}}
    with pytest.raises(ConfigError, match="for single datasets"):
        val(meta)
    head = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
    wrong = {"path": str(folder), "sample_type": "CaptioningSample", "field_map": {"image": "jpg"}}
    with pytest.raises(MetadataError, match=r"lacks caption.*splits\.val"):
        val({**head, "splits": {"val": wrong}}, declared={})
    with pytest.raises(MetadataError, match="'sample_type' cannot be set for a metadataset"):
        val({**head, "splits": {"val": {"path": "x.yaml", "sample_type": "TextSample"}}}, declared={})


def test_joins_and_cookers_with_primary_want_prepared_datasets(tars, tmp_path):
    head = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
    joiner = {"__module__": __name__, "__function__": "_keep"}
    join = {"join": [{"path": str(tars / TARS)}, {"path": str(tars / TARS)}], "joiner": joiner}
    (tmp_path / "meta.yaml").write_bytes(dump_yaml({**head, "splits": {"val": join}}))
    with pytest.raises(ConfigError, match="they must be prepared"):
        val(str(tmp_path / "meta.yaml"), declared={})
    encoder = DefaultTaskEncoder()
    encoder.cookers = [Cooker(_with_primary)]
    with pytest.raises(ConfigError, match="needs 'primary', which only prepared folders of tars"):
        val(str(tars / TARS), declared={}, task_encoder=encoder)


@stateless
@cooker(need_primary=True)
def _with_primary(sample, primary):
    return dict(sample)


def test_a_folder_that_cannot_be_written_is_named(tars, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("ENERGON_STREAM_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(StorageError, match=r"cannot be kept.*file/v1/indexes.*ENERGON_STREAM_CACHE_DIR"):
        val(str(tars), cache=False)


def test_progress_is_logged(tars, caplog):
    folder = StoreSpec(str(tars))
    ours = "energon_stream.index.kept_index"
    with caplog.at_level(logging.INFO, ours):
        open_plain(folder, list_tars(folder), split_part="val", log_seconds=0.0)
    levels = [record.levelname for record in caplog.records if record.name == ours]
    assert levels == ["WARNING", "INFO", "INFO", "INFO"]
    assert "1 of 4 tars, 12 samples" in caplog.text
    assert "4 tars of" in caplog.text
    assert "with 48 samples were indexed" in caplog.text


def test_a_failure_ends_what_is_under_way(s3_server, bucket, options, tmp_path):
    """One tar fails at once; of another one, whose first bytes come late, no more is asked for."""
    (large,) = binary_dataset(tmp_path / "large", samples=200, payload_bytes=50_000, shards=1)
    s3_server.replace(f"{bucket}/data-000001.tar", large.read_bytes())
    s3_server.replace(f"{bucket}/data-000000.tar", b"x" * 2048)
    s3_server.add_rule(Rule("delay", "*data-000001.tar", method="GET", seconds=1.0, times=1))
    s3_server.reset_counters()
    with pytest.raises(CorruptTarError, match=r"byte 0: .*data-000000\.tar"):
        val(bucket, storage_options=options)
    assert len(asked(s3_server, "data-000001.tar")) <= 1  # none, if its thread started after the failure
