"""Objects of dataset classes from a ``dataset.yaml``, and programs that guard how they are made."""

import importlib

import pytest

from energon_stream import CaptioningSample, WorkerConfig, get_train_dataset
from energon_stream.compat.dataset_classes import (
    CrudeWebdataset,
    DefaultDecoderWebdatasetFactory,
    DefaultGenericWebdatasetFactory,
    StandardWebdatasetFactory,
)
from energon_stream.compat.dataset_config import JsonParser, load_config, load_yaml
from energon_stream.compat.epath import EPath
from energon_stream.errors import ConfigError, MetadataError, UntrustedCodeError
from energon_stream.testing.datasets import prepared_captioning_dataset


class Mine(DefaultDecoderWebdatasetFactory):
    """A client's."""


def test_objects_of_a_file(tmp_path):
    path = EPath(tmp_path) / "dataset.yaml"
    path.write_text(
        "sample_type: {__module__: megatron.energon, __class__: CaptioningSample}\n"
        "field_map: {image: jpg, caption: txt}\nsubflavors: {a: b}\n"
    )
    defaults = {"path": path.parent, "subflavors": {"c": "d"}}
    made = load_config(path, default_type=StandardWebdatasetFactory, default_kwargs=defaults)
    assert made.__sample_type__ is CaptioningSample
    assert (made.path, made.subflavors) == (path.parent, {"a": "b"})
    with path.open("rb") as file:
        document = load_yaml(file)
    assert document["field_map"] == {"image": "jpg", "caption": "txt"} == made.field_map
    crude = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}
    parser = JsonParser(strict=True)
    made = load_config(crude, default_type=Mine, default_kwargs={"path": path.parent}, parser=parser)
    assert type(made) is CrudeWebdataset
    older = {**crude, "__class__": "CaptioningWebdataset"}
    made = load_config(older, default_type=Mine, default_kwargs={"path": path.parent})
    assert made.__sample_type__ is CaptioningSample


@pytest.mark.parametrize(
    ("document", "error", "message"),
    [
        ({"__module__": "os", "__class__": "system", "command": "false"}, UntrustedCodeError, r"os\.system"),
        (
            {"__module__": "megatron.energon", "__class__": "CrudeWebdatset"},
            MetadataError,
            "'CrudeWebdataset'",
        ),
        ({"__module__": "megatron.energon"}, MetadataError, "a class is written as"),
        ({"sample_typ": 1}, MetadataError, "does not take these keys"),
    ],
)
def test_what_is_no_description(document, error, message):
    with pytest.raises(error, match=message):
        load_config(document, default_type=StandardWebdatasetFactory, default_kwargs={"path": "/x"})


def test_there_is_one_way_to_parse():
    with pytest.raises(ConfigError, match="strictly"):
        JsonParser(strict=False)


def test_a_guard_around_the_classes(alias, tmp_path, monkeypatch):
    """Megatron-Bridge replaces the constructor and ``load_config`` by ones that refuse code in dataset
    files.
    """
    energon = importlib.import_module("megatron.energon")
    config = energon.dataset_config
    generic = energon.flavors.webdataset.default_generic_webdataset.DefaultGenericWebdatasetFactory
    assert generic is DefaultGenericWebdatasetFactory
    original, plain = generic.__init__, config.load_config
    strict, calls = energon.typed_converter.JsonParser(strict=True), []

    def guarded(
        self, path, *, subflavors=None, field_map=None, sample_loader=None, part_filter=None, **kwargs
    ):
        calls.append(type(self).__name__)
        if isinstance(sample_loader, str) or isinstance(part_filter, str):
            raise ValueError("cannot load Python files")
        more = {"sample_loader": sample_loader, "part_filter": part_filter, **kwargs}
        original(self, path, subflavors=subflavors, field_map=field_map, **more)

    def checked(path, *, default_type, default_kwargs=None, parser=strict):
        return plain(path, default_type=default_type, default_kwargs=default_kwargs, parser=parser)

    for owner, name, guard in ((generic, "__init__", guarded), (config, "load_config", checked)):
        monkeypatch.setattr(owner, name, guard)
    with pytest.raises(ValueError, match="cannot load Python files"):
        config.load_config(
            {"sample_loader": "evil.py"},
            default_type=generic,
            default_kwargs={"path": energon.epathlib.EPath(tmp_path)},
        )
    prepared_captioning_dataset(tmp_path, shards=10, samples_per_shard=1)
    (tmp_path / ".nv-meta" / "dataset.yaml").write_text(
        f"__module__: {__name__}\n__class__: Mine\nsample_loader: evil.py:f\n"
    )
    worker_config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    options = {"shuffle_buffer_size": None, "max_samples_per_sequence": None, "worker_config": worker_config}
    with pytest.raises(ValueError, match="cannot load Python files"):
        get_train_dataset(str(tmp_path), batch_size=1, **options)
    assert calls == ["DefaultGenericWebdatasetFactory", "Mine"]
