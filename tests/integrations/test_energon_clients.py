"""What existing clients rely on: part C of the acceptance list, item by item, under the alias."""

import importlib
import inspect
import pickle
import pickletools
import sys
from dataclasses import fields
from itertools import islice

import pytest
import torch
import yaml
from torch.utils.data import default_convert

from energon_stream.integrations.megatron import (
    EnergonDataloader,
    cyclic_iter,
    install_alias,
    uninstall_alias,
)
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import CRUDE_YAML, captioning_dataset
from energon_stream.testing.operator_suite import assert_equal_values

PARTS = 24


@pytest.fixture(scope="module", autouse=True)
def energon():
    """``from megatron import energon``, as some write it."""
    install_alias()
    yield importlib.import_module("megatron.energon")
    uninstall_alias()


@pytest.fixture(scope="module")
def clients(energon):
    """The stand-ins."""
    return importlib.import_module("clients")


@pytest.fixture(scope="module")
def crude(tmp_path_factory):
    """24 crude samples of jpg, txt and json."""
    folder = tmp_path_factory.mktemp("crude")
    captioning_dataset(folder, shards=4, samples_per_shard=PARTS // 4, with_json=True)
    prepare_dataset(str(folder), split_ratio=(3, 1, 0), dataset_yaml=CRUDE_YAML)
    return folder


@pytest.fixture
def config(energon):
    """One rank without workers."""
    return energon.WorkerConfig(rank=0, world_size=1, num_workers=0)


def train(energon, path, encoder=None, workers=0, batch_size=2, **options):
    """As all clients call it."""
    return energon.get_train_dataset(
        str(path),
        batch_size=batch_size,
        task_encoder=encoder,
        worker_config=energon.WorkerConfig(rank=0, world_size=1, num_workers=workers),
        **{"max_samples_per_sequence": None, "shuffle_buffer_size": 10, **options},
    )


def keys(batches, count):
    return [batch.__key__ for batch in islice(batches, count)]


@pytest.mark.parametrize(
    "options",
    [
        {"packing_buffer_size": None, "split_part": "val"},
        {"shuffle_buffer_size": None, "max_samples_per_sequence": 100, "virtual_epoch_length": 3},
        {"shuffle_buffer_size": 1, "batch_drop_last": True, "image_decode": "pil"},
    ],
)
def test_c01_calls_of_get_train_dataset(energon, data, options):
    batch = next(iter(energon.get_loader(train(energon, data / "coco", **options))))
    assert len(batch.__key__) == 2
    assert int(batch.__key__[0]) in (range(40, 45) if "split_part" in options else range(40))
    assert torch.is_tensor(batch.image) == ("image_decode" not in options)


def test_c01_a_handler_of_megatron_lm(energon, data):
    def print_error_handler(exc: Exception, key: str | None):
        pytest.fail(f"{exc} {key}")

    with pytest.warns(FutureWarning, match="handler"):
        dataset = train(energon, data / "coco", handler=print_error_handler)
    next(iter(energon.get_loader(dataset)))


@pytest.mark.parametrize("workers", [0, 2])
def test_c02_validation_sets_of_megatron_lm(energon, data, workers):
    wc = energon.WorkerConfig(rank=0, world_size=1, num_workers=workers)
    with pytest.warns(FutureWarning, match="handler"):
        pairs = energon.get_val_datasets(
            str(data / "coyo-coco-dataset.yaml"),
            batch_size=2,
            worker_config=wc,
            handler=lambda error, key: None,
        )
    limited = [
        energon.LimitDataset(
            energon.RepeatDataset(dataset, worker_config=wc),
            length=4,
            worker_config=wc,
            reset_after_epoch=True,
        )
        for dataset, _ in pairs
    ]
    with pytest.warns(FutureWarning, match="worker_config"):
        loaders = [EnergonDataloader(energon.get_loader(dataset, worker_config=wc)) for dataset in limited]
    assert len(loaders) == 1
    for loader in loaders:
        passes = [keys(loader, 4) for _ in range(2)]
        assert passes[0] == passes[1]


def test_c03_configurations(energon):
    class NotYetThere:
        """A group that must not be touched."""

        def __getattribute__(self, name):
            raise AssertionError(name)

    config = energon.WorkerConfig(
        rank=1,
        world_size=2,
        num_workers=0,
        data_parallel_group=NotYetThere(),
        worker_debug_path=None,
        worker_log_level=0,
        seed_offset=3,
    )
    assert (config.rank, config.world_size, config.num_workers, config.seed_offset) == (1, 2, 0, 3)
    assert energon.WorkerConfig.default_worker_config(2).num_workers == 2
    assert energon.WorkerConfig.default_worker_config().num_workers == 4


def test_c04_calls_of_get_savable_loader(energon, data, config):
    dataset = train(energon, data / "coco")
    with pytest.warns(FutureWarning, match="worker_config"):
        loader = energon.get_savable_loader(
            dataset,
            worker_config=config,
            watchdog_initial_timeout_seconds=600,
            watchdog_timeout_seconds=None,
            prefetch_factor=4,
            cache_pool=energon.NoCachePool(),
        )
    next(iter(loader))
    with pytest.raises(ValueError, match="differs"):
        energon.get_savable_loader(dataset, worker_config=energon.WorkerConfig.default_worker_config(3))


@pytest.mark.parametrize("workers", [0, 2])
def test_c05_states_of_a_rank_and_of_all(energon, data, workers):
    def loader():
        return energon.get_savable_loader(train(energon, data / "coco", workers=workers))

    with loader() as first, loader() as second, loader() as third, loader() as fourth:
        lazily = iter(cyclic_iter(second))
        untouched = second.save_state_rank()
        beginning = keys(first, 3)
        states = first.save_state_global(global_dst_rank=0)
        assert len(states) == 1
        assert states[0] == first.save_state_rank()
        expected = keys(first, 4)
        second.restore_state_rank(states[0])
        assert keys(lazily, 4) == expected
        third.restore_state_global(states)
        assert keys(third, 4) == expected
        with pytest.raises(RuntimeError, match="before the first iteration"):
            third.restore_state_rank(states[0])
        fourth.restore_state_rank(None)
        fourth.restore_state_rank(untouched)
        assert keys(fourth, 3) == beginning


@pytest.mark.parametrize("loader_of", ["get_loader", "get_savable_loader"])
def test_c06_truth_and_repetition(energon, data, loader_of):
    loader = getattr(energon, loader_of)(train(energon, data / "coco"))
    assert loader
    assert len(loader) == 20
    epochs = getattr(energon, loader_of)(train(energon, data / "coco", virtual_epoch_length=3))
    assert sum([[batch.__key__ for batch in epochs] for _ in range(4)], []) == keys(loader, 12)  # noqa: RUF017


@pytest.mark.every(3)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("packing", [None, 6])
def test_c07_batches_from_their_restore_keys(energon, clients, crude, workers, packing):
    encoder = clients.BridgeEncoder(noise=0.1)
    dataset = train(energon, crude, encoder, workers, packing_buffer_size=packing)
    assert not dataset.can_restore_sample()  # the cooker is not marked
    encoder.cookers = [energon.Cooker(energon.stateless(lambda sample: clients.cook_chat(sample)))]
    dataset = train(energon, crude, encoder, workers, packing_buffer_size=packing)
    with energon.get_savable_loader(dataset) as loader:
        assert loader.can_restore_sample()
        for batch in islice(loader, 4):
            for key in (batch["__restore_key__"], as_lists(batch["__restore_key__"])):
                assert_equal_values(default_convert(loader.restore_sample(key)), batch)


def as_lists(key):
    return [as_lists(part) for part in key] if isinstance(key, (tuple, list)) else key


def test_c08_encoders_of_all_kinds(energon, clients, data, crude):
    batch = next(iter(train(energon, crude, clients.BridgeEncoder())))
    assert set(batch) == {"__key__", "__restore_key__", "tokens", "lengths"}
    assert batch["tokens"].shape == (2, max(batch["lengths"]))
    batch = next(iter(train(energon, data / "coco", clients.MegatronLMEncoder())))
    assert batch["imgs"].shape == (2, 3, 12, 16)
    assert batch["labels"].shape == (2,)
    encoder = clients.NeMoEncoder(clients.tokenize, scale=2.0)
    assert encoder.io == ((clients.tokenize,), {"scale": 2.0})
    batch = next(iter(train(energon, data / "coco", encoder)))
    assert batch["media"]["image"].shape == (2, 3, 12, 16)
    assert batch["tokens"].shape[0] == len(batch["keys"]) == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_c08_and_all_of_them_go_on_where_they_were(energon, clients, data, crude, workers):
    cases = [
        (crude, clients.BridgeEncoder, (0.1,), {"packing_buffer_size": 6}),
        (data / "coco", clients.MegatronLMEncoder, (), {}),
        (data / "coco", clients.NeMoEncoder, (clients.tokenize,), {}),
    ]
    for path, encoder, arguments, options in cases:

        def loader(path=path, encoder=encoder, arguments=arguments, options=options):
            return energon.get_savable_loader(train(energon, path, encoder(*arguments), workers, **options))

        with loader() as first, loader() as second:
            list(islice(first, 3))
            second.restore_state_rank(first.save_state_rank())
            for expected, batch in islice(zip(first, second, strict=False), 5):
                assert_equal_values(batch, expected)


def test_c09_marks(energon, clients):
    for mark in (energon.stateless, energon.stateless(), energon.stateless(restore_seeds=True)):
        assert clients.get_stateless(mark(lambda sample: sample))
    assert clients.NeMoEncoder.encode_sample.__failure_tolerance__ == 100


def test_c10_seeds_of_whatever_configuration_is_active(energon, clients, data, monkeypatch):
    base = importlib.import_module("megatron.energon.task_encoder.base")

    class Fake:
        """All that the decorator may ask for."""

        active_worker_sample_index = 5

        def worker_seed(self):
            return 7

    encoder = clients.BridgeEncoder(noise=1.0)
    sample = clients.ChatSample(__key__="a", __restore_key__=(), conversation='{"index": 2}')
    monkeypatch.setattr(base.WorkerConfig, "active_worker_config", Fake())
    first, second = encoder.encode_sample(sample), encoder.encode_sample(sample)
    assert torch.equal(first.tokens, second.tokens)
    Fake.active_worker_sample_index = 6
    assert not torch.equal(encoder.encode_sample(sample).tokens, first.tokens)
    monkeypatch.undo()
    captions = [
        s.caption for s in islice(train(energon, data / "coco", clients.SeedReader(), batch_size=None), 3)
    ]
    seed = energon.WorkerConfig(rank=0, world_size=1, num_workers=0).worker_seed()
    assert captions == [f"{seed} {index} 0" for index in range(3)]


def test_c11_fields_are_those_of_version_7(energon, clients):
    for cls in (energon.Sample, energon.Batch):
        assert [entry.name for entry in fields(cls)] == [
            "__key__",
            "__restore_key__",
            "__subflavors__",
            "__sources__",
        ]
        assert not hasattr(cls, "__subflavor__")
    sample = clients.ChatSample("text", __key__="a", __restore_key__=())
    assert (sample.conversation, sample.__subflavors__, sample.__sources__) == ("text", None, None)
    assert clients.metadata_of(energon.Sample, __key__="a", __subflavor__="b") == {"__key__": "a"}


def test_c12_keys_of_packs_and_origins(energon, clients, data):
    mixture = {
        "__module__": "megatron.energon",
        "__class__": "MetadatasetV2",
        "splits": {
            "train": {
                "blend": [
                    {"path": str(data / name), "weight": 1, "subflavors": {"origin": name}}
                    for name in ("coco", "coyo")
                ]
            }
        },
    }
    config = energon.WorkerConfig(rank=0, world_size=1, num_workers=0)
    options = {"max_samples_per_sequence": None, "shuffle_buffer_size": 10, "worker_config": config}
    samples = list(islice(energon.get_train_dataset(mixture, batch_size=None, **options), 20))
    assert {sample.__subflavors__["origin"] for sample in samples} == {"coco", "coyo"}
    assert all(
        sample.__sources__[0].shard_name.startswith(sample.__subflavors__["origin"]) for sample in samples
    )
    assert all(sample.__key__.isdigit() for sample in samples)


def test_c12_packers_leave_the_restore_key_to_the_library(energon, clients, crude):
    pack = next(iter(train(energon, crude, clients.BridgeEncoder(), batch_size=None, packing_buffer_size=6)))
    assert len(pack.__key__.split("|")) == 3
    assert pack.__restore_key__ != ()


def test_c13_skipped_and_failing_samples(energon, clients, data):
    class Choosy(clients.MegatronLMEncoder):
        def encode_sample(self, sample):
            number = int(sample.caption.split()[1])
            if number % 4 == 0:
                raise energon.SkipSample()
            if number % 4 == 1:
                raise ValueError(f"bad sample {number}")
            return super().encode_sample(sample)

    dataset = train(energon, data / "coco", Choosy(), repeat=False)
    assert sum(len(batch["labels"]) for batch in dataset) == 20


def test_c14_members_by_extension(energon, tmp_path, monkeypatch):
    from energon_stream.testing.datasets import write_shards

    def parts(number):
        saved = tmp_path / "saved.pth"
        torch.save({"x": torch.full((2,), float(number))}, saved)
        return {
            "json": b'{"a": 1}',
            "pth": saved.read_bytes(),
            "pickle": pickle.dumps([number]),
            "bin": b"\0",
        }

    write_shards(tmp_path, shards=1, samples_per_shard=3, parts=parts)
    energon.BaseWebdatasetFactory.prepare_dataset(tmp_path, ["*.tar"], split_parts_ratio=[("train", 1)])
    (tmp_path / ".nv-meta" / "dataset.yaml").write_text(yaml.safe_dump(CRUDE_YAML))

    def cook(sample: dict) -> dict:
        return {
            **energon.basic_sample_keys(sample),
            "all": [sample["json"], sample["pickle"], sample["bin"]],
            **sample["pth"],
        }

    class Encoder(energon.DefaultTaskEncoder):
        cookers = [energon.Cooker(cook)]

    monkeypatch.setenv("ENERGON_STREAM_TRUST_DATASET_CODE", "1")  # for the pickle
    sample = next(iter(train(energon, tmp_path, Encoder(), batch_size=None)))
    assert set(sample) == {"__key__", "__restore_key__", "__subflavors__", "__sources__", "all", "x"}
    number = int(sample["__key__"][-1])
    assert sample["all"] == [{"a": 1}, [number], b"\0"]
    assert sample["x"].tolist() == [number, number]


def test_c15_batching_helpers(energon):
    stacked = energon.batch_pad_stack([torch.ones(1, 2), torch.ones(2, 1)])
    assert stacked.tolist() == [[[1, 1], [0, 0]], [[1, 0], [1, 0]]]
    batched = energon.generic_batch(
        [{"a": {"b": torch.ones(1)}, "c": "x"}, {"a": {"b": torch.ones(2)}, "c": "y"}]
    )
    assert batched["a"]["b"].tolist() == [[1, 0], [1, 1]]
    assert batched["c"] == energon.batch_list(["x", "y"])
    made = energon.DefaultTaskEncoder()._batch(
        [{"image": torch.ones(2)}], result_type=dict, actions={"image": energon.batch_stack}
    )
    assert made["image"].shape == (1, 2)


FOREIGN = """
import inspect
from dataclasses import dataclass

import torch
from megatron.energon.epathlib.epath import EPath
from megatron.energon.flavors.base_dataset import Sample
from megatron.energon.flavors.webdataset import DefaultDecoderWebdatasetFactory
from webdataset.autodecode import Decoder, imagehandler

@dataclass
class ChatMLSample(Sample):
    conversation: str
    imgs: list[torch.Tensor] | None = None

class ChatMLWebdataset(DefaultDecoderWebdatasetFactory[ChatMLSample]):
    __sample_type__ = ChatMLSample

    def __init__(self, path: EPath, *, auto_decode: bool = True, **kwargs):
        parameters = inspect.signature(DefaultDecoderWebdatasetFactory.__init__).parameters
        if "decoder" in parameters:
            super().__init__(path, decoder=kwargs.pop("decoder", None), **kwargs)
        else:
            super().__init__(path, auto_decode=auto_decode, **kwargs)
        if auto_decode:
            self._decoder = Decoder([imagehandler("torchrgb")])
"""


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("said", ["imported by the program", "trusted"])
def test_c16_foreign_dataset_classes(energon, tmp_path, monkeypatch, workers, said):
    package = tmp_path / "packages" / "megatron" / "bridge" / "data" / "energon"
    package.mkdir(parents=True)
    (package / "task_encoder_utils.py").write_text(FOREIGN)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    name = "megatron.bridge.data.energon.task_encoder_utils"
    tars = [path.name for path in captioning_dataset(tmp_path / "tars", shards=4, samples_per_shard=3)]
    energon.BaseWebdatasetFactory.prepare_dataset(
        tmp_path / "tars",
        tars,
        split_parts_patterns=[("train", r".*[0-2]\.tar"), ("val", r".*3\.tar")],
        shuffle_seed=None,
    )
    document = {
        "__module__": name,
        "__class__": "ChatMLWebdataset",
        "field_map": {"conversation": "txt", "imgs": "jpg"},
    }
    (tmp_path / "tars" / ".nv-meta" / "dataset.yaml").write_text(yaml.safe_dump(document))
    if said == "trusted":
        monkeypatch.setenv("ENERGON_STREAM_TRUST_DATASET_CODE", "1")
    else:
        importlib.import_module(name)
    try:
        samples = list(train(energon, tmp_path / "tars", None, workers, batch_size=None, repeat=False))
        assert len(samples) == 9
        assert {type(sample) for sample in samples} == {sys.modules[name].ChatMLSample}
        assert samples[0].imgs.shape == (3, 12, 16)
    finally:
        for module in [module for module in sys.modules if module.startswith("megatron.bridge")]:
            del sys.modules[module]


def test_c16_preparing_as_nemo_does(energon, tmp_path):
    captioning_dataset(tmp_path, shards=5, samples_per_shard=2)
    found = energon.flavors.BaseWebdatasetFactory.prepare_dataset(
        tmp_path,
        [path.name for path in sorted(tmp_path.glob("*.tar"))],
        split_parts_ratio=[("train", 0.8), ("val", 0.2)],
        shuffle_seed=None,
        workers=2,
    )
    assert found == {"jpg", "txt"}
    split = yaml.safe_load((tmp_path / ".nv-meta" / "split.yaml").read_text())
    assert split["split_parts"] == {"train": ["data-{000000..000003}.tar"], "val": ["data-000004.tar"]}


@pytest.mark.parametrize("workers", [0, 2])
def test_c17_pending_groups_and_the_partial_buffer(energon, clients, crude, workers):
    def loader():
        options = {"batch_size": None, "packing_buffer_size": 8, "repeat": False}
        return energon.get_savable_loader(train(energon, crude, clients.BridgeEncoder(), workers, **options))

    with loader() as first, loader() as second:
        before = [pack.__key__ for pack in islice(first, 2)]
        state = first.save_state_rank()
        rest = [pack.__key__ for pack in first]
        second.restore_state_rank(state)
        assert [pack.__key__ for pack in second] == rest
    packed = [key for pack in before + rest for key in pack.split("|")]
    assert len(packed) == len(set(packed)) == PARTS * 3 // 4
    sizes = [len(pack.split("|")) for pack in before + rest]
    assert set(sizes) == ({3, 2} if workers == 0 else {3, 2, 1})


def test_c18_states_need_no_class_to_be_loaded(energon, clients, crude, tmp_path):
    encoder = clients.BridgeEncoder()
    loader = energon.get_savable_loader(train(energon, crude, encoder, packing_buffer_size=6))
    next(iter(loader))
    state = {"dataloader_state_dict": loader.save_state_rank()}
    operations = {code.name for code, _, _ in pickletools.genops(pickle.dumps(state))}
    assert not operations & {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "EXT1"}
    path = tmp_path / "train_dataloader_dprank000.pt"
    torch.save(state, path)
    assert torch.load(path) == state


def test_a_version_is_compared_by_others(energon):
    from importlib.metadata import version

    assert not version("megatron-energon") < "7.0.0"
    assert inspect.ismodule(energon)
