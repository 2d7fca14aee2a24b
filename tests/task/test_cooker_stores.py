"""Cookers with auxiliary data, the sample's own dataset and a cache pool, through loaders."""

import json
from itertools import islice

import pytest

from energon_stream import (
    Cooker,
    DefaultTaskEncoder,
    FileCacheLazy,
    FileStoreCachePool,
    NoCachePool,
    Sample,
    WorkerConfig,
    basic_sample_keys,
    cooker,
    edataclass,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    prepare_metadataset,
    stateless,
)
from energon_stream.errors import ConfigError, FieldError
from energon_stream.index.jsonl_index import prepare_jsonl
from energon_stream.index.yaml_io import dump_yaml
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import CRUDE_YAML, random_bytes, write_shards
from energon_stream.testing.s3server import S3Server

SAMPLES, PAYLOAD = 24, 20_000
TEXTS = {
    "sample_type": {"__module__": "megatron.energon", "__class__": "TextSample"},
    "field_map": {"text": "txt"},
}
AUX = {"media": "../media", "notes": "filesystem://../notes"}


def payload(number):
    return random_bytes(PAYLOAD, "media", number)


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Texts that name media in another dataset and notes in a folder."""
    lake = tmp_path_factory.mktemp("s3") / "lake"

    def dataset(name, parts, yaml=CRUDE_YAML, shards=2):
        write_shards(lake / name, shards=shards, samples_per_shard=SAMPLES // shards, parts=parts)
        prepare_dataset(str(lake / name), split_ratio=(1, 0, 0), dataset_yaml=yaml)

    def text(number):
        other = SAMPLES - 1 - number
        refers = {"number": number, "media": f"{other:08d}.bin", "note": f"{number}.json"}
        return {"json": json.dumps(refers).encode(), "txt": f"text {number}".encode()}

    dataset("texts", text)
    dataset("typed", text, TEXTS)
    dataset("media", lambda number: {"bin": payload(number)}, shards=3)
    (lake / "notes").mkdir()
    for number in range(SAMPLES):
        (lake / "notes" / f"{number}.json").write_text(json.dumps({"note": number}))
    (lake / "yaml").mkdir()
    metadataset(lake, "both", {"path": "../texts", "aux": AUX})
    return lake


def metadataset(lake, name, node):
    document = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"train": node}}
    path = lake / "yaml" / f"{name}.yaml"
    path.write_bytes(dump_yaml(json.loads(json.dumps(document))))  # without aliases
    return path


@edataclass
class Cooked(Sample):
    number: int
    media: object
    note: dict
    own: str


@stateless
@cooker(need_cache=True, need_primary=True)
def cook(sample, *, media, notes, primary, cache):
    refers = sample["json"]
    return Cooked(
        **basic_sample_keys(sample),
        number=refers["number"],
        media=cache.get_lazy(media, refers["media"]),
        note=cache.get(notes, refers["note"], sample),
        own=primary.get(".txt"),
    )


class Encoder(DefaultTaskEncoder):
    cookers = [Cooker(cook)]

    @stateless
    def encode_sample(self, sample):
        assert isinstance(sample.media, FileCacheLazy) is not isinstance(self.cache, NoCachePool)
        media = sample.media.get(sample)
        return Cooked.extend(sample, media=media)


def open_dataset(path, encoder=None, workers=0, server=None, **changes):
    return get_train_dataset(
        path if server is None else f"s3://lake/yaml/{path.name}",
        batch_size=changes.pop("batch_size", None),
        shuffle_buffer_size=8,
        max_samples_per_sequence=None,
        worker_config=WorkerConfig(0, 1, workers, num_streams=2),
        task_encoder=encoder or Encoder(),
        storage_options=server and server.storage_options,
        repeat=False,
        **changes,
    )


def check(samples):
    assert sorted(sample.number for sample in samples) == list(range(SAMPLES))
    for sample in samples:
        assert sample.media == payload(SAMPLES - 1 - sample.number)
        assert sample.note == {"note": sample.number}  # decoded as the encoder says
        assert sample.own == f"text {sample.number}"
        names = [name for source in sample.__sources__ for name in source.file_names]
        assert f"{SAMPLES - 1 - sample.number:08d}.bin" in names


@pytest.mark.every(3)
@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("place", ["local", "s3"])
@pytest.mark.parametrize("workers", [0, 2])
def test_samples_are_completed_from_stores(lake, tmp_path, workers, place, pooled):
    pool = FileStoreCachePool(tmp_path, method="pickle") if pooled else None
    with S3Server(lake.parent) as server:
        remote = server if place == "s3" else None
        dataset = open_dataset(lake / "yaml" / "both.yaml", workers=workers, server=remote)
        with get_loader(dataset, cache_pool=pool) as loader:
            samples = list(loader)
            check(samples)
            assert bool(list(tmp_path.iterdir())) is pooled
            assert loader.can_restore_sample()
            again = loader.restore_sample(samples[7].__restore_key__)
            assert (again.number, again.media) == (samples[7].number, samples[7].media)
    if workers:  # gone with the workers
        assert not list(tmp_path.iterdir())
    if pool is not None:
        pool.close()
        assert not list(tmp_path.iterdir())


def test_a_lookup_is_one_request(lake, tmp_path):
    """Facts 4.9, end to end: 20 kB of media a sample cost 20 kB and a header, once an index was read."""
    with S3Server(lake.parent) as server:
        dataset = open_dataset(lake / "yaml" / "both.yaml", server=server)
        pool = FileStoreCachePool(tmp_path)
        with get_loader(dataset, cache_pool=pool) as loader:
            check(list(loader))
        pool.close()
        log = [entry for entry in server.log() if "/media/" in entry.key]
    shards = [entry for entry in log if entry.key.endswith(".tar")]
    assert len(shards) == SAMPLES
    assert {entry.method for entry in log} == {"GET"}
    sizes = [1 + int(last) - int(first) for first, last in (entry.range[6:].split("-") for entry in shards)]
    assert sizes == [512 + PAYLOAD] * SAMPLES  # the header, whose name and size are compared
    assert len(log) - len(shards) == 2  # .info.json, index.sqlite


@pytest.mark.every(2)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_restored_run_cooks_the_same(lake, tmp_path, workers):
    def loader():
        pool = FileStoreCachePool(tmp_path)
        dataset = open_dataset(lake / "yaml" / "both.yaml", Packer(), workers, packing_buffer_size=5)
        return get_savable_loader(dataset, cache_pool=pool), pool

    class Packer(Encoder):
        def select_samples_to_pack(self, samples):
            return [samples[i : i + 2] for i in range(0, len(samples), 2)]

        @stateless
        def pack_selected_samples(self, samples):
            return {"__restore_key__": (), "media": b"".join(sample.media for sample in samples)}

    first, pool = loader()
    with first:
        running = iter(first)
        list(islice(running, 3))
        state = first.save_state_rank()
        tail = [pack["media"] for pack in running]
    pool.close()
    second, pool = loader()
    with second:
        second.restore_state_rank(state)
        assert [pack["media"] for pack in second] == tail
    pool.close()


def test_each_source_has_its_own_stores(lake):
    """Also when the encoder blends by itself, and its cooker is chosen by subflavors."""
    node = [
        {"path": "../texts", "subflavors": {"with": name}, "aux": {name: ref}} for name, ref in AUX.items()
    ]
    path = metadataset(lake, "each", {"blend": node})

    def with_media(sample, media):
        return {**basic_sample_keys(sample), "size": len(media.get(sample["json"]["media"]))}

    def with_notes(sample, notes=None):
        return {**basic_sample_keys(sample), "size": notes.get(sample["json"]["note"])["note"]}

    class Each(DefaultTaskEncoder):
        cookers = [Cooker(with_media, {"with": "media"}), Cooker(with_notes)]

    dataset = get_train_dataset(
        path,
        batch_size=None,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        worker_config=WorkerConfig(0, 1, 0),
        task_encoder=Each(),
    )
    sizes = {(sample["__subflavors__"]["with"], sample["size"] == PAYLOAD) for sample in islice(dataset, 60)}
    assert sizes == {("media", True), ("notes", False)}


def test_a_join_has_the_stores_of_its_members(lake, tmp_path, monkeypatch):
    (tmp_path / "joiner_of_cooker_stores.py").write_text("def first(one, other):\n    return one\n")
    monkeypatch.syspath_prepend(tmp_path)
    joiner = {"__module__": "joiner_of_cooker_stores", "__function__": "first"}

    def join(name, notes, encoder=None):
        members = [
            {"path": "../texts", "aux": notes and {"media": "../media"}},
            {"path": "../typed", "aux": notes},
        ]
        path = metadataset(lake, name, {"join": members, "joiner": joiner})
        prepare_metadataset(path)
        return open_dataset(path, encoder or Two(), trust_dataset_code=True)

    class Two(DefaultTaskEncoder):
        cookers = (Cooker(lambda sample, media, notes: cook_anything(sample, media=media, notes=notes)),)

    def cook_nobody(sample, nobody): ...

    class Lacking(DefaultTaskEncoder):
        cookers = (Cooker(cook_nobody),)

    dataset = join("join", {"notes": AUX["notes"]})
    assert [sample["stores"] for sample in dataset] == [["media", "notes"]] * SAMPLES
    lacking = join("lacking", {}, encoder=Lacking())  # what a joiner makes is seen when it is made
    with pytest.raises(ConfigError, match=r"cook_nobody asks for nobody.*texts"):
        next(iter(lacking))
    with pytest.raises(
        ConfigError, match="two datasets of the join have different auxiliary data of the name 'media'"
    ):
        join("clash", {"media": "../texts"})


def cook_nothing(sample):
    return sample


def cook_media(sample, media):
    return sample


def cook_unmarked(sample, media, notes, cache):
    return sample


def cook_anything(sample, **stores):
    return {**basic_sample_keys(sample), "stores": sorted(stores)}


@pytest.mark.parametrize(
    ("cook", "node", "message"),
    [
        (
            cook_nothing,
            {"aux": AUX},
            r"no cooker asks for media, notes .*texts.*cook_nothing",
        ),
        (cook_media, {"aux": AUX}, r"no cooker asks for notes"),
        (None, {"aux": AUX}, r"no cooker asks for media, notes.*[Gg]ive the task encoder"),
        (None, {"path": "../typed", "aux": AUX}, r"no cooker asks for media, notes"),
        (cook_media, {}, r"cook_media asks for media, which the dataset does not have.*under aux:"),
        (cook_unmarked, {"aux": AUX}, r"asks for cache, which .*need_cache=True"),
    ],
)
def test_stores_that_do_not_fit_are_named_before_anything_is_read(lake, cook, node, message):
    class Unfit(DefaultTaskEncoder):
        cookers = () if cook is None else (Cooker(cook),)

    path = metadataset(lake, "unfit", {"path": "../texts", **node})
    with pytest.raises(ConfigError, match=message):
        open_dataset(path, Unfit())


def test_cookers_may_take_any_store(lake):
    class Any(DefaultTaskEncoder):
        cookers = (Cooker(cook_anything),)

    assert next(iter(open_dataset(lake / "yaml" / "both.yaml", Any())))["stores"] == ["media", "notes"]


def test_a_primary_that_has_no_names(lake):
    (lake / "lines.jsonl").write_text('{"a": 1}\n' * 4)
    prepare_jsonl(str(lake / "lines.jsonl"))

    class Primary(DefaultTaskEncoder):
        cookers = (Cooker(cooker(need_primary=True)(lambda sample, primary: sample)),)

    with pytest.raises(ConfigError, match=r"needs 'primary'.*lines\.jsonl"):
        open_dataset(lake / "lines.jsonl", Primary())


def test_a_missing_name_is_a_bad_sample(lake):
    seen = []

    def cook(sample, media):
        return {**basic_sample_keys(sample), "media": media.get(f"{sample['json']['number'] + 3:08d}.bin")}

    class Missing(DefaultTaskEncoder):
        cookers = (Cooker(cook),)

    dataset = get_train_dataset(
        metadataset(lake, "media", {"path": "../texts", "aux": {"media": "../media"}}),
        batch_size=None,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        worker_config=WorkerConfig(
            0, 1, 0, global_error_handler=lambda error, sample, sources: seen.append((error, sources))
        ),
        task_encoder=Missing(),
        repeat=False,
    )
    assert len(list(dataset)) == SAMPLES - 3
    assert [type(error) for error, _ in seen] == [FieldError] * 3
    assert all(sources[0].dataset_path.endswith("texts") for _, sources in seen)
