"""The conformance suite on every store."""

import uuid
from dataclasses import replace
from typing import ClassVar

import pytest

from energon_stream.errors import UnsupportedStoreError
from energon_stream.storage import StoreSpec, run_isolated
from energon_stream.testing.store_suite import StoreConformance


class TestLocal(StoreConformance):
    many = 105  # there are no pages

    @pytest.fixture
    def spec(self, tmp_path):
        return StoreSpec(str(tmp_path / "root"))


class TestMemory(StoreConformance):
    has_versions = False
    many = 105  # there are no pages

    @pytest.fixture
    def spec(self):
        import fsspec

        name = uuid.uuid4().hex
        yield StoreSpec(f"memory://{name}")
        fsspec.filesystem("memory").rm(f"/{name}", recursive=True)


class TestS3Fsspec(StoreConformance):
    transport = "fsspec"

    @pytest.fixture
    def spec(self, s3_server, tmp_bucket):
        return StoreSpec(f"{tmp_bucket}/some folder", s3_server.storage_options, self.transport)

    @pytest.fixture
    def missing_root(self, spec):
        return StoreSpec("s3://no-such-bucket", spec.storage_options, self.transport)

    def test_long_listing(self, spec, filling):
        super().test_long_listing(spec, replace(filling, transport="obstore"))  # it writes faster


class TestS3Obstore(TestS3Fsspec):
    transport = "obstore"

    def test_use_after_fork(self, store):
        """obstore's runtime does not survive a fork, so an error replaces a hang (``auto`` falls back)."""
        store.get("digits")
        with pytest.raises(UnsupportedStoreError, match="fork"):
            run_isolated(store.get, "digits")


class TestLocalStack(TestS3Fsspec):
    pytestmark: ClassVar = [pytest.mark.localstack, pytest.mark.slow]  # by day, the stand-in
    transport = "auto"

    @pytest.fixture
    def spec(self, localstack):
        bucket = f"storage-{uuid.uuid4().hex[:8]}"
        localstack.create_bucket(bucket)
        return StoreSpec(f"s3://{bucket}/some folder", localstack.storage_options, self.transport)

    @pytest.mark.slow  # a thousand puts; the stand-in has pages by day
    def test_long_listing(self, spec, filling):
        super().test_long_listing(spec, filling)
