"""A whole project: tars from pictures, preparing, an own task encoder with packing, saved states.

python examples/pages/tutorial.py FOLDER     # of .png and .txt files; an empty one gets a few
"""

import sys
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
import webdataset as wds
from click.testing import CliRunner
from PIL import Image

from energon_stream import (
    CaptioningSample,
    Cooker,
    DefaultTaskEncoder,
    IgnoreSample,
    SampleDecoder,
    WorkerConfig,
    basic_sample_keys,
    batch_list,
    batch_stack,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    histogram_pack,
    pack_by_size,
    stateless,
)
from energon_stream.cli.main import main as energon

SIZE = 16
PACK = 40
"""Characters of a packed sample."""


def draw(folder, count=40):
    """Make some pictures with captions."""
    for number in range(count):
        Image.new("RGB", (SIZE + number % 3, SIZE), (number * 6 % 256, 80, 160)).save(
            folder / f"{number:06d}.png"
        )
        text = "" if number == 7 else f"picture {number}" + " and more" * (number % 3)
        (folder / f"{number:06d}.txt").write_text(text, encoding="utf-8")


def load_my_dataset(folder):
    """Pairs of a key and its data, one at a time."""
    for picture in sorted(folder.glob("*.png")):
        caption = picture.with_suffix(".txt").read_text(encoding="utf-8").strip()
        yield picture.stem, {"image": picture.read_bytes(), "caption": caption.encode("utf-8")}


def build_tars(folder, target, maxcount=1000):
    """Write the pictures to tars."""
    target.mkdir(parents=True, exist_ok=True)
    with wds.ShardWriter(str(target / "data-%06d.tar"), maxcount=maxcount, verbose=0) as sink:
        for key, data in load_my_dataset(folder):
            sink.write({"__key__": key, "png": data["image"], "txt": data["caption"]})


def prepare(target, answers=("10,0,0", "0", "png", "txt")):
    """Run ``energon-stream prepare FOLDER`` with these four answers typed in."""
    lines = "".join(f"{answer}\n" for answer in answers)
    result = CliRunner().invoke(energon, ["prepare", "--no-progress", str(target)], input=lines)
    if result.exit_code:
        raise SystemExit(result.output)


@dataclass
class CaptioningRawBatch:
    """All that ``batch`` makes."""

    __key__: list[str]
    __restore_key__: tuple
    __subflavor__: list
    __subflavors__: list
    image: torch.Tensor  # (n, c, h, w)
    caption: list[str]


@dataclass
class CaptioningBatch:
    """The model's input."""

    __keys__: list[str]
    images: torch.Tensor  # (n, c, h, w)
    captions: list[str]


class MyTaskEncoder(
    DefaultTaskEncoder[CaptioningSample, CaptioningSample, CaptioningRawBatch, CaptioningBatch]
):
    """Skips what has no caption, resizes, packs short captions together."""

    decoder = SampleDecoder(image_decode="torchrgb")

    def __init__(self):
        super().__init__(batch_type=CaptioningRawBatch)

    @stateless(restore_seeds=True)
    def encode_sample(self, sample: CaptioningSample) -> CaptioningSample:
        if not sample.caption:
            raise IgnoreSample
        image = torch.nn.functional.interpolate(sample.image[None], size=(SIZE, SIZE))[0]
        if torch.rand(()) < 0.5:  # the same flips when a state is restored
            image = image.flip(-1)
        return CaptioningSample.derive_from(sample, image=image, caption=sample.caption)

    def select_samples_to_pack(self, samples: list[CaptioningSample]) -> list[list[CaptioningSample]]:
        sizes = [len(sample.caption) for sample in samples]
        return pack_by_size(samples, sizes, capacity=PACK, method=histogram_pack)

    @stateless
    def pack_selected_samples(self, samples: list[CaptioningSample]) -> CaptioningSample:
        return CaptioningSample.derive_from(
            samples[0],
            image=torch.stack([sample.image for sample in samples]).mean(0),
            caption=" | ".join(sample.caption for sample in samples),
        )

    @stateless
    def batch(self, samples: list[CaptioningSample]) -> CaptioningRawBatch:
        return self._batch(
            samples,
            result_type=CaptioningRawBatch,
            actions={"image": batch_stack, "caption": batch_list},
        )

    @stateless
    def encode_batch(self, batch: CaptioningRawBatch) -> CaptioningBatch:
        return CaptioningBatch(__keys__=batch.__key__, images=batch.image, captions=batch.caption)


class MyParsingEncoder(DefaultTaskEncoder):
    """Own parsing of a crude dataset in ``encode_sample``."""

    def encode_sample(self, sample):
        return CaptioningSample(**basic_sample_keys(sample), image=sample["png"], caption=sample["txt"])


@stateless
def cook(sample: dict) -> CaptioningSample:
    """Own parsing of a crude dataset, before ``encode_sample``."""
    return CaptioningSample(**basic_sample_keys(sample), image=sample["png"], caption=sample["txt"])


class MyCookingEncoder(DefaultTaskEncoder):
    """Own parsing with a cooker."""

    cookers = [Cooker(cook)]


def dataset(path, worker_config=None, **options):
    """The prepared tars, in batches of two."""
    return get_train_dataset(
        path,
        batch_size=2,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=worker_config or WorkerConfig.default_worker_config(),
        **options,
    )


def save(path, state_folder, worker_config=None, batches=3):
    """Some batches, then the state of this rank in a file; returns the loader."""
    worker_config = worker_config or WorkerConfig.default_worker_config()
    loader = get_savable_loader(
        dataset(path, worker_config, task_encoder=MyTaskEncoder(), packing_buffer_size=12)
    )
    for batch in islice(loader, batches):
        print(batch.captions)
    state = loader.save_state_rank()
    torch.save(state, f"{state_folder}/dataloader_state_rank{worker_config.rank}.pth")
    return loader


def restore(path, state_folder, worker_config=None):
    """The same loader, in whatever process, after the saved batches."""
    worker_config = worker_config or WorkerConfig.default_worker_config()
    loader = get_savable_loader(
        dataset(path, worker_config, task_encoder=MyTaskEncoder(), packing_buffer_size=12)
    )
    state = torch.load(f"{state_folder}/dataloader_state_rank{worker_config.rank}.pth")
    loader.restore_state_rank(state)
    return loader


def main(folder):
    folder = Path(folder)
    if not any(folder.glob("*.png")):
        draw(folder)
    target = folder / "tars"
    build_tars(folder, target, maxcount=20)
    prepare(target)
    for batch in islice(get_loader(dataset(target)), 1):
        print(batch)
    loader = save(target, folder)
    expected = [batch.captions for batch in islice(loader, 4)]
    found = [batch.captions for batch in islice(restore(target, folder), 4)]
    print("restored as without restoring:", found == expected)


if __name__ == "__main__":
    main(sys.argv[1])
