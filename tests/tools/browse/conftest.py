"""Datasets of friends and of strangers."""

import json

import pytest
from browse_client import HACK, HOSTILE_KEYS, HTML, SVG, image_bytes, write_dataset

from energon_stream.testing.datasets import prepared_captioning_dataset, random_bytes


@pytest.fixture(scope="session")
def captions(tmp_path_factory):
    """48 pairs of image and caption with JSON in six shards of the split part train, and 8 in val."""
    return prepared_captioning_dataset(
        tmp_path_factory.mktemp("browse") / "captions",
        shards=7,
        samples_per_shard=8,
        with_json=True,
        split_ratio=(6, 1, 0),
    )


@pytest.fixture(scope="session")
def media(tmp_path_factory):
    """Large samples: a member of 3 MB between texts, and one of unknown kind."""
    samples = {
        f"{number:04d}": {
            "txt": f"before {number}".encode(),
            "mp4": random_bytes(3_000_000, "mp4", number),
            "json": json.dumps({"after": number}).encode(),
            "npy": b"x" * 100,
        }
        for number in range(3)
    }
    return write_dataset(tmp_path_factory.mktemp("browse") / "media", [samples])


@pytest.fixture(scope="session")
def hostile(tmp_path_factory):
    """A dataset that attacks who looks at it."""
    caption = f"<script>{HACK}</script><img src=x onerror={HACK}> \x1b[2J \u202e"
    samples = {
        key: {
            "png": image_bytes(),
            "txt": caption.encode(),
            "json": json.dumps({"html": caption}).encode(),
            "svg": SVG,
            "html": HTML,
        }
        for key in HOSTILE_KEYS
    }
    samples["bomb"] = {"png": image_bytes((9000, 9000), mode="1")}
    samples["broken"] = {"jpg": b"no image", "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"}
    return write_dataset(tmp_path_factory.mktemp("browse") / "hostile", [samples])
