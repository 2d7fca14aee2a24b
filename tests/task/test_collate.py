import copy
import datetime
import io
import json
import pickle
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils._pytree import tree_flatten, tree_flatten_with_path, tree_map_only, treespec_dumps

from energon_stream import DefaultTaskEncoder
from energon_stream.conventions import CONVENTIONS_VARIABLE
from energon_stream.errors import ConfigError, SampleError
from energon_stream.media import NoCachePool
from energon_stream.media.av import AVDecoder
from energon_stream.media.pool import DataLazy
from energon_stream.pipeline.collate import (
    batch_list,
    batch_pad_stack,
    batch_stack,
    concat_pad,
    generic_batch,
    generic_concat,
    homogeneous_concat_mix,
)
from energon_stream.samples import CaptioningSample, CrudeSample, SourceInfo


class Point(NamedTuple):
    x: torch.Tensor
    name: str


@dataclass(frozen=True)
class Frozen:
    __key__: str
    inner: dict


def captioned(key, height):
    source = SourceInfo("d", 0, "s", (key,))
    image = torch.full((3, height, 2), float(height))
    return CaptioningSample(
        __key__=key, __restore_key__=("r", key), __sources__=(source,), image=image, caption=key.upper()
    )


def test_padding_goes_to_the_ends_of_every_dimension():
    stacked = batch_pad_stack([torch.ones(1, 3, dtype=torch.int32), torch.ones(2, 1, dtype=torch.int32)])
    assert stacked.tolist() == [[[1, 1, 1], [0, 0, 0]], [[1, 0, 0], [1, 0, 0]]]
    assert stacked.dtype == torch.int32
    assert batch_pad_stack([torch.tensor(1.5), torch.tensor(2.5)]).tolist() == [1.5, 2.5]
    joined = concat_pad([torch.ones(2, 1), torch.ones(1, 3)])
    assert joined.tolist() == [[1, 0, 0], [1, 0, 0], [1, 1, 1]]
    assert batch_stack([torch.ones(2), torch.ones(2)]).shape == (2, 2)
    assert batch_list((1, "a")) == [1, "a"]


@pytest.mark.parametrize(
    "fails",
    [
        lambda: batch_stack([torch.ones(2), torch.ones(3)]),
        lambda: batch_pad_stack([torch.ones(2), torch.ones(2, 2)]),
        lambda: batch_pad_stack([torch.ones(2), torch.ones(2, dtype=torch.int64)]),
        lambda: concat_pad([torch.tensor(1.0)]),
        lambda: generic_batch([{"a": 1}, {"b": 1}]),
    ],
)
def test_what_cannot_be_joined_is_a_sample_error(fails):
    with pytest.raises(SampleError, match="cannot be"):
        fails()


def test_samples_of_any_kind_are_batched_field_by_field():
    batch = generic_batch([captioned("a", 1), captioned("b", 2)])
    assert type(batch) is CaptioningSample
    assert (batch.__key__, batch.caption) == (["a", "b"], ["A", "B"])
    assert batch.image.shape == (2, 3, 2, 2)
    assert batch.__restore_key__ == (("r", "a"), ("r", "b"))
    assert [source.file_names for source in batch.__sources__] == [("a",), ("b",)]
    assert batch.__subflavors__ == [None, None]
    nested = generic_batch([Frozen("k", {"p": Point(torch.ones(n), str(n))}) for n in (1, 2)])
    assert nested.__key__ == ["k", "k"]
    assert nested.inner["p"].x.tolist() == [[1, 0], [1, 1]]
    assert nested.inner["p"].name == ["1", "2"]
    assert generic_batch([1, "a"]) == [1, "a"]


def test_batches_of_any_kind_are_joined_to_larger_ones():
    one, two = generic_batch([captioned("a", 1)]), generic_batch([captioned("b", 3), captioned("c", 2)])
    mixed = homogeneous_concat_mix([one, two])
    whole = generic_batch([captioned("a", 1), captioned("b", 3), captioned("c", 2)])
    assert torch.equal(mixed.image, whole.image)
    for name in ("__key__", "caption", "__sources__", "__subflavors__", "__restore_key__"):
        assert getattr(mixed, name) == getattr(whole, name)
    assert generic_concat([{"n": None, "w": 0.5}, {"n": None, "w": 0.2}]) == {"n": None, "w": [0.5, 0.2]}
    with pytest.raises(ConfigError, match="CaptioningSample, dict"):
        homogeneous_concat_mix([one, {}])


