"""Write a small image and caption dataset into a bucket of any S3 endpoint, and prepare it there.

Endpoint and keys come from the standard variables: AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_REGION.
"""

from __future__ import annotations

import argparse
import tempfile

import fsspec

from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import CAPTIONING_YAML, captioning_dataset


def seed(url: str, *, shards: int, samples_per_shard: int) -> None:
    """Write and prepare a dataset at ``s3://bucket/prefix``; a missing bucket is made."""
    files, root = fsspec.url_to_fs(url)
    bucket = root.split("/", 1)[0]
    if not files.exists(bucket):
        files.call_s3("create_bucket", Bucket=bucket)
    with tempfile.TemporaryDirectory() as folder:
        for path in captioning_dataset(folder, shards=shards, samples_per_shard=samples_per_shard):
            files.put_file(str(path), f"{root}/{path.name}")
    prepare_dataset(url, split_ratio=(8, 1, 1), dataset_yaml=CAPTIONING_YAML)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="s3://bucket/prefix")
    parser.add_argument("--shards", type=int, default=10)
    parser.add_argument("--samples-per-shard", type=int, default=100)
    options = parser.parse_args()
    seed(options.url, shards=options.shards, samples_per_shard=options.samples_per_shard)
    print(f"{options.shards * options.samples_per_shard} samples in {options.url}")


if __name__ == "__main__":
    main()
