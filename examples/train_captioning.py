"""Train a small image-caption model on batches streamed from S3, with checkpoints of everything.

One process, one rank. Killed at any moment and started again, it goes on with exactly the batches it
would have seen. Each step is logged as a line ``step digest loss``: the digest covers the keys, pixels and
captions of the batch, so two runs can be compared.

    python examples/train_captioning.py --data s3://bucket/dataset --checkpoint run/ckpt.pth --log run/log.txt
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from pathlib import Path

import torch
from torch import nn

from energon_stream import (
    CaptioningSample,
    DefaultTaskEncoder,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
)

VOCABULARY = 64
SIZE = 32


class Encoder(DefaultTaskEncoder):
    """Fixed-size images; captions hashed to a bag of words."""

    def encode_sample(self, sample: CaptioningSample) -> CaptioningSample:
        image = nn.functional.interpolate(sample.image[None], size=(SIZE, SIZE), mode="bilinear")[0]
        sample.image = image
        return sample


def targets(captions: list[str]) -> torch.Tensor:
    bags = torch.zeros(len(captions), VOCABULARY)
    for row, caption in enumerate(captions):
        for word in caption.split():
            bags[row, int.from_bytes(hashlib.sha1(word.encode()).digest()[:2], "big") % VOCABULARY] = 1.0
    return bags


def digest(batch: CaptioningSample) -> str:
    seen = hashlib.sha1("\0".join([*batch.__key__, *batch.caption]).encode())
    seen.update(batch.image.numpy().tobytes())
    return seen.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="local path or URL of a prepared dataset")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 64), nn.ReLU(), nn.Linear(64, VOCABULARY))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    dataset = get_train_dataset(
        args.data,
        batch_size=args.batch_size,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=WorkerConfig.default_worker_config(args.workers),
        task_encoder=Encoder(),
    )
    loader = get_savable_loader(dataset)
    step = 0
    if args.checkpoint.exists():
        checkpoint = torch.load(args.checkpoint)
        step = checkpoint["step"]
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        loader.restore_state_rank(checkpoint["loader"])

    begin = time.perf_counter()
    first = step
    with args.log.open("a") as log:
        for batch in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(model(batch.image), targets(batch.caption))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            log.write(f"{step} {digest(batch)} {loss.item():.9f}\n")
            log.flush()
            if step % args.save_every == 0:
                state = {
                    "step": step,
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "loader": loader.save_state_rank(),
                }
                unfinished = args.checkpoint.with_suffix(".tmp")
                torch.save(state, unfinished)
                os.replace(unfinished, args.checkpoint)
            if step >= args.steps:
                break
    seconds = time.perf_counter() - begin
    counted = loader.io_counters()
    loader.close()
    print(
        f"steps {first + 1} to {step}: {(step - first) * args.batch_size / seconds:,.0f} samples/s,"
        f" {counted.total_requests} data and index requests, {counted.bytes_received / 1e6:.1f} MB"
    )


if __name__ == "__main__":
    main()
