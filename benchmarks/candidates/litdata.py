"""LitData over its chunks, written from the same samples by ``prepare_peers.py``."""

import os

from candidates import BATCH, collate_as, passes


def prepare(spec: dict):
    """Import, and return what opens the loader."""
    os.environ["LITDATA_DISABLE_VERSION_CHECK"] = "1"
    options = {}
    if spec.get("endpoint"):
        os.environ |= {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}
        os.environ |= {"AWS_ENDPOINT_URL": spec["endpoint"], "AWS_REGION": "us-east-1"}
        _allow_plain_http()
        options = {"storage_options": {"endpoint_url": spec["endpoint"]}, "cache_dir": spec["cache"]}
    import litdata

    def open_loader():
        dataset = litdata.StreamingDataset(spec["path"], shuffle=True, **options)
        loader = litdata.StreamingDataLoader(
            dataset, batch_size=BATCH, num_workers=spec["workers"], collate_fn=_Collate(spec)
        )
        return passes(loader, spec.get("repeat", True))

    return open_loader


def _allow_plain_http() -> None:
    """LitData 0.2.76 never lets its obstore client use http:// ("builder error"), so the client is told
    here.
    """
    import obstore.store

    class S3Store(obstore.store.S3Store):
        def __new__(cls, *args, client_options=None, **kwargs):
            options = {**(client_options or {}), "allow_http": True}
            return super().__new__(cls, *args, client_options=options, **kwargs)

        def __init__(self, *args, **kwargs):
            pass  # all is done in __new__

    obstore.store.S3Store = S3Store


class _Collate:
    """Makes batches. LitData's workers give views of bytes, which no queue of processes can send."""

    def __init__(self, spec: dict) -> None:
        self._collate = collate_as(spec)
        self._copies = spec.get("raw_parts") != "memoryview"

    def __call__(self, samples: list) -> dict:
        if not self._copies:
            return self._collate(samples)
        owned = [
            {name: bytes(part) if isinstance(part, memoryview) else part for name, part in sample.items()}
            for sample in samples
        ]
        return self._collate(owned)
