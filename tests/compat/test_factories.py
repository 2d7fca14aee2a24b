"""Dataset classes: own ones named by a ``dataset.yaml``, and preparing by them."""

import pickle
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from webdataset.autodecode import Decoder, imagehandler

from energon_stream import WorkerConfig, get_loader, get_train_dataset
from energon_stream.compat import dataset_classes as factories
from energon_stream.compat.dataset_classes import (
    BaseWebdatasetFactory,
    CrudeJsonlDatasetFactory,
    CrudeWebdataset,
    DefaultDecoderWebdatasetFactory,
    StandardWebdatasetFactory,
)
from energon_stream.compat.dataset_config import get_dataset_from_config
from energon_stream.compat.dataset_info import EnergonDatasetType, get_dataset_type
from energon_stream.compat.epath import EPath
from energon_stream.compat.foreign import describe_foreign
from energon_stream.errors import MetadataError, UntrustedCodeError
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.samples import CaptioningSample, CrudeSample, Sample, TextSample
from energon_stream.testing.datasets import captioning_dataset, write_shards


@dataclass
class Chat(Sample):
    """A client's sample."""

    conversation: str
    images: list | None = None


class ChatDataset(DefaultDecoderWebdatasetFactory[Chat]):
    """A client's dataset class, which brings WebDataset's decoder along."""

    __sample_type__ = Chat

    def __init__(self, path, *, spec="torchrgb", **options):
        assert isinstance(path, EPath)
        assert (path / ".nv-meta" / "dataset.yaml").is_file()
        options.pop("decoder")
        super().__init__(path, decoder=None, **options)
        self._decoder = Decoder([imagehandler(spec)])


class Parsing(DefaultDecoderWebdatasetFactory[TextSample]):
    """Makes the fields itself, of decoded parts."""

    __sample_type__ = TextSample

    def __init__(self, path, **options):
        super().__init__(path, sample_loader=self.parse, part_filter=["txt"], **options)

    @staticmethod
    def parse(raw):
        assert "jpg" not in raw
        return {"text": raw["txt"].upper()}


class Raw(CrudeWebdataset):
    """Crude samples of some parts."""

    def __init__(self, path, **options):
        super().__init__(path, part_filter=lambda part: part == "txt", **options)


class Overriding(Parsing):
    """Relies on a method of the other library."""

    def build(self, worker_rotation_offset=0):
        return self


class Typeless(DefaultDecoderWebdatasetFactory):
    """Forgets what it is made of."""


class NotOne:
    """Something else."""


@pytest.fixture
def folder(tmp_path):
    captioning_dataset(tmp_path, shards=4, samples_per_shard=3)
    BaseWebdatasetFactory.prepare_dataset(tmp_path, ["*.tar"], split_parts_ratio=[("train", 1.0)])
    return tmp_path


def write_yaml(folder, name, module=__name__, **keys):
    document = {"__module__": module, "__class__": name, **keys}
    (folder / ".nv-meta" / "dataset.yaml").write_text(yaml.safe_dump(document))


def load(folder, workers=0, **options):
    dataset = get_train_dataset(
        str(folder),
        batch_size=None,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=workers),
        repeat=False,
        **options,
    )
    with get_loader(dataset, start_method="spawn") as loader:
        return list(loader)


@pytest.mark.usefixtures("forked_spawn")
@pytest.mark.parametrize("workers", [0, 2])
def test_an_own_class_makes_its_samples(folder, workers):
    fields = {"conversation": "txt", "images": "jpg"}
    write_yaml(folder, "ChatDataset", field_map=fields, subflavors={"kind": "chat"})
    samples = load(folder, workers)
    assert len(samples) == 12
    assert {type(sample) for sample in samples} == {Chat}
    assert samples[0].conversation.startswith("caption ")
    assert samples[0].images.shape == (3, 12, 16)
    assert samples[0].__subflavors__ == {"kind": "chat"}


def test_its_arguments_are_the_keys_of_the_file(folder):
    write_yaml(folder, "ChatDataset", field_map={"conversation": "txt", "images": "jpg"}, spec="pil")
    assert load(folder)[0].images.size == (16, 12)


def test_functions_of_a_class(folder):
    write_yaml(folder, "Parsing", max_samples_per_sequence=2)
    assert sorted(sample.text for sample in load(folder))[0] == "CAPTION 0"
    write_yaml(folder, "Raw")
    sample = load(folder)[0]
    assert type(sample) is CrudeSample
    assert "jpg" not in sample
    assert sample["txt"].startswith("caption ")


def test_classes_are_the_datasets_unless_the_program_has_imported_them(folder, tmp_path, monkeypatch):
    source = "from energon_stream.compat.dataset_classes import CrudeWebdataset\nclass Mine(CrudeWebdataset): pass\n"
    (tmp_path / "module_of_a_dataset.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    write_yaml(folder, "Mine", module="module_of_a_dataset")
    with pytest.raises(UntrustedCodeError, match="import of module_of_a_dataset"):
        load(folder)
    assert len(load(folder, trust_dataset_code=True)) == 12
    assert len(load(folder)) == 12  # it is imported now
    with pytest.raises(UntrustedCodeError):
        load(folder, trust_dataset_code=False)
    write_yaml(folder, "system", module="os")  # imported, but no dataset class
    with pytest.raises(UntrustedCodeError):
        load(folder)


@pytest.mark.energon(
    "dataset.yaml: a class that overrides build",
    differs="it is refused by name: one order has the samples of all datasets; use a sample_loader or a cooker",
)
@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("Overriding", {}, "overrides build, which is not called here"),
        ("Typeless", {"field_map": {"text": "txt"}}, "Typeless.__sample_type__ is None"),
        ("NotOne", {}, "is not a dataset class"),
        ("ChatDataset", {}, "'field_map' must map"),
        ("ChatDataset", {"field_map": {"conversation": "txt"}, "specs": 1}, "unknown key 'specs'"),
        ("Parsing", {"sample_loader": "a.py:b"}, "does not take these keys: .*multiple values"),
    ],
)
def test_what_is_wrong_with_a_class(folder, name, keys, message):
    write_yaml(folder, name, **keys)
    with pytest.raises(MetadataError, match=message):
        load(folder, trust_dataset_code=True)


