"""Draws the picture of docs/guides/top.md, with loaders that read: ``python docs/tools/top_picture.py``."""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from energon_stream import ReadOptions, WorkerConfig, get_loader, get_train_dataset
from energon_stream.testing.datasets import prepared_binary_dataset
from energon_stream.testing.s3server import S3Server
from energon_stream.tools.top import read_board
from energon_stream.tools.top.screen import TopApp

RANKS = 4


def train(rank: str, endpoint: str) -> None:
    """Read until the parent ends this process; rank 2 trains quickly, so it waits."""
    dataset = get_train_dataset(
        "s3://bucket/data",
        batch_size=16,
        shuffle_buffer_size=100,
        max_samples_per_sequence=50,
        worker_config=WorkerConfig(int(rank), RANKS, 1),
        read_options=ReadOptions(byte_budget=16 << 20),  # less than the data, so that it is read again
        storage_options={"key": "k", "secret": "s", "endpoint_url": endpoint},
    )
    with get_loader(dataset) as loader:
        for _ in loader:
            time.sleep(0.002 if rank == "2" else 0.1)


async def draw(stats: str, target: Path) -> None:
    """Write a picture of the screen."""
    app = TopApp(partial(read_board, stats), "/shared/job-17/stats")
    async with app.run_test(size=(150, 14)) as pilot:
        await pilot.pause()
        target.write_text(app.export_screenshot())


def main() -> None:
    """Start the ranks, wait until all of them have written, and draw."""
    with tempfile.TemporaryDirectory() as name, S3Server(own_process=True) as server:
        folder = prepared_binary_dataset(Path(name) / "data", shards=8, samples=8000, payload_bytes=20_000)
        server.upload_folder(folder, "s3://bucket/data")
        server.shape(first_byte_latency=0.05, rate=2e6)
        stats = f"{name}/stats"
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__, str(rank), server.endpoint_url],
                env={**os.environ, "ENERGON_STREAM_STATS_DIR": stats},
            )
            for rank in range(RANKS)
        ]
        try:
            while not os.path.isdir(stats) or len(read_board(stats).rows) < RANKS:
                time.sleep(0.2)
            time.sleep(8)
            asyncio.run(draw(stats, Path(__file__).parents[1] / "guides" / "pictures" / "top.svg"))
        finally:
            for rank in ranks:
                rank.terminate()
                rank.wait()


if __name__ == "__main__":
    train(*sys.argv[1:]) if len(sys.argv) > 1 else main()
