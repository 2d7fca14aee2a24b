"""Draws the pictures of docs/guides/plan.md: ``python docs/tools/plan_picture.py``."""

import tempfile
from pathlib import Path

from PIL import Image

from energon_stream import WorkerConfig
from energon_stream.testing.datasets import prepared_binary_dataset
from energon_stream.tools.simulate import forecast

ORDERS = (
    {"shuffle_buffer_size": None, "max_samples_per_sequence": None, "parallel_shard_iters": 1},
    {"shuffle_buffer_size": 500, "max_samples_per_sequence": 50, "parallel_shard_iters": 4},
    {"shuffle_buffer_size": 2000, "max_samples_per_sequence": 10},
)

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        folder = prepared_binary_dataset(Path(name) / "data", shards=40, samples=20_000, payload_bytes=100)
        config = WorkerConfig(0, 1, 0)
        maps = [
            forecast(
                folder, steps=600, batch_size=32, worker_config=config, cache=False, **order
            ).order.picture()
            for order in ORDERS
        ]
    width, height = maps[0].size
    whole = Image.new("RGB", (width * len(maps), height), "white")
    for place, picture in enumerate(maps):
        whole.paste(picture, (place * width, 0))
    whole.resize((whole.width // 2, whole.height // 2)).quantize(64).save(
        Path(__file__).parents[1] / "guides" / "pictures" / "plan.png", optimize=True
    )
