"""Draws the picture of docs/guides/bench.md, on a store of 50 ms: ``python docs/tools/bench_picture.py``."""

import tempfile
from pathlib import Path

from energon_stream.testing.datasets import prepared_binary_dataset
from energon_stream.testing.s3server import S3Server
from energon_stream.tools.doctor import measure as bench
from energon_stream.tools.doctor.measure import picture

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name, S3Server(own_process=True) as server:
        folder = prepared_binary_dataset(Path(name) / "data", shards=8, samples=8000, payload_bytes=20_000)
        server.upload_folder(folder, "s3://bucket/data")
        server.shape(first_byte_latency=0.05)
        found = bench(
            "s3://bucket/data",
            batch_size=32,
            seconds=40,
            shuffle_buffer_size=500,
            max_samples_per_sequence=50,
            storage_options=server.storage_options,
        )
    picture(found).quantize(16).save(
        Path(__file__).parents[1] / "guides" / "pictures" / "bench.png", optimize=True
    )
