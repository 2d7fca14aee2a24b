"""Samples, batches and statistics print in few lines: forms of tensors, beginnings of lists and texts."""

import pickle
from dataclasses import dataclass, field, replace

import pytest
import torch
from PIL import Image

from energon_stream import (
    Batch,
    CaptioningSample,
    JobStats,
    OCRSample,
    Sample,
    WorkerConfig,
    edataclass,
    get_loader,
    get_train_dataset,
)
from energon_stream.printable import described
from energon_stream.testing.datasets import captioning_dataset, prepared_captioning_dataset


@edataclass
class Labelled(Sample):
    label: int
    secret: str = field(default="", repr=False)


@dataclass
class Own(Batch):
    values: torch.Tensor | None = None


class Custom(Labelled):
    def __repr__(self):
        return "mine"


def test_a_batch_prints_forms_and_beginnings():
    keys = [f"data-{number:06d}.tar/{number:08d}" for number in range(8)]
    images = torch.zeros(8, 3, 224, 224)
    batch = CaptioningSample(__key__=keys, __restore_key__=(), image=images, caption=["a long text " * 9] * 8)
    assert (
        repr(batch)
        == str(batch)
        == (
            "CaptioningSample(__key__=['data-000000.tar/00000000', 'data-000001.tar/00000001…\n"
            "  image=Tensor(shape=(8, 3, 224, 224), dtype=torch.float32),\n"
            "  caption=['a long text a long text a long text a l… (110 characters), 'a long …"
        )
    )


def test_small_samples_print_in_a_line():
    sample = Labelled(__key__="a", __restore_key__=("x",), label=3, secret="no")
    assert repr(sample) == "Labelled(__key__='a', label=3)"
    assert sample == replace(sample)
    assert sample != replace(sample, secret="other")
    assert pickle.loads(pickle.dumps(sample)) == sample
    sample.tag = 4  # no field, and not printed
    assert "tag" not in repr(sample)
    batch = Own(__key__=["a"], __restore_key__=(), values=torch.zeros(2, 2))
    assert repr(batch) == "Own(__key__=['a'], values=Tensor(shape=(2, 2), dtype=torch.float32))"
    assert repr(Custom(__key__="a", __restore_key__=(), label=3)) == "mine"


def test_crude_samples_and_their_batches_print_forms_and_beginnings(tmp_path):
    captioning_dataset(tmp_path, shards=2, samples_per_shard=16)
    for size, form in ((None, "(3, 12, 16)"), (8, "(8, 3, 12, 16)")):
        options = {"batch_size": size, "worker_config": WorkerConfig(0, 1, 0), "sample_type": "CrudeSample"}
        lines = repr(next(iter(get_loader(get_train_dataset(tmp_path, **options))))).splitlines()
        assert f"'jpg': Tensor(shape={form}, dtype=torch.float32)" in "".join(lines)
        assert len(lines) <= 5
        assert max(map(len, lines)) <= 80


def test_the_type_with_most_fields_takes_12_lines():
    values = {name: ["word " * 100] * 8 for name in ("block", "lines", "words", "chars")}
    texts = {f"{name}_text": value for name, value in values.items()}
    boxes = {f"{name}_boxes": torch.zeros(8, 4) for name in values}
    sample = OCRSample(
        __key__=["k" * 200] * 8,
        __restore_key__=(),
        image=Image.new("RGB", (9, 9)),
        text="t" * 10**6,
        **texts,
        **boxes,
    )
    lines = repr(sample).splitlines()
    assert len(lines) <= 12
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"abc", "3 bytes"),
        (Image.new("L", (4, 5)), "Image(mode=L, size=(4, 5))"),
        ({"a": [1, 2, 3], "b": (b"", "x")}, "{'a': [1, 2, … (3 items)], 'b': [0 bytes, 'x']}"),
        ({"a": 1, "b": 2, "c": 3}, "{'a': 1, 'b': 2, … (3 items)}"),
        ("x" * 30, "'xxxxxxxxx… (32 characters)"),
        (None, "None"),
        ([], "[]"),
        ("\x1b[2J", r"'\x1b[2J'"),
    ],
)
def test_values_are_described(value, expected):
    assert described(value, items=2, characters=10) == expected


def test_deep_and_circular_values_are_described():
    deep = []
    for _ in range(50_000):
        deep = [deep]
    assert described(deep) == "[" * 20 + "…" + "]" * 20
    circular = {}
    circular["a"] = circular
    assert described(circular, depth=2) == "{'a': {'a': …}}"
    while deep:  # else its end takes more of the stack than there is
        deep = deep.pop()


def test_statistics_of_a_job_print_in_few_lines(tmp_path):
    folder = prepared_captioning_dataset(
        tmp_path / "data", shards=2, samples_per_shard=16, split_ratio=(1, 0, 0)
    )
    order = {"shuffle_buffer_size": None, "max_samples_per_sequence": None}
    dataset = get_train_dataset(folder, batch_size=8, worker_config=WorkerConfig(0, 1, 0), **order)
    with get_loader(dataset) as loader:
        batches = iter(loader)
        shown = repr([next(batches), next(batches)][0])
        stats = loader.stats()
    assert shown.count("\n") < 4
    assert "image=Tensor(shape=(8, 3, 12, 16), dtype=torch.float32)" in shown
    one = replace(stats, samples=108, first_samples=8, seconds=10.0, wait_seconds=0.5)
    lines = str(JobStats((one,))).splitlines()
    assert lines == [
        "1 rank: 10 samples/s; the loader keeps up: the training loop waits 5% of the time, and works the rest",
        "  rank 0: 10 samples/s, waiting 5%, limit: consumer",
    ]
    many = JobStats(tuple(replace(one, rank=rank, wait_seconds=rank / 1000) for rank in range(100)))
    lines = str(many).splitlines()
    assert len(lines) == 10
    assert lines[1].startswith("  rank 99: ")
    assert lines[-1] == "  and 92 ranks that wait less"
