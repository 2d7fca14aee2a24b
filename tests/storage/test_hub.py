"""``hf://`` URLs: repositories and buckets of the hub, on a stand-in with the endpoints of HfFileSystem."""

import shutil

import pytest

from energon_stream import WorkerConfig, get_loader, get_val_dataset, open_dataset
from energon_stream.errors import (
    AccessDeniedError,
    ConfigError,
    NotPreparedError,
    ObjectChangedError,
    ObjectNotFoundError,
    TransientStorageError,
)
from energon_stream.storage import ByteRange, RetryPolicy, StoreSpec
from energon_stream.testing.datasets import prepared_text_dataset
from energon_stream.testing.store_suite import StoreConformance

pytest.importorskip("huggingface_hub")

from hub import BUCKET, REPOSITORY, Hub


@pytest.fixture
def hub(tmp_path):
    with Hub(tmp_path / "hub") as running:
        yield running


class TestRepository(StoreConformance):
    many = 405
    odd_keys = tuple(key for key in StoreConformance.odd_keys if not key.startswith("@"))

    @pytest.fixture
    def spec(self, hub):
        return StoreSpec(f"hf://{REPOSITORY}/some/folder", hub.storage_options)

    @pytest.fixture
    def filling(self, hub):
        return StoreSpec(str(hub.root / REPOSITORY / "some/folder"))

    @pytest.fixture
    def missing_root(self, hub):
        return StoreSpec("hf://datasets/user/nowhere/x", hub.storage_options)


class TestBucket(TestRepository):
    @pytest.fixture
    def spec(self, hub):
        return StoreSpec(f"hf://{BUCKET}/some/folder", hub.storage_options)

    @pytest.fixture
    def filling(self, hub):
        return StoreSpec(str(hub.root / BUCKET / "some/folder"))

    @pytest.fixture
    def missing_root(self, hub):
        return StoreSpec("hf://buckets/user/nowhere/x", hub.storage_options)

    def test_listing(self, spec, filling):
        """Listings of buckets have no versions that reads have."""
        for key in self.odd_keys:
            filling.open().put(key, key.encode())
        store = spec.open()
        found = {entry.path: entry.meta.size for entry in store.list()}
        assert found == {key: store.head(key).size for key in self.odd_keys}
        assert {entry.path for entry in store.list("a")} == {key for key in found if key.startswith("a/")}


@pytest.mark.every(2)
@pytest.mark.parametrize("place", [REPOSITORY, BUCKET])
def test_a_dataset_is_read_by_one_request_a_sample(hub, tmp_path, place):
    folder = prepared_text_dataset(tmp_path / "texts", shards=2, samples_per_shard=10)
    shutil.copytree(folder, hub.root / place / "texts")
    where = {"path": f"hf://{place}/texts", "storage_options": hub.storage_options}
    dataset = open_dataset(**where)
    assert dataset[0].text == "text 0"  # this process asks once whether the place exists
    for index in (3, 17, 18):
        hub.log.clear()
        assert dataset[index].text == f"text {index}"
        assert [name for name, _ in hub.reads()] == [f"data-{index // 10:06d}.tar"]
        assert len(hub.log) == 2  # and the redirect
    assert dataset.by_key("00000012").text == "text 12"
    config = WorkerConfig(0, 1, 2)
    streamed = get_val_dataset(**where, split_part="train", batch_size=5, worker_config=config)
    assert sorted(text for batch in get_loader(streamed) for text in batch.text) == sorted(
        f"text {number}" for number in range(20)
    )


def test_answers_of_the_hub_have_names(hub, tmp_path):
    (hub.root / REPOSITORY / "digits").write_bytes(b"0123456789")
    once = {"policy": RetryPolicy(attempts=1)}
    spec = StoreSpec(f"hf://{REPOSITORY}", hub.storage_options)
    store = spec.open(**once)
    version = store.get("digits").etag
    assert bytes(store.get_range("digits", ByteRange(2, 5), etag=version).data) == b"234"
    (hub.root / REPOSITORY / "digits").write_bytes(b"9876543210")
    with pytest.raises(ObjectChangedError, match="digits"):
        store.get_range("digits", ByteRange(2, 5), etag=version)
    for status, error in (
        (503, TransientStorageError),
        (500, TransientStorageError),
        (403, AccessDeniedError),
    ):
        hub.fail.append(status)
        with pytest.raises(error, match=rf"HTTP {status}.*{REPOSITORY}/digits"):
            store.get("digits")
    hub.fail += [500, 503]
    assert bytes(spec.open().get("digits").data) == b"9876543210"  # tried again
    with pytest.raises(ObjectNotFoundError, match="Entry not found"):
        store.get("nothing")
    for url in (f"hf://{REPOSITORY}@other", "hf://datasets/user/nothing", "hf://buckets/user/nothing"):
        with pytest.raises(ObjectNotFoundError, match=url):
            StoreSpec(url, hub.storage_options).open(**once).get("digits")


def test_tokens_are_sent_and_not_shown(tmp_path, caplog):
    with Hub(tmp_path / "hub", token="hf_secret") as hub:
        (hub.root / REPOSITORY / "digits").write_bytes(b"0123456789")
        spec = StoreSpec(f"hf://{REPOSITORY}", hub.storage_options)
        assert bytes(spec.open().get("digits").data) == b"0123456789"
        wrong = StoreSpec(f"hf://{REPOSITORY}", {**hub.storage_options, "token": "hf_other"})
        with pytest.raises(AccessDeniedError) as caught:
            wrong.open().get("digits")
        assert "hf_other" not in f"{caught.value!r} {caught.value} {caplog.text} {spec!r}"


@pytest.mark.parametrize("place", ["datasets/user/nothing", "buckets/user/nothing", f"{REPOSITORY}@other"])
def test_a_missing_repository_is_not_called_a_dataset_that_is_not_prepared(hub, place):
    """A folder that is missing in a repository is."""
    options = {
        "storage_options": hub.storage_options,
        "batch_size": 1,
        "worker_config": WorkerConfig(0, 1, 0),
    }
    with pytest.raises(ObjectNotFoundError, match=r"no such repository.*token"):
        get_val_dataset(f"hf://{place}/texts", **options)
    with pytest.raises(NotPreparedError):
        get_val_dataset(f"hf://{REPOSITORY}/texts", **options)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"tokn": "hf_secret"}, "did you mean 'token'"),
        ({"anon": True}, "no storage option 'anon'"),
        ({"token": b"hf_secret"}, "'token' is bytes"),
        ({"token": ""}, "'token' is empty"),
        ({"endpoint": "localhost:80"}, "'endpoint' is no http"),
    ],
)
def test_wrong_storage_options_are_refused(hub, wrong, match):
    """huggingface_hub passes over names that it does not know."""
    with pytest.raises(ConfigError, match=f"(?i){match}") as caught:
        list(StoreSpec(f"hf://{REPOSITORY}", {**hub.storage_options, **wrong}).open().list())
    assert "hf_secret" not in str(caught.value)
