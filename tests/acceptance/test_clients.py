"""What existing clients rely on: part C of the acceptance list."""

import random
from abc import ABC
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any, NamedTuple

import pytest
import torch
from acceptance_helpers import SHUFFLED

from energon_stream import (
    Batch,
    CaptioningSample,
    Cooker,
    DefaultTaskEncoder,
    LimitDataset,
    RepeatDataset,
    Sample,
    SkipSample,
    WorkerConfig,
    basic_sample_keys,
    batch_list,
    batch_pad_stack,
    batch_stack,
    generic_batch,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    get_val_datasets,
    stateless,
)
from energon_stream.errors import StateInUseError
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import CRUDE_YAML, captioning_dataset
from energon_stream.testing.operator_suite import assert_equal_values

IN_PROCESS = WorkerConfig(rank=0, world_size=1, num_workers=0)


def train(path, encoder=None, batch_size=4, workers=0, **options):
    return get_train_dataset(
        str(path),
        batch_size=batch_size,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=workers),
        task_encoder=encoder,
        **{**SHUFFLED, **options},
    )


@pytest.fixture(scope="module")
def crude(tmp_path_factory):
    """24 crude samples with the parts jpg, txt and json."""
    folder = tmp_path_factory.mktemp("crude")
    captioning_dataset(folder, shards=2, samples_per_shard=12, with_json=True)
    prepare_dataset(str(folder), split_ratio=(1, 0, 0), dataset_yaml=CRUDE_YAML)
    return folder


@pytest.mark.parametrize(
    "options",
    [
        {"max_samples_per_sequence": None, "shuffle_buffer_size": None, "packing_buffer_size": None},
        {"shuffle_buffer_size": 1, "split_part": "val", "batch_drop_last": True},
        {"virtual_epoch_length": 3, "image_decode": "pil"},
    ],
)
def test_c01_ordinary_arguments(data, options):
    batch = next(iter(get_loader(train(data / "coco", **options))))
    assert len(batch.__key__) == 4
    assert isinstance(batch.image, list) == ("image_decode" in options)
    if options.get("split_part") == "val":
        assert all(key.startswith("coco-008.tar") for key in batch.__key__)


def test_c01_handler_is_still_accepted(data):
    class Failing(DefaultTaskEncoder):
        def encode_sample(self, sample):
            if sample.caption.endswith("0"):
                raise ValueError(sample.caption)
            return sample

    seen = []
    with pytest.warns(FutureWarning, match="global_error_handler"):
        ds = train(data / "coco", Failing(), repeat=False, handler=lambda error, key: seen.append(key))
    assert len([key for batch in ds for key in batch.__key__]) == 72
    assert len(seen) == 8
    assert all(key.endswith("0") for key in seen)


@pytest.mark.parametrize("workers", [0, 2])
def test_c02_a_limited_repeated_validation_set_begins_anew(data, workers):
    wc = WorkerConfig(rank=0, world_size=1, num_workers=workers)
    ds = get_val_dataset(str(data / "coco"), batch_size=4, worker_config=wc)
    limited = LimitDataset(
        RepeatDataset(ds, worker_config=wc), length=7, worker_config=wc, reset_after_epoch=True
    )
    with get_loader(limited) as loader:
        passes = [[batch.__key__ for batch in loader] for _ in range(2)]
    assert len(passes[0]) == 7
    assert passes[0] == passes[1]


def test_c02_validation_sets_are_pairs_of_dataset_and_source(data):
    document = {
        "__module__": "megatron.energon",
        "__class__": "MetadatasetV2",
        "splits": {"val": {"blend": [{"path": str(data / "coco")}, {"path": str(data / "coyo")}]}},
    }
    pairs = get_val_datasets(document, batch_size=5, worker_config=IN_PROCESS, limit=1)
    assert [source.path for _, source in pairs] == [str(data / "coco"), str(data / "coyo")]
    for dataset, source in pairs:
        (batch,) = dataset
        assert all(key.startswith(source.path.rpartition("/")[2]) for key in batch.__key__)
        assert len(batch.__key__) == 5


def test_c03_worker_configurations():
    class Untouchable:
        """A group may not exist yet when the configuration is made."""

    config = WorkerConfig(
        rank=1,
        world_size=2,
        num_workers=0,
        data_parallel_group=Untouchable(),
        worker_debug_path=None,
        worker_log_level=0,
        seed_offset=3,
    )
    assert (config.rank, config.seed_offset) == (1, 3)
    assert WorkerConfig.default_worker_config(2).num_workers == 2


