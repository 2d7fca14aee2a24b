from abc import ABC
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from repetitions import is_nightly

from energon_stream.errors import ConfigError, FatalSampleError, SkipSample
from energon_stream.pipeline.collate import batch_list, batch_stack
from energon_stream.samples import Batch, CaptioningSample, CrudeSample, Sample, TextSample, edataclass
from energon_stream.task import (
    AugmentTaskEncoder,
    Cooker,
    DefaultTaskEncoder,
    LoadedDataset,
    TaskEncoder,
    basic_sample_keys,
    call_with_accepted,
    stateless,
)
from energon_stream.testing.operator_suite import NumbersDataset, assert_exact_resume, assert_restores_by_key
from energon_stream.worker import WorkerConfig

CONFIG = WorkerConfig(0, 1, 0)


class Samples(NumbersDataset):
    """The numbers as samples made by a function."""

    def __init__(self, make, count):
        super().__init__(count, CONFIG)
        self.make = make

    def make_node(self, context, state):
        return _Made(super().make_node(context, state), self.make)

    def restore_many(self, keys, context):
        return [item._replace(value=self.make(item.value)) for item in super().restore_many(keys, context)]


class _Made:
    def __init__(self, node, make):
        self.node, self.make = node, make
        self.state, self.close = node.state, node.close

    def next(self):
        item = self.node.next()
        return item._replace(value=self.make(item.value)) if hasattr(item, "value") else item


def captioned(number):
    return CaptioningSample(
        __key__=f"s/{number}",
        __restore_key__=(),
        image=torch.full((3, 2, 2), float(number)),
        caption=str(number),
    )


def crude(number):
    sample = CrudeSample(txt=str(number), __key__=f"s/{number}", __shard__="s", __restore_key__=())
    sample.update(__subflavors__={"even": number % 2 == 0}, __sources__=None)
    return sample


def train(encoder, make=captioned, count=7, **options):
    datasets = [LoadedDataset(Samples(make, count))]
    options = {"batch_size": 3, **options}
    return encoder.build_train_datasets(datasets=datasets, worker_config=CONFIG, **options)


@edataclass
class CaptionBatch(Batch):
    image: torch.Tensor
    caption: list[str]


@dataclass
class TutorialBatch:
    __key__: list[str]
    __restore_key__: tuple
    __subflavor__: str
    __subflavors__: list
    image: torch.Tensor
    caption: list[str]


class Pair(NamedTuple):
    caption: Any
    length: int = 0


def test_the_default_encoder_batches_samples_in_their_own_type():
    batches = list(train(DefaultTaskEncoder()))
    assert [batch.caption for batch in batches] == [["0", "1", "2"], ["3", "4", "5"], ["6"]]
    assert type(batches[0]) is CaptioningSample
    assert batches[0].image.shape == (3, 3, 2, 2)
    assert batches[0].__key__ == ["s/0", "s/1", "s/2"]
    assert len(list(train(DefaultTaskEncoder(), batch_drop_last=True))) == 2
    assert [s.caption for s in train(DefaultTaskEncoder(), batch_size=None)] == list("0123456")
    assert len(list(train(DefaultTaskEncoder(), virtual_epoch_length=5))) == 5
    # Nothing but the batching is in the way of the samples.
    assert train(DefaultTaskEncoder()).config()["dataset"]["type"] == "NumbersDataset"


@pytest.mark.parametrize("raw", [CaptionBatch, TutorialBatch, Pair, dict, None])
@pytest.mark.parametrize("final", [TutorialBatch, Pair, dict, None])
def test_types_are_mapped_by_field_names(raw, final):
    if raw is Pair and final is TutorialBatch:
        with pytest.raises(ConfigError, match="TutorialBatch needs the field 'image', which Pair lacks"):
            list(train(DefaultTaskEncoder(raw_batch_type=raw, batch_type=final)))
        return
    batch = next(iter(train(DefaultTaskEncoder(raw_batch_type=raw, batch_type=final))))
    assert type(batch) is (final or raw or CaptioningSample)
    assert (batch["caption"] if isinstance(batch, dict) else batch.caption) == ["0", "1", "2"]
    if final is TutorialBatch:
        assert batch.__subflavor__ is None


def test_samples_are_mapped_too():
    encoder = DefaultTaskEncoder(encoded_sample_type=Pair)
    assert list(train(encoder, batch_size=None))[2] == Pair("2")
    assert next(iter(train(encoder))) == Pair(["0", "1", "2"], [0, 0, 0])
    dicts = DefaultTaskEncoder(encoded_sample_type=dict, batch_type=CaptionBatch)
    assert next(iter(train(dicts))).caption == ["0", "1", "2"]