def test_the_library_has_a_class_for_each_name(tmp_path):
    assert factories.CaptioningWebdataset.__sample_type__ is CaptioningSample
    assert factories.VidQAWebdataset(tmp_path).path == EPath(tmp_path)
    assert StandardWebdatasetFactory(tmp_path, sample_type=Chat).__sample_type__ is Chat
    assert StandardWebdatasetFactory.__sample_type__ is None
    assert DefaultDecoderWebdatasetFactory(tmp_path)._decoder.image_decode == "torchrgb"
    with pytest.raises(AttributeError, match="NoWebdataset"):
        _ = factories.NoWebdataset


def test_decoders_of_classes_can_be_pickled(tmp_path):
    (tmp_path / ".nv-meta").mkdir()
    (tmp_path / ".nv-meta" / "dataset.yaml").touch()
    options = {"path": str(tmp_path), "decoder": None, "trust": None, "where": "x"}
    _, decoder, *_ = describe_foreign(__name__, "ChatDataset", {}, **options)
    assert pickle.loads(pickle.dumps(decoder)).decode("txt", memoryview(b"a")) == "a"


def split_of(folder):
    return yaml.safe_load((folder / ".nv-meta" / "split.yaml").read_text())["split_parts"]


def test_preparing(folder):
    assert BaseWebdatasetFactory.prepare_dataset(
        folder,
        ["data-{000000..000003}.tar"],
        split_parts_patterns=[("train", r"data-00000[0-2]\.tar"), ("val", r".*3\.tar")],
        shuffle_seed=None,
        workers=2,
    ) == {"jpg", "txt"}
    assert split_of(folder) == {"train": ["data-{000000..000002}.tar"], "val": ["data-000003.tar"]}
    totals, steps = [], []

    def progress(tars, total):
        totals.append(total)
        yield from map(steps.append, tars)
        steps.append("end")

    ratio = {"split_parts_ratio": [("first", 0.5), ("second", 0.5)], "progress_fn": progress}
    CrudeWebdataset.prepare_dataset(str(folder), ["*.tar"], shuffle_seed=None, **ratio)
    assert split_of(folder) == {
        "first": ["data-{000000..000001}.tar"],
        "second": ["data-{000002..000003}.tar"],
    }
    assert (totals, steps) == ([4], [0, 1, 2, 3, "end"])
    orders = set()
    for seed in (1, 1, 2, 42):
        CrudeWebdataset.prepare_dataset(
            folder, ["*.tar"], split_parts_ratio=[("train", 1)], shuffle_seed=seed
        )
        orders.add((seed, str(split_of(folder)["train"])))
    assert len(orders) == 3
    assert len({order for _, order in orders}) > 1


def test_preparing_json_lines(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n')
    assert CrudeJsonlDatasetFactory.prepare_dataset(path) == 2
    assert [sample["json"]["a"] for sample in load(path)] == [1, 2]


@pytest.mark.parametrize("kind", ["Parquet", "DefaultParquet"])
def test_the_classes_of_other_formats(tmp_path, kind):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": [1, 2]}), path)
    made = getattr(factories, f"{kind}DatasetFactory")(
        path, worker_config=WorkerConfig(0, 1, 0), training=False
    )
    assert [sample["a"] for sample in made.build()] == [1, 2]
    assert get_dataset_type(EPath(path)) is EnergonDatasetType.PARQUET
    assert get_dataset_type(EPath(tmp_path / "b.bin")) is EnergonDatasetType.INVALID
    prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0))
    assert "DefaultParquetShardListDatasetFactory" in (tmp_path / ".nv-meta/dataset.yaml").read_text()
    folder = get_dataset_from_config(
        tmp_path, split_part="train", training=False, worker_config=WorkerConfig(0, 1, 0)
    )
    assert [sample["a"] for sample in folder.build()] == [1, 2]
    assert type(folder).__name__ == "DefaultParquetShardListDatasetFactory"


def test_factories_have_the_length_of_one_pass(tmp_path):
    """In 7.4.1: 20 of 30 samples for each of these, whatever the ranks and passes; 5 in validation."""
    folder = tmp_path / "data"
    write_shards(folder, shards=6, samples_per_shard=5, parts=lambda i: {"txt": b"text"})
    yaml = {
        "sample_type": {"__module__": "megatron.energon", "__class__": "TextSample"},
        "field_map": {"text": "txt"},
    }
    prepare_dataset(str(folder), split_ratio=(4, 1, 1), dataset_yaml=yaml)
    one, many = WorkerConfig(0, 1, 0), WorkerConfig(0, 2, 3)
    made = {"sample_type": TextSample, "field_map": {"text": "txt"}, "split_part": "train"}
    for changes in ({}, {"worker_config": many}, {"shuffle_over_epochs": 3}):
        assert len(StandardWebdatasetFactory(folder, **{"worker_config": one, **made, **changes})) == 20
    config = {"dataset_config": "dataset.yaml", "split_config": "split.yaml", "worker_config": one}
    assert len(get_dataset_from_config(folder, **config, split_part="train", training=True)) == 20
    assert len(get_dataset_from_config(folder, **config, split_part="val", training=False)) == 5