def test_c04_the_loader_takes_the_datasets_configuration(data):
    ds = train(data / "coco")
    with pytest.warns(
        FutureWarning, match="worker_config= of a loader is deprecated, and energon_stream 1.0 removes it"
    ):
        loader = get_savable_loader(
            ds, worker_config=IN_PROCESS, watchdog_initial_timeout_seconds=60, prefetch_factor=2
        )
    assert len(next(iter(loader)).__key__) == 4
    with pytest.raises(ValueError, match="differs from the dataset's"):
        get_savable_loader(ds, worker_config=WorkerConfig(rank=0, world_size=2, num_workers=0))


@pytest.mark.parametrize("workers", [0, 2])
def test_c05_restoring_before_and_never_while_iterating(data, workers):
    first = get_savable_loader(train(data / "coco", workers=workers))
    beginning = first.save_state_rank()
    batches = iter(first)
    expected = [batch.__key__ for batch in islice(batches, 6)]
    with pytest.raises(StateInUseError):
        first.restore_state_rank(beginning)
    first.close()
    for state in (None, beginning):
        with get_savable_loader(train(data / "coco", workers=workers)) as loader:
            lazily = iter(cyclic(loader))
            loader.restore_state_rank(state)
            assert [batch.__key__ for batch in islice(lazily, 6)] == expected


def cyclic(loader):
    while True:
        yield from loader


@pytest.mark.parametrize("workers", [0, 2])
def test_c06_loaders_are_true_and_epochs_go_on(data, workers):
    endless = get_loader(train(data / "coco", workers=workers))
    assert endless
    assert len(endless) == 20
    with get_loader(train(data / "coco", workers=workers, virtual_epoch_length=4)) as loader:
        assert loader
        assert len(loader) == 4
        epochs = [[batch.__key__ for batch in loader] for _ in range(4)]
    assert [len(epoch) for epoch in epochs] == [4] * 4
    with get_loader(train(data / "coco", workers=workers)) as whole:
        assert [key for epoch in epochs for key in epoch] == [batch.__key__ for batch in islice(whole, 16)]