class TutorialEncoder(DefaultTaskEncoder[CaptioningSample, CaptioningSample, TutorialBatch, Any], ABC):
    """As in the seed pages: hooks without marks, skipping, batching with actions."""

    def __init__(self):
        super().__init__(batch_type=TutorialBatch)

    def encode_sample(self, sample):
        if sample.caption == "1":
            raise SkipSample
        return sample

    def batch(self, samples):
        actions = {"image": batch_stack, "caption": batch_list}
        return self._batch(samples, result_type=TutorialBatch, actions=actions)

    def encode_batch(self, batch):
        assert batch.__subflavors__ == [None] * len(batch.caption)
        return {"captions": batch.caption, "index": self.current_batch_index}


def test_overridden_hooks_run_and_may_skip():
    assert list(train(TutorialEncoder())) == [
        {"captions": ["0", "2", "3"], "index": 0},
        {"captions": ["4", "5", "6"], "index": 1},
    ]
    assert not train(TutorialEncoder()).can_restore_sample()
    with pytest.raises(ConfigError, match="only while a hook runs"):
        _ = TutorialEncoder().current_sample_index


def test_hooks_are_found_however_they_came_there():
    class ByLambda(DefaultTaskEncoder):
        encode_sample = lambda self, sample: sample.caption + "!"  # noqa: E731

    def renamed(self, sample):
        return sample.caption + "!"

    class ByAssignment(DefaultTaskEncoder):
        encode_sample = renamed

    on_instance = DefaultTaskEncoder()
    on_instance.encode_sample = lambda sample: sample.caption + "!"
    for encoder in (ByLambda(), ByAssignment(), on_instance):
        assert list(train(encoder, batch_size=None, count=2)) == ["0!", "1!"]

    class Same(DefaultTaskEncoder):
        encode_sample = DefaultTaskEncoder.encode_sample

    assert repr(train(Same())) == repr(train(DefaultTaskEncoder()))  # there is no step for it


class Full(TaskEncoder):
    """Every hook, all stateless, some as generators."""

    cookers = [
        Cooker(stateless(lambda c: TextSample(**basic_sample_keys(c), text=c["txt"] + "e")), {"even": True}),
        Cooker(stateless(lambda c: TextSample(**basic_sample_keys(c), text=c["txt"]))),
    ]

    @stateless
    def preencode_sample(self, sample):
        for part in "ab"[: 1 + len(sample.text) % 2]:
            yield TextSample.derive_from(sample, text=sample.text + part)

    @stateless(restore_seeds=True)
    def postencode_sample(self, sample):
        return TextSample.derive_from(sample, text=sample.text + f"{float(torch.rand(())):.3f}")

    def select_samples_to_pack(self, samples):
        return [samples[begin : begin + 2] for begin in range(0, len(samples), 2)]

    @stateless
    def pack_selected_samples(self, samples):
        return TextSample.derive_from(samples[0], text="+".join(sample.text for sample in samples))

    @stateless(restore_seeds=True)
    def batch(self, samples):
        yield [sample.text for sample in samples]
        yield [f"{float(torch.rand(())):.3f}"]

    @stateless
    def encode_batch(self, batch):
        return {"texts": batch, "call": self.current_sample_index, "__restore_key__": ()}


class Grouped(TaskEncoder):
    def batch_group_criterion(self, sample):
        return int(sample.caption) % 2, None


@pytest.mark.every(2)
@pytest.mark.parametrize("packing", [None, 3])
def test_a_pipeline_of_all_hooks_resumes_exactly(packing):
    def build():
        return train(Full(), crude, 9, batch_size=2, packing_buffer_size=packing)

    first = next(iter(build()))["texts"]
    assert len(first) == 2
    assert first[0].startswith("0ea0.")
    assert ("+" in first[0]) == (packing is not None)
    steps, tail = (40, 12) if is_nightly() else (20, 6)
    assert_exact_resume(build, steps, tail)
    assert_restores_by_key(build)


def test_groups_hold_samples_of_equal_keys():
    batches = [batch.caption for batch in train(Grouped(), batch_size=2)]
    assert sorted(batches) == [["0", "2"], ["1", "3"], ["4", "6"], ["5"]]


def test_validation_is_limited_and_begins_anew():
    datasets = [LoadedDataset(Samples(captioned, 7))]
    dataset = DefaultTaskEncoder().build_val_datasets(
        datasets=datasets, worker_config=CONFIG, batch_size=2, limit=2
    )
    assert [batch.caption for batch in dataset] == [["0", "1"], ["2", "3"]]


