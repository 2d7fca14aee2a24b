"""Trains on questions about videos; each sample reads one clip of its video, by range.

    python examples/video_qa/train.py data/video_qa

`energon-stream demo-data data` makes it. For your own data, put videos into a folder or bucket, and
questions into a prepared crude dataset, of which each ``json`` names the video and the time.
"""

import sys
from pathlib import Path

import torch

from energon_stream import (
    Cooker,
    DefaultTaskEncoder,
    VQASample,
    WorkerConfig,
    basic_sample_keys,
    get_savable_loader,
    get_train_dataset,
)


def cook(sample, videos):
    line = sample["json"]
    video = videos.get(line["file"], sample)  # nothing is read yet
    (clip,), _ = video.get_video_clips([(line["at"], line["at"] + 0.3)], video_out_frame_size=(32, 24))
    return VQASample(
        **basic_sample_keys(sample), image=clip, context=line["question"], answers=line["answer"]
    )


class VideoTask(DefaultTaskEncoder):
    cookers = [Cooker(cook)]


def main(folder):
    dataset = get_train_dataset(
        str(folder / "mix.yaml"),
        batch_size=4,
        shuffle_buffer_size=8,
        max_samples_per_sequence=None,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        task_encoder=VideoTask(),
        repeat=False,
    )
    total = torch.zeros(())
    for batch in get_savable_loader(dataset):
        total += batch.image.float().mean()  # the place of your model's step
        print(tuple(batch.image.shape), batch.context[0])
    return total


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "data/video_qa"))
