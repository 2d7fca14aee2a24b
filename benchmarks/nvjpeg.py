"""Decoding JPEG files on the GPU, against Pillow in worker processes: images a second, CPU time, and pixels.

Run: ``python benchmarks/nvjpeg.py``. Needs CUDA and torchvision; it takes two to four minutes with 16 cores.
Images of 512 x 384 come from local tars, or from memory in torch's own ``DataLoader``. Batches of 64 are
ready on the device. CPU time is that of all processes together. Without CUDA, Pillow decodes all: a trial.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from energon_stream import DefaultTaskEncoder, SampleDecoder, WorkerConfig, get_loader, get_train_dataset
from energon_stream.integrations.device import prefetch_to_device
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import CRUDE_YAML, write_shards

BATCH, DISTINCT = 64, 256
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def picture(seed: int, width: int = 512, height: int = 384) -> Image.Image:
    """Coarse shapes with some grain: about as many bytes as a photograph."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (height // 16, width // 16, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), dtype=np.int16)
    return Image.fromarray(np.clip(smooth + rng.normal(0, 6, smooth.shape), 0, 255).astype(np.uint8))


def encoded(image: Image.Image, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90, **options)
    return file.getvalue()


class InMemory(Dataset[torch.Tensor]):
    """Pillow in a dataset for torch's ``DataLoader``."""

    def __init__(self, files: list[bytes], count: int) -> None:
        self.files, self.count = files, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> torch.Tensor:
        with Image.open(io.BytesIO(self.files[number % len(self.files)])) as image:
            return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


class Encoder(DefaultTaskEncoder):
    def __init__(self, backend: str) -> None:
        super().__init__()
        self.decoder = SampleDecoder(image_decode="torchrgb8", image_backend=backend)

    def encode_sample(self, sample: Any) -> dict[str, Any]:
        return {"image": sample["jpg"]}


def ours(folder: Path, backend: str, workers: int) -> Any:
    dataset = get_train_dataset(
        folder, batch_size=BATCH, task_encoder=Encoder(backend), worker_config=WorkerConfig(0, 1, workers)
    )
    return prefetch_to_device(get_loader(dataset), DEVICE, depth=2)


def wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def cpu_seconds() -> float:
    """Return the CPU time of this process, its workers, and the processes that ended before."""
    ticks = 0
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            fields = file.read_text().rpartition(")")[2].split()
            if int(fields[3]) == os.getsid(0):
                ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def timed(
    name: str, open_loader: Callable[[], Iterable[Any]], count: int, close: Callable[[Any], None]
) -> None:
    """Print images a second after the first ten batches, and CPU time an image of all processes."""
    before, loader = cpu_seconds(), open_loader()
    begin, seen = 0.0, 0
    for number, batch in enumerate(loader):
        if number == 10:
            wait()
            begin = time.perf_counter()
        image = batch["image"] if isinstance(batch, dict) else batch.to(DEVICE, non_blocking=True)
        seen += len(image)
        if seen >= count + 10 * BATCH:
            break
    wait()
    taken, used = time.perf_counter() - begin, cpu_seconds() - before
    close(loader)
    print(f"{name}: {count / taken:,.0f} images/s, {used / seen * 1e3:.2f} CPU-ms an image", flush=True)


def alone(files: list[bytes], rounds: int) -> None:
    """Print how many images a second the GPU decodes by itself."""
    from torchvision.io import ImageReadMode, decode_jpeg

    batch = [torch.frombuffer(bytearray(each), dtype=torch.uint8) for each in files[:BATCH]]
    rates = []
    for _ in range(rounds):
        begin = time.perf_counter()
        decode_jpeg(batch, ImageReadMode.RGB, device="cuda")
        torch.cuda.synchronize()
        rates.append(BATCH / (time.perf_counter() - begin))
    print(f"GPU alone, batches of {BATCH}: {statistics.median(rates):,.0f} images/s", flush=True)


def compare() -> None:
    """Print how far the pixels are from Pillow's."""
    from torchvision.io import ImageReadMode, decode_jpeg

    kinds: dict[str, dict[str, Any]] = {
        "4:2:0": {"subsampling": 2},
        "4:2:2": {"subsampling": 1},
        "4:4:4": {"subsampling": 0},
        "progressive": {"progressive": True},
    }
    for name, options in [*kinds.items(), ("grey", {})]:
        differences = []
        for seed in range(8):
            image = picture(seed, 501 + seed, 377 + seed)
            file = encoded(image.convert("L") if name == "grey" else image, **options)
            data = torch.frombuffer(bytearray(file), dtype=torch.uint8)
            try:
                found = (
                    decode_jpeg([data], ImageReadMode.RGB, device="cuda")[0].permute(1, 2, 0).cpu().numpy()
                )
            except RuntimeError as error:
                print(f"{name}: falls back to Pillow ({str(error).splitlines()[0][:100]})", flush=True)
                break
            wanted = np.asarray(Image.open(io.BytesIO(file)).convert("RGB"))
            if found.shape != wanted.shape:
                print(f"{name}: shape {found.shape}, and by Pillow {wanted.shape}", flush=True)
                break
            differences.append(np.abs(found.astype(np.int16) - wanted))
        else:
            mean = statistics.mean(float(each.mean()) for each in differences)
            worst = max(int(each.max()) for each in differences)
            equal = statistics.mean(float((each == 0).mean()) for each in differences)
            print(
                f"{name}: mean absolute difference {mean:.3f}, largest {worst}, {equal:.1%} equal", flush=True
            )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=32768, help="of each measurement")
    parser.add_argument("--workers", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    name = torch.cuda.get_device_name() if DEVICE == "cuda" else "no GPU"
    print(f"{name}, torch {torch.__version__}, {os.cpu_count()} cores", flush=True)
    files = [encoded(picture(seed)) for seed in range(DISTINCT)]
    print(f"{sum(map(len, files)) / len(files):,.0f} bytes an image", flush=True)
    if DEVICE == "cuda":
        compare()
        alone(files, 20)

    def in_memory(workers: int) -> DataLoader[torch.Tensor]:
        data = InMemory(files, options.images + 20 * BATCH)
        return DataLoader(data, BATCH, num_workers=workers, pin_memory=DEVICE == "cuda", prefetch_factor=4)

    with tempfile.TemporaryDirectory() as folder:
        write_shards(
            folder, shards=8, samples_per_shard=256, parts=lambda number: {"jpg": files[number % DISTINCT]}
        )
        prepare_dataset(folder, split_ratio=(1, 0, 0), dataset_yaml=CRUDE_YAML)
        for _ in range(options.rounds):
            for workers in options.workers:
                name = f"torch DataLoader, Pillow, {workers} workers, from memory"
                timed(name, lambda workers=workers: in_memory(workers), options.images, lambda _: None)
                for backend, count in (("pillow", workers), ("nvjpeg", workers // 4)):
                    timed(
                        f"energon_stream, {backend}, {count} workers, from tars",
                        lambda backend=backend, count=count: ours(Path(folder), backend, count),
                        options.images,
                        lambda loader: loader.close(),
                    )


if __name__ == "__main__":
    main()