def test_crude_samples_reach_encode_sample_where_nobody_cooks():
    class Raw(DefaultTaskEncoder):
        def encode_sample(self, sample):
            return sample["txt"]

    assert list(train(Raw(), crude, 3, batch_size=None)) == ["0", "1", "2"]

    class Unmatched(DefaultTaskEncoder):
        cookers = (Cooker(dict, {"even": False}),)

    with pytest.raises(ConfigError, match=r"no cooker matches .*'even': True"):
        list(train(Unmatched(), crude))


def test_an_augmenting_encoder_changes_single_hooks_and_keeps_the_rest():
    class Louder(AugmentTaskEncoder):
        @stateless
        def encode_batch(self, batch):
            return {**super().encode_batch(batch), "louder": True}

    options = {"make": crude, "count": 9, "batch_size": 2, "packing_buffer_size": 3}
    assert list(train(AugmentTaskEncoder(Full()), **options)) == list(train(Full(), **options))
    louder = train(Louder(Full()), **options)
    assert [{**batch, "louder": True} for batch in train(Full(), **options)] == list(louder)
    assert louder.can_restore_sample()
    mapped = AugmentTaskEncoder(DefaultTaskEncoder(batch_type=CaptionBatch))
    assert type(next(iter(train(mapped)))) is CaptionBatch

    class Composes(DefaultTaskEncoder):
        def build_batch(self, dataset, **options):
            return dataset

    with pytest.raises(ConfigError, match=r"overrides build_batch"):
        AugmentTaskEncoder(Composes())


def test_failure_tolerance_comes_from_the_mark_or_the_encoder():
    class Failing(DefaultTaskEncoder):
        __default_failure_tolerance__ = 2

        def encode_sample(self, sample):
            raise ValueError

    with pytest.raises(FatalSampleError, match="2 samples in a row"):
        list(train(Failing()))
    Failing.encode_sample = stateless(failure_tolerance=3)(Failing.encode_sample)
    with pytest.raises(FatalSampleError, match="3 samples in a row"):
        list(train(Failing()))


class Both(DefaultTaskEncoder):
    def encode_sample(self, sample):
        return sample

    def postencode_sample(self, sample):
        return sample


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: train(Both()), "encode_sample cannot be combined with postencode_sample"),
        (lambda: list(train(DefaultTaskEncoder(), packing_buffer_size=3)), "does not say how to pack"),
        (lambda: list(train(DefaultTaskEncoder(encoded_sample_type=TutorialBatch), str)), "no fields"),
        (lambda: list(train(DefaultTaskEncoder(batch_type=int))), "cannot be mapped to int"),
        (lambda: DefaultTaskEncoder()._batch([captioned(0)], None, {"imgae": batch_list}), "'imgae'"),
        (
            lambda: DefaultTaskEncoder().build_train_datasets(
                datasets=[], worker_config=CONFIG, batch_size=None
            ),
            "there is no dataset",
        ),
    ],
)
def test_what_does_not_fit_together_is_named(build, message):
    with pytest.raises(ConfigError, match=message):
        build()


def test_older_signatures_get_what_they_accept():
    dataset, weight = LoadedDataset(Samples(captioned, 3), 0.4)
    assert weight == 0.4
    assert isinstance(dataset, Samples)

    def older(*, datasets, batch_size):
        return datasets, batch_size

    assert call_with_accepted(older, datasets=[1], batch_size=2, packing_buffer_size=None) == ([1], 2)
    assert call_with_accepted(lambda **options: options, a=1) == {"a": 1}


def test_plain_dataclasses_and_tuples_pass_through():
    @dataclass
    class Small(Sample):
        number: int = 0

    small = train(TaskEncoder(), lambda n: Small(__key__=str(n), __restore_key__=(), number=n))
    assert next(iter(small)).number == [0, 1, 2]
    assert next(iter(train(TaskEncoder(), lambda n: (n, n)))) == [(0, 0), (1, 1), (2, 2)]


@pytest.mark.parametrize("options", [{}, {"raw_batch_type": CaptionBatch}])
def test_an_encode_sample_without_return_is_named(options):
    class Forgetful(DefaultTaskEncoder):
        def encode_sample(self, sample):
            pass

    with pytest.raises(FatalSampleError, match=r"a sample is None\. Return it from encode_sample"):
        list(train(Forgetful(**options), count=300, batch_size=2))
