"""Conformance suite for stores: the behaviour that the library relies on, whatever is behind a store."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from energon_stream.errors import ObjectChangedError, ObjectNotFoundError, RangeError
from energon_stream.storage import ByteRange, Store, StoreSpec, run_isolated

_DIGITS = b"0123456789"
_ODD_KEYS = (
    *("a.tar", "a/b.tar", "a/b/c d+e%20ü.json", "a/b/snow☃man#?&=.txt", "ab"),
    "z/.nv-meta/.info.json",
)


class StoreConformance:
    """Tests of one store. Derive a test class, and define the fixture ``spec``.

    For a store that cannot be written, override the fixture ``filling`` as well.

    Attributes:
        has_versions: True if the store tells content versions (etags) and honours them.
        has_listing: True if the store can list the objects below a folder.
        many: Number of objects in the listing test; more than one page of the store.
        odd_keys: Keys of the listing test, with all characters that the store takes.

    Example:
        >>> import pytest
        >>> from energon_stream.storage import StoreSpec
        >>> from energon_stream.testing.store_suite import StoreConformance
        >>> class TestFiles(StoreConformance):
        ...     @pytest.fixture
        ...     def spec(self, tmp_path):
        ...         return StoreSpec(f"file://{tmp_path}")
    """

    has_versions = True
    has_listing = True
    many = 1005
    odd_keys = _ODD_KEYS

    @pytest.fixture
    def spec(self) -> StoreSpec:
        """An empty place; override this."""
        raise NotImplementedError("a conformance class must override the 'spec' fixture")

    @pytest.fixture
    def filling(self, spec: StoreSpec) -> StoreSpec:
        """The place to write the objects that ``spec`` reads; override this if it cannot be written."""
        return spec

    @pytest.fixture
    def missing_root(self, spec: StoreSpec) -> StoreSpec:
        """A place that does not exist; a bucket, if the store has buckets."""
        return spec.join("nowhere")

    @pytest.fixture
    def store(self, spec: StoreSpec, filling: StoreSpec) -> Store:
        """The store, holding ``digits`` (ten bytes) and ``empty``."""
        writer = filling.open()
        writer.put("digits", _DIGITS)
        writer.put("empty", b"")
        return spec.open()

    def test_reads_whole_ranges_and_suffixes(self, store: Store) -> None:
        """Each read returns exactly the requested bytes."""
        assert bytes(store.get("digits").data) == _DIGITS
        assert store.get("digits").total_size in (None, 10)
        for start, stop in ((0, 10), (0, 1), (3, 7), (9, 10), (5, 5)):
            assert bytes(store.get_range("digits", ByteRange(start, stop)).data) == _DIGITS[start:stop]
        assert bytes(store.get_suffix("digits", 4).data) == b"6789"
        assert bytes(store.get_suffix("digits", 1000).data) == _DIGITS
        assert store.head("digits").size == 10

    def test_root_may_be_the_object_itself(self, spec: StoreSpec, store: Store) -> None:
        """The path ``""`` is the root."""
        assert bytes(spec.join("digits").open().get("").data) == _DIGITS

    def test_empty_object(self, store: Store) -> None:
        """An object may be empty."""
        assert bytes(store.get("empty").data) == b""
        assert bytes(store.get_suffix("empty", 5).data) == b""
        assert store.head("empty").size == 0

    @pytest.mark.parametrize("bounds", [(5, 11), (10, 11), (20, 30), (-1, 3)])
    def test_range_beyond_the_object_is_an_error(self, store: Store, bounds: tuple[int, int]) -> None:
        """A read never returns fewer bytes without an error."""
        with pytest.raises(RangeError):
            store.get_range("digits", ByteRange(*bounds))

    def test_missing_object_and_root(self, store: Store, missing_root: StoreSpec) -> None:
        """The error names the object."""
        missing = missing_root.open()
        for place in (store, missing):
            with pytest.raises(ObjectNotFoundError, match="absent"):
                place.get("absent")
            with pytest.raises(ObjectNotFoundError, match="absent"):
                place.get_range("absent", ByteRange(0, 1))
            with pytest.raises(ObjectNotFoundError, match="absent"):
                place.head("absent")
        if self.has_listing:
            assert list(store.list("absent")) == []

    def test_replaced_object_is_noticed(self, store: Store, filling: StoreSpec) -> None:
        """Reads of the old version fail, reads of the new one succeed."""
        if not self.has_versions:
            pytest.skip("this store has no content versions")
        old = store.get("digits").etag or store.head("digits").etag
        assert bytes(store.get_range("digits", ByteRange(2, 4), etag=old).data) == b"23"
        filling.open().put("digits", b"a different text")
        with pytest.raises(ObjectChangedError, match="digits"):
            store.get("digits", etag=old)
        with pytest.raises(ObjectChangedError, match="digits"):
            store.get_range("digits", ByteRange(2, 4), etag=old)
        with pytest.raises(ObjectChangedError, match="digits"):
            store.get_suffix("digits", 2, etag=old)
        new = store.head("digits").etag
        assert new != old
        assert bytes(store.get("digits", etag=new).data) == b"a different text"

    def test_keys(self, spec: StoreSpec, filling: StoreSpec) -> None:
        """Keys may have any Unicode characters."""
        writer, store = filling.open(), spec.open()
        for key in self.odd_keys:
            writer.put(key, key.encode())
        for key in self.odd_keys:
            assert bytes(store.get(key).data) == key.encode()
            assert store.head(key).size == len(key.encode())

    def test_listing(self, spec: StoreSpec, filling: StoreSpec) -> None:
        """Listings are recursive, sorted, and below a folder, not below the beginning of a name."""
        self._needs_listing()
        writer, store = filling.open(), spec.open()
        for key in self.odd_keys:
            writer.put(key, key.encode())
        assert [entry.path for entry in store.list()] == sorted(self.odd_keys)
        below = [key for key in sorted(self.odd_keys) if key.startswith("a/")]
        assert [entry.path for entry in store.list("a")] == below
        assert [entry.path for entry in spec.join("a").open().list()] == [key[2:] for key in below]
        for entry in store.list():
            assert entry.meta == store.head(entry.path)
            assert bytes(store.get(entry.path).data) == entry.path.encode()

    def test_long_listing(self, spec: StoreSpec, filling: StoreSpec) -> None:
        """All pages of a listing are read."""
        self._needs_listing()
        writer = filling.open()
        keys = [f"many/{number:06d}" for number in range(self.many)]
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda key: writer.put(key, b""), keys))
        assert [entry.path for entry in spec.open().list("many")] == keys

    def test_put_replaces_and_delete_is_idempotent(
        self, store: Store, spec: StoreSpec, filling: StoreSpec
    ) -> None:
        """A second put replaces the first; deleting twice is no error."""
        if filling != spec:
            pytest.skip("this store is only read")
        store.put("folder/digits", b"first")
        store.put("folder/digits", b"second, longer")
        assert bytes(store.get("folder/digits").data) == b"second, longer"
        store.delete("folder/digits")
        store.delete("folder/digits")
        with pytest.raises(ObjectNotFoundError):
            store.get("folder/digits")
        if self.has_listing:
            assert list(store.list("folder")) == []

    def test_put_file(self, store: Store, filling: StoreSpec, tmp_path: Path) -> None:
        """Large files are written whole."""
        content = bytes(range(256)) * (12 << 12)  # 12 MiB: several parts of a multipart upload
        (tmp_path / "source").write_bytes(content)
        filling.open().put_file("deep/folder/copy", str(tmp_path / "source"))
        assert bytes(store.get("deep/folder/copy").data) == content

    def test_put_file_may_take_the_file(self, store: Store, filling: StoreSpec, tmp_path: Path) -> None:
        """A file that is moved is written whole, and replaces another object."""
        (tmp_path / "source").write_bytes(b"moved")
        filling.open().put_file("digits", str(tmp_path / "source"), move=True)
        assert bytes(store.get("digits").data) == b"moved"

    def test_concurrent_reads(self, store: Store) -> None:
        """Threads share a store."""
        ranges = [ByteRange(start, stop) for start in range(10) for stop in range(start + 1, 11)] * 2
        with ThreadPoolExecutor(16) as pool:
            bodies = list(pool.map(lambda wanted: store.get_range("digits", wanted), ranges))
        assert [bytes(body.data) for body in bodies] == [_DIGITS[r.start : r.stop] for r in ranges]

    def test_usable_again_after_close(self, store: Store) -> None:
        """A closed store opens again when it is used."""
        store.close()
        assert bytes(store.get("digits").data) == _DIGITS

    def test_spec_travels_by_pickle(self, spec: StoreSpec, store: Store) -> None:
        """Another process opens the store from the spec alone."""
        copy = pickle.loads(pickle.dumps(spec))
        assert copy == spec
        assert bytes(copy.open().get("digits").data) == _DIGITS

    def test_use_after_fork(self, store: Store) -> None:
        """A store that was used before a fork works in the child, and afterwards in the parent."""
        assert bytes(store.get("digits").data) == _DIGITS
        assert run_isolated(lambda: bytes(store.get("digits").data)) == _DIGITS
        assert bytes(store.get("digits").data) == _DIGITS

    def _needs_listing(self) -> None:
        if not self.has_listing:
            pytest.skip("this store cannot list")
