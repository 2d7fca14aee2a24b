"""A project for Megatron-Energon: tars from pictures, an own task encoder with packing, states in files.

It knows nothing of this library. The pictures' folder becomes tars, which are prepared at the command line,
and loaded here, saved, and loaded again in another process::

    python -m energon_stream.run_megatron examples/megatron_tutorial.py tars PICTURES TARS
    energon-stream prepare TARS           # answers: 10,0,0 / 0 / png / txt
    python -m energon_stream.run_megatron examples/megatron_tutorial.py save TARS STATES
    python -m energon_stream.run_megatron examples/megatron_tutorial.py restore TARS STATES
"""

import os
import sys
from dataclasses import dataclass

import torch
import webdataset as wds
from megatron.energon import (
    CaptioningSample,
    DefaultTaskEncoder,
    SkipSample,
    WorkerConfig,
    batch_list,
    batch_stack,
    get_savable_loader,
    get_train_dataset,
)
from megatron.energon.task_encoder.base import stateless

SIZE, CAPACITY = 16, 64


def load_my_dataset(data_dir):
    for fname in sorted(os.listdir(data_dir)):
        if fname.endswith(".png"):
            key = fname[:-4]
            with open(os.path.join(data_dir, fname), "rb") as f_img:
                image_bytes = f_img.read()
            with open(os.path.join(data_dir, key + ".txt"), encoding="utf-8") as f_txt:
                caption = f_txt.read().strip()
            yield key, {"image": image_bytes, "caption": caption.encode("utf-8")}


def write_tars(pictures, folder):
    os.makedirs(folder, exist_ok=True)
    with wds.ShardWriter(os.path.join(folder, "data-%06d.tar"), maxcount=1000) as sink:
        for key, data in load_my_dataset(pictures):
            sink.write({"__key__": key, "png": data["image"], "txt": data["caption"]})


@dataclass
class CaptioningRawBatch:
    __key__: list
    __restore_key__: tuple
    __subflavors__: list
    __sources__: tuple
    image: torch.Tensor  # (n, c, h, w)
    caption: list


@dataclass
class CaptioningBatch:
    __keys__: list
    images: torch.Tensor  # (n, c, h, w)
    captions: list


class MyTaskEncoder(
    DefaultTaskEncoder[CaptioningSample, CaptioningSample, CaptioningRawBatch, CaptioningBatch]
):
    def __init__(self):
        super().__init__(batch_type=CaptioningRawBatch)

    @stateless(restore_seeds=True)
    def encode_sample(self, sample):
        if not sample.caption:
            raise SkipSample()
        image = torch.nn.functional.interpolate(sample.image[None], size=(SIZE, SIZE))[0]
        if torch.rand(()) < 0.5:
            image = image.flip(-1)
        return CaptioningSample.derive_from(sample, image=image, caption=sample.caption)

    def select_samples_to_pack(self, samples):
        groups, length = [[]], 0
        for sample in sorted(samples, key=lambda sample: len(sample.caption), reverse=True):
            if groups[-1] and length + len(sample.caption) > CAPACITY:
                groups.append([])
                length = 0
            groups[-1].append(sample)
            length += len(sample.caption)
        return groups

    @stateless
    def pack_selected_samples(self, samples):
        return CaptioningSample(
            __key__=",".join(sample.__key__ for sample in samples),
            __restore_key__=(),
            __subflavors__=samples[0].__subflavors__,
            __sources__=samples[0].__sources__,
            image=torch.stack([sample.image for sample in samples]).mean(0),
            caption=" | ".join(sample.caption for sample in samples),
        )

    @stateless
    def batch(self, samples):
        return self._batch(
            samples, result_type=CaptioningRawBatch, actions={"image": batch_stack, "caption": batch_list}
        )

    @stateless
    def encode_batch(self, batch):
        return CaptioningBatch(__keys__=batch.__key__, images=batch.image, captions=batch.caption)


def make_loader(tars):
    worker_config = WorkerConfig.default_worker_config()
    ds = get_train_dataset(
        tars,
        batch_size=2,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=worker_config,
        task_encoder=MyTaskEncoder(),
        packing_buffer_size=8,
    )
    return get_savable_loader(ds), worker_config


def show(loader, count):
    for _, batch in zip(range(count), loader, strict=False):
        print(f"batch: {batch.captions} {batch.images.sum().item():.4f}")


def main():
    what, first, second = sys.argv[1:]
    if what == "tars":
        write_tars(first, second)
        return
    loader, worker_config = make_loader(first)
    path = f"{second}/dataloader_state_rank{worker_config.rank}.pth"
    if what == "save":
        show(loader, 3)
        state = loader.save_state_rank()
        torch.save(state, path)
        print("saved")
    else:
        state = torch.load(path)
        loader.restore_state_rank(state)
    show(loader, 5)


if __name__ == "__main__":
    main()