class Plain:
    def __init__(self, value):
        self.value = value


@pytest.mark.parametrize(
    "make",
    [
        lambda n: AVDecoder(io.BytesIO(bytes([n]))),
        lambda n: NoCachePool().get_lazy(None, str(n)),
        lambda n: DataLazy(n, None),
        lambda n: Plain(n),
        lambda n: Decimal(n),
        lambda n: Path(str(n)),
        lambda n: Image.new("L", (1, 1)),
        lambda n: io.BytesIO(bytes([n])),
        lambda n: range(n),
        lambda n: {n},
        lambda n: datetime.date(2020, 1, 1 + n),
        lambda n: Fraction(n),
        lambda n: np.zeros(n),
        lambda n: bytes([n]),
    ],
)
def test_objects_without_fields_are_listed_as_they_are(make):
    """What torch's own collation cannot join either: the batch has the very objects, in a list."""
    samples = [{"__key__": str(n), "it": make(n)} for n in range(3)]
    listed = generic_batch(samples)["it"]
    assert type(listed) is list
    assert [id(value) for value in listed] == [id(sample["it"]) for sample in samples]


def test_dicts_with_different_keys_say_which():
    with pytest.raises(SampleError, match=r"some have \['png', 'txt'\], others not"):
        generic_batch([{"jpg": 1, "txt": "a"}, {"jpg": 2}, {"jpg": 3, "png": 4, "txt": "b"}])


def test_a_part_that_some_crude_samples_lack_is_none_for_them(caplog):
    """Rows with and without a picture, as public tables of conversations have them."""
    rows = [
        {"json": {"id": 1, "turns": []}},
        {"png": torch.ones(3), "json": {"id": 2, "turns": [], "of": {"a": 3}}},
    ]
    samples = [CrudeSample(row, __key__=str(number)) for number, row in enumerate(rows)]
    expected = {"id": [1, 2], "turns": [[], []], "of": [None, {"a": 3}]}
    for _ in range(2):
        batch = generic_batch(samples)
    assert [record.getMessage()[:45] for record in caplog.records] == [
        "not all samples of a batch have png: the batc"
    ]
    assert (batch["json"], batch["__key__"], batch["png"][0]) == (expected, ["0", "1"], None)
    assert batch["png"][1] is samples[1]["png"]
    assert DefaultTaskEncoder(batch_type=dict).batch(samples)["json"] == expected
    assert "png" not in generic_batch(samples[:1])
    by_number = [CrudeSample(json={str(n): n for n in range(k, k + 800)}) for k in (0, 800)]
    with pytest.raises(SampleError, match="different keys"):
        generic_batch(by_number)


def test_a_batch_of_crude_samples_is_a_dict_to_other_programs(monkeypatch):
    batch = generic_batch([CrudeSample(__key__=str(n), jpg=torch.ones(n, 2), txt="a") for n in (1, 2)])
    plain = dict(batch)
    for copied in (pickle.loads(pickle.dumps(batch)), copy.copy(batch), batch):
        assert (type(copied), [*copied]) == (type(batch), ["__key__", "jpg", "txt"])
        doubled = tree_map_only(torch.Tensor, lambda tensor: tensor * 2, copied)
        assert torch.equal(doubled["jpg"], plain["jpg"] * 2)
    assert [path for path, _ in tree_flatten_with_path(batch)[0]] == [
        p for p, _ in tree_flatten_with_path(plain)[0]
    ]
    assert json.loads(treespec_dumps(tree_flatten(batch)[1]))
    compiled = torch.compile(lambda given: given["jpg"] * 2, backend="eager", fullgraph=True)
    assert torch.equal(compiled(batch), plain["jpg"] * 2)
    monkeypatch.setenv(CONVENTIONS_VARIABLE, "energon")
    assert type(generic_batch([CrudeSample(txt="a")])) is dict
