"""Trains on transcripts of recordings; each sample reads one second of its recording, by range.

    python examples/audio/train.py data/audio

`energon-stream demo-data data` makes it. For your own data, put recordings into a folder or bucket, and
transcripts into a prepared crude dataset, of which each ``json`` names the recording and the time.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from energon_stream import (
    Cooker,
    DefaultTaskEncoder,
    Sample,
    WorkerConfig,
    basic_sample_keys,
    get_savable_loader,
    get_train_dataset,
)


@dataclass
class SpeechSample(Sample):
    audio: torch.Tensor
    text: str


def cook(sample, recordings):
    line = sample["json"]
    (clip,), _ = recordings.get(line["file"], sample).get_audio_clips([(line["at"], line["at"] + 1.0)])
    return SpeechSample(**basic_sample_keys(sample), audio=clip.float() / 2**15, text=line["text"])


class AudioTask(DefaultTaskEncoder):
    cookers = [Cooker(cook)]


def main(folder):
    dataset = get_train_dataset(
        str(folder / "mix.yaml"),
        batch_size=4,
        shuffle_buffer_size=8,
        max_samples_per_sequence=None,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        task_encoder=AudioTask(),
        repeat=False,
    )
    total = torch.zeros(())
    for batch in get_savable_loader(dataset):
        total += batch.audio.square().mean()  # the place of your model's step
        print(tuple(batch.audio.shape), batch.text[0])
    return total


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "data/audio"))
