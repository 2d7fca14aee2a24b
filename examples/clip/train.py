"""Trains an image and a text encoder to agree, as CLIP does; killed and started again, it goes on exactly.

    python examples/clip/train.py FOLDER [--steps 60] [--workers 2]

It makes small data in FOLDER at the first run: photos with captions. For your own data, pass the path or URL
of a prepared dataset of images and captions to ``open_loader``, and put your encoders in place of ``Clip``.
"""

import argparse
import hashlib
import io
import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from energon_stream import (
    CaptioningSample,
    DefaultTaskEncoder,
    SampleDecoder,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    prepare_dataset,
    stateless,
)
from energon_stream.testing.datasets import CAPTIONING_YAML, write_shards

COLORS = {"red": (220, 40, 40), "green": (40, 200, 60), "blue": (50, 60, 220), "white": (240, 240, 240)}
PLACES = {"left": (0, 32), "right": (64, 32), "top": (32, 0), "bottom": (32, 64)}
SIDE, WORDS, BATCH, SAVE_EVERY = 32, 256, 16, 10


def make_data(folder):
    """JPEGs of 96 x 96: a square of one color at one place, with its caption."""
    chosen = [(color, place) for color in COLORS for place in PLACES]

    def parts(number):
        color, place = chosen[number % len(chosen)]
        pixels = np.random.default_rng(number).integers(0, 60, (96, 96, 3), dtype=np.uint8)
        left, top = PLACES[place]
        pixels[top : top + 32, left : left + 32] = COLORS[color]
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=90)
        return {"jpg": file.getvalue(), "txt": f"a {color} square at the {place}".encode()}

    write_shards(folder, shards=4, samples_per_shard=64, parts=parts, key="{:05d}")
    prepare_dataset(str(folder), split_ratio=(1, 0, 0), dataset_yaml=CAPTIONING_YAML)


def tokens_of(caption):
    """A number for each word; 0 is left for padding. Put your tokenizer here."""
    digests = [hashlib.sha1(word.encode()).digest() for word in caption.split()]
    return torch.tensor([1 + int.from_bytes(digest[:4], "big") % (WORDS - 1) for digest in digests])


class ClipTask(DefaultTaskEncoder):
    # JPEGs that are larger than needed are decoded at a half, a quarter or an eighth of their size.
    # image_backend="simplejpeg" is faster, where it is installed.
    decoder = SampleDecoder(image_decode="torchrgb", image_min_size=(SIDE, SIDE))

    @stateless(restore_seeds=True)  # the crop is drawn anew each time, and the same after a resume
    def encode_sample(self, sample: CaptioningSample) -> dict:
        height, width = sample.image.shape[1:]
        side = int(min(height, width) * (0.9 + 0.1 * torch.rand(())))
        top, left = (int(torch.randint(0, size - side + 1, ())) for size in (height, width))
        crop = sample.image[None, :, top : top + side, left : left + side]
        image = nn.functional.interpolate(crop, size=(SIDE, SIDE), mode="bilinear", antialias=True)[0]
        return {
            "__key__": sample.__key__,
            "__restore_key__": sample.__restore_key__,
            "image": image,
            "tokens": tokens_of(sample.caption),
        }


class Clip(nn.Module):
    """Two small encoders and a temperature."""

    def __init__(self, width=64):
        super().__init__()
        self.image = nn.Sequential(
            nn.Conv2d(3, 16, 4, 4), nn.ReLU(), nn.Flatten(), nn.Linear(16 * (SIDE // 4) ** 2, width)
        )
        self.text = nn.EmbeddingBag(WORDS, width, mode="mean", padding_idx=0)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, images, tokens):
        """The similarity of each image to each text, of shape ``(images, texts)``."""
        seen = nn.functional.normalize(self.image(images), dim=-1)
        read = nn.functional.normalize(self.text(tokens), dim=-1)
        return self.scale.exp() * seen @ read.T


def contrastive_loss(similarity, tokens):
    """Each image finds its texts, and each text its images; equal texts in a batch are equally right."""
    same = (tokens[:, None] == tokens[None]).all(-1).float()
    wanted = same / same.sum(-1, keepdim=True)
    loss = nn.functional.cross_entropy
    return (loss(similarity, wanted) + loss(similarity.T, wanted)) / 2


def open_loader(data, workers):
    dataset = get_train_dataset(
        str(data),
        batch_size=BATCH,
        batch_drop_last=True,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=WorkerConfig.default_worker_config(workers),
        task_encoder=ClipTask(),
    )
    return get_savable_loader(dataset)


def main(folder, steps=60, workers=0):
    """Train until a step, from the checkpoint in the folder if there is one; return the loss of each step."""
    data, checkpoint = folder / "data", folder / "checkpoint.pt"
    if not data.exists():
        make_data(data)
    torch.manual_seed(0)
    model = Clip()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = open_loader(data, workers)
    losses = []
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        losses = saved["losses"]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.restore_state_rank(saved["loader"])
    with loader:
        for batch in loader:
            if len(losses) >= steps:
                break
            loss = contrastive_loss(model(batch["image"], batch["tokens"]), batch["tokens"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if len(losses) % SAVE_EVERY == 0:
                print(f"step {len(losses)}: loss {loss.item():.3f}", flush=True)
                state = {
                    "losses": losses,
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "loader": loader.save_state_rank(),
                }
                torch.save(state, checkpoint.with_suffix(".tmp"))
                os.replace(checkpoint.with_suffix(".tmp"), checkpoint)
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    main(arguments.folder, arguments.steps, arguments.workers)
