"""Trains a language model that sees: pages of text and images, packed into sequences of one length. Killed
and started again, it goes on exactly.

    python examples/vlm/train.py FOLDER [--steps 60] [--workers 2]

It makes small data in FOLDER at the first run: pages, which name their images, and the images apart from
them. The cooker only names the images, and a cache pool fetches them in the background while the page waits
in the buffer for packing. Pages that are dropped, or not yet packed, have cost no decoding. For your own
data, write a metadataset like ``METADATASET``, and put your tokenizer and model in place of those here.
"""

import argparse
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from energon_stream import (
    Batch,
    Cooker,
    DefaultTaskEncoder,
    FileStoreCachePool,
    InterleavedSample,
    Sample,
    SampleDecoder,
    WorkerConfig,
    basic_sample_keys,
    best_fit_decreasing,
    cooker,
    edataclass,
    get_savable_loader,
    get_train_dataset,
    pack_by_size,
    prepare_dataset,
    stateless,
)
from energon_stream.testing.datasets import CRUDE_YAML, write_shards

METADATASET = """\
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    path: pages
    aux:
      images: filesystem://images
"""
COLORS = {"red": (220, 40, 40), "green": (40, 200, 60), "blue": (50, 60, 220), "white": (240, 240, 240)}
SIDE = 16
TOKENS, IMAGE, PADDING = 258, 256, 257  # bytes of text, the place of an image, and nothing
LENGTH, BATCH, SAVE_EVERY = 96, 4, 10


def make_data(folder):
    """256 pages of one or two images, each with a sentence that says its color."""
    (folder / "images").mkdir(parents=True)
    names = list(COLORS)
    for number in range(32):
        pixels = np.random.default_rng(number).integers(0, 30, (32, 32, 3), dtype=np.uint8)
        pixels[4:28, 4:28] = COLORS[names[number % len(names)]]
        Image.fromarray(pixels).save(folder / "images" / f"{number:03d}.jpg", quality=90)

    def parts(number):
        page = []
        for image in range(number, number + 1 + number % 2):
            page += [{"image": f"{image % 32:03d}.jpg"}, f"This is {names[image % len(names)]}. "]
        return {"json": json.dumps(page).encode()}

    write_shards(folder / "pages", shards=4, samples_per_shard=64, parts=parts, key="{:05d}")
    prepare_dataset(str(folder / "pages"), split_ratio=(1, 0, 0), dataset_yaml=CRUDE_YAML)
    (folder / "mix.yaml").write_text(METADATASET)


@stateless
@cooker(need_cache=True)
def cook(sample, images, cache):
    """Make a page of texts and of images that are on their way. Nothing is decoded yet."""
    sequence = [
        part if isinstance(part, str) else cache.get_lazy(images, part["image"]) for part in sample["json"]
    ]
    return InterleavedSample(**basic_sample_keys(sample), sequence=sequence)


@edataclass
class Page(Sample):
    """A page with its tokens, and with its images, which are not fetched yet."""

    tokens: torch.Tensor  # int64 [length]
    images: list[Any]


@edataclass
class Pack(Sample):
    """Several pages in one sequence."""

    tokens: torch.Tensor  # int64 [LENGTH]
    pages: torch.Tensor  # int64 [LENGTH], the number of each token's page, from 1
    images: torch.Tensor  # float32 [images, 3, SIDE, SIDE], in the order of their tokens


@dataclass
class PackBatch(Batch):
    """Packs; the images of all packs are one after another."""

    tokens: torch.Tensor
    pages: torch.Tensor
    images: torch.Tensor


class VlmTask(DefaultTaskEncoder):
    decoder = SampleDecoder(image_decode="torchrgb", image_min_size=(SIDE, SIDE))
    cookers = [Cooker(cook)]

    @stateless
    def preencode_sample(self, sample: InterleavedSample) -> Page:
        tokens: list[int] = []
        for part in sample.sequence:
            tokens += part.encode() if isinstance(part, str) else [IMAGE]
        images = [part for part in sample.sequence if not isinstance(part, str)]
        return Page.derive_from(sample, tokens=torch.tensor(tokens[:LENGTH]), images=images)

    def select_samples_to_pack(self, samples: list[Page]) -> list[list[Page]]:
        sizes = [len(sample.tokens) for sample in samples]
        return pack_by_size(samples, sizes, capacity=LENGTH, method=best_fit_decreasing)

    @stateless
    def postencode_sample(self, sample: Page) -> Page:
        """Take the images, which have arrived meanwhile; only pages that are packed come here."""
        sample.images = [
            nn.functional.interpolate(image.get(sample)[None], size=(SIDE, SIDE), mode="area")[0]
            for image in sample.images
        ]
        return sample

    @stateless
    def pack_selected_samples(self, samples: list[Page]) -> Pack:
        tokens = torch.full((LENGTH,), PADDING)
        pages = torch.zeros(LENGTH, dtype=torch.long)
        at = 0
        for number, sample in enumerate(samples, 1):
            end = at + len(sample.tokens)
            tokens[at:end], pages[at:end] = sample.tokens, number
            at = end
        images = torch.stack([image for sample in samples for image in sample.images])
        sources = tuple(source for sample in samples for source in sample.__sources__ or ())
        fields = {"tokens": tokens, "pages": pages, "images": images, "__sources__": sources}
        return Pack.derive_from(samples[0], **fields)

    @stateless
    def batch(self, samples: list[Pack]) -> PackBatch:
        images = torch.cat([sample.images for sample in samples])
        return PackBatch.from_samples(samples, images=images)


class Vlm(nn.Module):
    """A byte-level language model of one layer of attention, in which images are tokens."""

    def __init__(self, width=64):
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, width)
        self.places = nn.Embedding(LENGTH, width)
        self.image = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, width))
        self.layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, TOKENS)

    def forward(self, tokens, pages, images):
        """The scores of each next token, of shape ``(batch, length, TOKENS)``."""
        hidden = self.tokens(tokens)
        hidden[tokens == IMAGE] = self.image(images)
        hidden = hidden + self.places.weight
        earlier = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        seen = earlier & (pages[:, :, None] == pages[:, None])  # of the same page alone
        hidden = self.layer(hidden, src_mask=~seen.repeat_interleave(4, 0))
        return self.head(hidden)


def next_token_loss(scores, tokens, pages):
    """Cross-entropy of the next byte of the same page."""
    wanted = tokens[:, 1:].masked_fill((pages[:, 1:] != pages[:, :-1]) | (tokens[:, 1:] >= IMAGE), -100)
    return nn.functional.cross_entropy(scores[:, :-1].flatten(0, 1), wanted.flatten())


def open_loader(mixture, workers, cache_pool):
    dataset = get_train_dataset(
        str(mixture),
        batch_size=BATCH,
        batch_drop_last=True,
        packing_buffer_size=32,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=WorkerConfig.default_worker_config(workers),
        task_encoder=VlmTask(),
    )
    return get_savable_loader(dataset, cache_pool=cache_pool)


def main(folder, steps=60, workers=0):
    """Train until a step, from the checkpoint in the folder if there is one; return the loss of each step."""
    data, checkpoint = folder / "data", folder / "checkpoint.pt"
    if not data.exists():
        make_data(data)
    torch.manual_seed(0)
    model = Vlm()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    pool = FileStoreCachePool(num_workers=2)
    loader = open_loader(data / "mix.yaml", workers, pool)
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
            scores = model(batch.tokens, batch.pages, batch.images)
            loss = next_token_loss(scores, batch.tokens, batch.pages)
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
    pool.close()
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
