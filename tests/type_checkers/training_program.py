# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""A user's program, which type checkers check and nobody runs: see test_user_program.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, assert_type

import torch

from energon_stream import (
    BasicDataLoader,
    Batch,
    BatchDataset,
    CaptioningSample,
    DatasetLoader,
    DefaultTaskEncoder,
    DirectLazy,
    FilterDataset,
    Lazy,
    MapDataset,
    SavableDataLoader,
    SavableDataset,
    SystemFileStore,
    TaskEncoder,
    TextSample,
    edataclass,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    get_val_datasets,
    stateless,
)  # fmt: skip


@edataclass
class Tokens(Batch):
    tokens: torch.Tensor


class Tokenizer(TaskEncoder[TextSample, torch.Tensor, torch.Tensor, Tokens]):
    @stateless
    def encode_sample(self, sample: TextSample) -> torch.Tensor:
        return torch.tensor([ord(letter) for letter in sample.text])

    def batch(self, samples: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(samples)

    def encode_batch(self, batch: torch.Tensor) -> Tokens:
        return Tokens(__key__=[], __restore_key__=(), tokens=batch)


dataset = get_train_dataset(
    "s3://data/texts",
    batch_size=8,
    shuffle_buffer_size=100,
    max_samples_per_sequence=100,
    task_encoder=Tokenizer(),
    cache="/tmp/cache",
)
assert_type(dataset, SavableDataset[Tokens])
loader = get_savable_loader(dataset, on_worker_death="restart")
assert_type(loader, SavableDataLoader[Tokens])
for batch in loader:
    assert_type(batch, Tokens)
    loss = batch.tokens.float().mean()
    _ = batch.token  # type: ignore[attr-defined]
    loader.save_state_rank()

assert_type(SavableDataLoader(dataset), SavableDataLoader[Tokens])
assert_type(BasicDataLoader(dataset), BasicDataLoader[Tokens])
assert_type(get_val_dataset("texts", batch_size=8, task_encoder=Tokenizer()), SavableDataset[Tokens])
for val_dataset, _ in get_val_datasets("mix.yaml", batch_size=8, task_encoder=Tokenizer()):
    assert_type(next(iter(get_loader(val_dataset))), Tokens)
default = DefaultTaskEncoder(batch_type=Tokens)
assert_type(get_val_dataset("texts", batch_size=8, task_encoder=default), SavableDataset[Tokens])

# Without a task encoder: the samples' type where it is named; Any for batches, which nothing describes.
samples = get_val_dataset("images", batch_size=None, sample_type=CaptioningSample)
for sample in get_loader(samples).progress():
    assert_type(sample, CaptioningSample)
assert_type(next(iter(get_loader(samples))).caption, str)
assert_type(
    DatasetLoader("images", sample_type=CaptioningSample).get_dataset(training=False),
    SavableDataset[CaptioningSample],
)
assert_type(get_loader(get_val_dataset("images", batch_size=4)), BasicDataLoader[Any])

get_val_dataset("images", batch_sise=4)  # type: ignore[call-overload]

# Operators take the types of their functions.


def words(sample: CaptioningSample) -> Iterator[str]:
    yield from sample.caption.split()


lengths = MapDataset(FilterDataset(samples, lambda sample: sample.caption != ""), lambda s: len(s.caption))
assert_type(lengths, MapDataset[int])
assert_type(MapDataset(samples, words, stateless_map_fn=True), MapDataset[str])
assert_type(BatchDataset(lengths, 2, batcher=torch.tensor), BatchDataset[torch.Tensor])
assert_type(BatchDataset(lengths, 2, batcher=list), BatchDataset[list[int]])
lazy: Lazy[bytes] = DirectLazy(SystemFileStore("/data"), "a.jpg")
assert_type(lazy.get(), bytes)