@pytest.mark.parametrize("length", [1, 3])
def test_c06_short_epochs_leave_no_data_out(data, length):
    """Also where the workers' shares of one epoch differ."""
    with get_loader(train(data / "coco", workers=2, batch_size=1, virtual_epoch_length=length)) as loader:
        keys = [batch.__key__[0] for _ in range(84 // length) for batch in loader]
    assert len(keys) == 84
    assert len(set(keys[:80] if length == 1 else keys)) == 80


def as_lists(key):
    return [as_lists(part) for part in key] if isinstance(key, tuple) else key


class Noisy(DefaultTaskEncoder):
    """Random, but seeded."""

    @stateless(restore_seeds=True)
    def encode_sample(self, sample):
        noise = (torch.rand(()).item(), random.random())
        return CaptioningSample.derive_from(sample, image=sample.image, caption=f"{sample.caption} {noise}")


class Grouping(Noisy):
    """Batches of equal last digits."""

    def batch_group_criterion(self, sample):
        return int(sample.__key__[-1]) % 2, 3


class Packing(Noisy):
    """Packs of two or three."""

    @stateless(restore_seeds=True)
    def select_samples_to_pack(self, samples):
        order = [samples[place] for place in torch.randperm(len(samples)).tolist()]
        return [order[begin : begin + 3] for begin in range(0, len(order), 3)]

    @stateless
    def pack_selected_samples(self, samples):
        return CaptioningSample(
            __key__=",".join(sample.__key__ for sample in samples),
            __restore_key__=(),
            __subflavors__=samples[0].__subflavors__,
            __sources__=sum((sample.__sources__ for sample in samples), ()),
            image=torch.cat([sample.image for sample in samples]),
            caption="+".join(sample.caption for sample in samples),
        )


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("encoder", "options"),
    [
        (Noisy, {}),
        (Grouping, {"batch_size": None}),
        (Packing, {"packing_buffer_size": 8}),
        (Packing, {"packing_buffer_size": 8, "batch_size": None}),
    ],
)
def test_c07_batches_are_made_again_from_their_keys(data, encoder, options, workers):
    with get_loader(train(data / "coco", encoder(), workers=workers, **options)) as loader:
        assert loader.can_restore_sample()
        batches = list(islice(loader, 6))
        for batch in batches[::2]:
            for key in (batch.__restore_key__, as_lists(batch.__restore_key__)):
                assert_equal_values(loader.restore_sample(key), batch)
    with get_loader(train(data / "coco", encoder(), workers=workers, **options)) as other:
        assert_equal_values(other.restore_sample(batches[5].__restore_key__), batches[5])


def test_c08_encoders_are_subscriptable_and_mixed_with_other_bases(data):
    class Mixin:
        def encode_sample(self, sample):
            return sample.caption

    class Encoder(Mixin, DefaultTaskEncoder[CaptioningSample, str, list, list], ABC):
        def __init__(self):
            super().__init__()

        def batch(self, samples):
            return sorted(samples)

        def encode_batch(self, batch):
            return batch[::-1]

    batch = next(iter(train(data / "coco", Encoder())))
    assert batch == sorted(batch, reverse=True)
    assert all(caption.startswith("caption ") for caption in batch)


@pytest.mark.parametrize(
    "mark",
    [stateless, stateless(), stateless(restore_seeds=True), stateless(failure_tolerance=100), lambda fn: fn],
)
def test_c09_marks_in_every_form(data, mark):
    class Encoder(DefaultTaskEncoder):
        encode_sample = mark(lambda self, sample: sample)

    ds = train(data / "coco", Encoder())
    assert next(iter(ds)).caption
    assert ds.can_restore_sample() == hasattr(Encoder.encode_sample, "__stateless__")
    marked = stateless(restore_seeds=True, failure_tolerance=100)(lambda sample: sample)
    assert marked.__failure_tolerance__ == 100


def test_c10_seeds_come_from_the_active_configuration():
    config = WorkerConfig(0, 1, 0)
    draw = stateless(restore_seeds=True)(lambda: torch.rand(()).item())
    with config.activate(0, 7):
        first = draw()
        assert draw() == first
    with config.activate(0, 8):
        assert draw() != first


@dataclass
class Plain(Sample):
    """A client's sample, decorated with the standard library's dataclass."""

    text: str = ""


@dataclass
class Minimal:
    """Not a Sample at all."""

    __key__: str
    __subflavors__: dict[str, Any]


class Row(NamedTuple):
    text: str
    length: int


@pytest.mark.parametrize(
    "make",
    [
        lambda s: Plain(__key__=s.__key__, __restore_key__=(), text=s.caption),
        lambda s: Minimal(s.__key__, s.__subflavors__),
        lambda s: {"__key__": s.__key__, "text": s.caption, "image": s.image},
        lambda s: Row(s.caption, len(s.caption)),
        lambda s: (s.caption, len(s.caption)),
    ],
)
def test_c11_samples_of_any_kind(data, make):
    class Encoder(DefaultTaskEncoder):
        def encode_sample(self, sample):
            return make(sample)

    kind = type(make(next(iter(train(data / "coco", batch_size=None)))))
    with get_loader(train(data / "coco", Encoder(), workers=2)) as loader:
        batch = next(iter(loader))
    assert type(batch) is (kind if kind is not tuple else list)
    assert type(next(iter(train(data / "coco", Encoder(), batch_size=None)))) is kind


def test_c11_fields_of_samples_and_batches_are_as_in_version_7():
    names = ["__key__", "__restore_key__", "__subflavors__", "__sources__"]
    assert [entry.name for entry in fields(Sample)] == names
    assert [entry.name for entry in fields(Batch)] == names
    assert not hasattr(Sample, "__subflavor__")


def test_c12_restore_keys_of_packs_are_filled_in_and_may_be_dropped(data):
    class Encoder(Packing):
        @stateless
        def encode_batch(self, batch):
            found = {entry.name: getattr(batch, entry.name) for entry in fields(batch)}
            del found["__restore_key__"], found["__sources__"]
            return found

    pack = next(iter(train(data / "coco", Packing(), batch_size=None, packing_buffer_size=8)))
    assert pack.__restore_key__ != ()
    assert pack.__subflavors__ == {}
    batch = next(iter(train(data / "coco", Encoder(), packing_buffer_size=8)))
    assert set(batch) == {"__key__", "__subflavors__", "image", "caption"}


def test_c13_skipped_samples_are_no_failures(data):
    class Encoder(DefaultTaskEncoder):
        __default_failure_tolerance__ = 1

        def encode_sample(self, sample):
            if int(sample.caption.split()[1]) % 4:
                raise SkipSample()
            return sample

    assert sum(len(batch.caption) for batch in train(data / "coco", Encoder(), repeat=False)) == 20


def cook_to_sample(sample: dict) -> CaptioningSample:
    return CaptioningSample(
        **basic_sample_keys(sample), image=sample["jpg"], caption=sample["json"]["caption"]
    )


def cook_to_dict(sample: dict) -> dict:
    return {**basic_sample_keys(sample), "image": sample["jpg"], "caption": sample["json"]["caption"]}


@pytest.mark.parametrize("cook", [cook_to_sample, cook_to_dict])
def test_c14_cookers(crude, cook):
    class Encoder(DefaultTaskEncoder):
        cookers = [Cooker(cook)]

    batch = next(iter(train(crude, Encoder())))
    batch = batch if isinstance(batch, dict) else vars_of(batch)
    assert batch["image"].shape == (4, 3, 12, 16)
    assert batch["caption"][0].startswith("caption ")
    assert batch["__key__"][0].startswith("data-00000")
    assert batch["__subflavors__"] == [{}] * 4
    assert batch["__restore_key__"]


def vars_of(sample):
    return {entry.name: getattr(sample, entry.name) for entry in fields(sample)}


def test_c15_batching_helpers():
    assert batch_list((1, 2)) == [1, 2]
    padded = batch_pad_stack([torch.ones(2, 1), torch.ones(1, 3)])
    assert padded.tolist() == [[[1, 0, 0], [1, 0, 0]], [[1, 1, 1], [0, 0, 0]]]
    nested = [
        {"row": Row("a", 1), "deep": {"x": torch.ones(1)}},
        {"row": Row("b", 2), "deep": {"x": torch.ones(2)}},
    ]
    batched = generic_batch(nested)
    assert batched["row"] == Row(["a", "b"], [1, 2])
    assert batched["deep"]["x"].tolist() == [[1, 0], [1, 1]]
    made = DefaultTaskEncoder()._batch(
        [{"image": torch.ones(2), "caption": "a"}], result_type=dict, actions={"image": batch_stack}
    )
    assert made["caption"] == ["a"]
    assert made["image"].shape == (1, 2)


@pytest.mark.parametrize("workers", [0, 2])
def test_c17_packing(data, workers):
    """A full buffer is selected from; its groups follow one by one, over a restore; the rest is flushed."""
    calls = []

    class Encoder(Packing):
        def select_samples_to_pack(self, samples):
            calls.append(len(samples))
            return super().select_samples_to_pack(samples)

    options = {"batch_size": None, "packing_buffer_size": 24, "repeat": False}
    loader = get_savable_loader(train(data / "coco", Encoder(), workers=workers, **options))
    batches = iter(loader)
    before = [pack.caption for pack in islice(batches, 3)]
    state = loader.save_state_rank()
    rest = [pack.caption for pack in batches]
    assert len(before + rest) == {0: 27, 2: 28}[workers]  # of 80, or of two times 40, in threes
    assert sum(len(caption.split("+")) for caption in before + rest) == 80
    with get_savable_loader(train(data / "coco", Encoder(), workers=workers, **options)) as restored:
        restored.restore_state_rank(state)
        assert [pack.caption for pack in restored] == rest
    if workers == 0:
        assert calls == [24, 24, 24, 8, 24, 24, 8]


def test_c18_states_lie_in_checkpoint_files(data, tmp_path):
    loader = get_savable_loader(train(data / "coco"))
    list(islice(loader, 3))
    folder = tmp_path / "iter_0000010"
    folder.mkdir()
    torch.save({"dataloader_state_dict": loader.save_state_rank()}, folder / "train_dataloader_dprank000.pt")
    restored = get_savable_loader(train(data / "coco"))
    restored.restore_state_rank(torch.load(folder / "train_dataloader_dprank000.pt")["dataloader_state_dict"])
    assert next(iter(restored)).__key__ == next(iter(loader)).__key__
