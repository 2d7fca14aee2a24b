import dataclasses
import pickle
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from energon_stream.errors import ConfigError, SampleError
from energon_stream.samples import (
    METADATA_FIELDS,
    Batch,
    CaptioningSample,
    CrudeSample,
    ImageClassificationSample,
    Sample,
    SourceInfo,
    TextSample,
    edataclass,
)

SOURCE = SourceInfo("s3://bucket/data", 3, "shard.tar", ("a.jpg",))
OTHER = SourceInfo("s3://bucket/more", 4, "shard.tar", ("a.txt",))


@edataclass
class CaptioningBatch(Batch):
    image: torch.Tensor
    caption: list[str]
    weight: float = 1.0


@edataclass
class LengthBatch(Batch):
    length: int


@dataclass
class PlainSample(Sample):
    tokens: torch.Tensor
    extra: int = 0


@dataclass
class RedeclaredSample(Sample):
    __key__: str
    __restore_key__: tuple
    __subflavors__: dict[str, Any] | None
    __sources__: tuple | None
    __subflavor__: str | None
    tokens: int


def captioned(key="k", size=2, source=SOURCE):
    return CaptioningSample(
        __key__=key,
        __restore_key__=("Source", 0, 3),
        __subflavors__={"set": "a"},
        __sources__=(source,),
        image=torch.ones(3, size, 4),
        caption=f"caption of {key}",
    )


def test_metadata_comes_first_and_types_are_as_clients_expect():
    names = tuple(entry.name for entry in dataclasses.fields(CaptioningSample))
    assert names == (*METADATA_FIELDS, "image", "caption")
    assert tuple(e.name for e in dataclasses.fields(Sample)) == METADATA_FIELDS
    assert tuple(e.name for e in dataclasses.fields(Batch)) == METADATA_FIELDS
    assert not hasattr(Sample, "__subflavor__")
    assert ImageClassificationSample(__key__="k", __restore_key__=(), image=torch.ones(1)).label is None
    assert isinstance(CrudeSample(a=1), dict)
    assert vars(captioned()) == {}  # fields are in slots; what a program sets beside them is here


def test_plain_dataclasses_derive_from_samples():
    plain = PlainSample(torch.ones(2), 5, __key__="k", __restore_key__=())
    assert (plain.extra, plain.__subflavors__) == (5, None)
    redeclared = RedeclaredSample("k", (), {"a": 1}, None, "a", 7)
    assert (redeclared.__key__, redeclared.__subflavors__, redeclared.tokens) == ("k", {"a": 1}, 7)


def test_samples_are_readable_and_survive_pickling():
    sample = captioned()
    assert repr(sample).startswith("CaptioningSample(__key__='k',")
    assert "caption='caption of k'" in repr(sample)
    assert repr(pickle.loads(pickle.dumps(sample))) == repr(sample)


def test_deriving_extending_and_joining():
    sample = captioned()
    derived = TextSample.derive_from(sample, text="new")
    assert (derived.__key__, derived.__sources__, derived.text) == ("k", (SOURCE,), "new")
    assert CaptioningSample.extend(sample, caption="other").caption == "other"
    assert CaptioningSample.extend(sample).image is sample.image
    text = TextSample(__key__="t", __restore_key__=("Source", 1, 4), __sources__=(OTHER,), text="joined")

    @edataclass
    class Joined(Sample):
        image: torch.Tensor
        text: str | None = None

    joined = Joined.from_joined(sample, text)
    assert (joined.__key__, joined.__subflavors__, joined.text) == ("k", {"set": "a"}, "joined")
    assert joined.__sources__ == (SOURCE, OTHER)
    assert Joined.from_joined(sample, text=None).text is None
    with pytest.raises(ConfigError):
        Joined.from_joined(None)


def test_batches_pad_tensors_and_list_the_rest():
    batch = CaptioningBatch.from_samples([captioned("a", 2), captioned("b", 3, OTHER)])
    assert (batch.__key__, batch.caption) == (["a", "b"], ["caption of a", "caption of b"])
    assert batch.image.shape == (2, 3, 3, 4)
    assert not batch.image[0, :, 2].any()
    assert batch.image[1].all()
    assert batch.__sources__ == (SOURCE, OTHER)
    assert batch.__subflavors__ == [{"set": "a"}] * 2
    assert batch.weight == 1.0
    assert LengthBatch.from_samples([captioned()], length=1).length == 1
    assert CaptioningBatch.derive_from(batch, image=batch.image, caption=[]).__key__ == ["a", "b"]
    assert CaptioningBatch.extend(batch, weight=2.0).weight == 2.0
    with pytest.raises(ConfigError, match="'length' of LengthBatch is required"):
        LengthBatch.from_samples([captioned()])
    mixed = captioned()
    mixed.image = torch.ones(3, 4)
    with pytest.raises(SampleError, match="cannot be joined"):
        CaptioningBatch.from_samples([captioned(), mixed])


def test_tensors_move_wherever_they_are_nested():
    @edataclass
    class Nested(Batch):
        inside: dict[str, Any]

    nested = Nested(
        __key__=["k"], __restore_key__=(), inside={"a": [torch.ones(1), "text"], "b": (captioned(),)}
    )
    moved = nested.to_device("meta")
    assert moved.inside["a"][0].is_meta
    assert moved.inside["b"][0].image.is_meta
    assert moved.inside["a"][1] == "text"
    assert not nested.inside["a"][0].is_meta
