import io
import json
import pickle
import sys

import numpy as np
import pytest
from PIL import Image

from energon_stream.config.dataset_yaml import DatasetYamlOptions, make_sample_factory, read_dataset_config
from energon_stream.config.fields import parse_field_map
from energon_stream.config.sample_types import SAMPLE_TYPES
from energon_stream.decode import SampleDecoder
from energon_stream.errors import DecodeError, FieldError, MetadataError, NotPreparedError, UntrustedCodeError
from energon_stream.index.dataset import WebDatasetIndex
from energon_stream.limits import TRUST_VARIABLE
from energon_stream.read.part_ranges import PartSelection
from energon_stream.samples import CaptioningSample, CrudeSample, SourceInfo, TextSample, VQAOCRSample
from energon_stream.storage import StoreSpec

SOURCE = SourceInfo("s3://bucket/data", 7, "a.tar", ("k.jpg", "k.json"))
WHERE = "s3://bucket/data/.nv-meta/dataset.yaml"
LOADER = """
def sample_loader(raw):
    assert raw["__key__"] == "a.tar/k" and "jpg" not in raw
    return dict(text=raw["json"]["caption"].upper())

def part_filter(part):
    return part == "json"

def wrong(raw):
    return dict(txet="")
"""


def stored_image():
    stream = io.BytesIO()
    Image.fromarray(np.full((2, 4, 3), 51, dtype=np.uint8)).save(stream, "PNG")
    return stream.getvalue()


PARTS = {
    "jpg": memoryview(stored_image()),
    "json": json.dumps({"caption": "hello", "list": [{"0": "zero"}, None]}).encode(),
    "left.txt": b"left",
    "cls": b"3",
}


def own(name):
    return {"__module__": "megatron.energon", "__class__": name}


def typed(name="CaptioningSample", **fields):
    return {"sample_type": own(name), "field_map": fields or {"image": "jpg", "caption": "json[caption]"}}


def read(document, **options):
    options = {"decoder": SampleDecoder(), "read_text": {"loader.py": LOADER}.__getitem__, **options}
    return read_dataset_config(document, where=WHERE, **options)


def build(document, parts=PARTS, **options):
    factory = pickle.loads(pickle.dumps(read(document, **options)[0]))
    return factory.build("a.tar/k", parts, restore_key=("Source", 0, 7), subflavors={"x": 1}, source=SOURCE)


def test_a_typed_sample_is_made_of_its_parts():
    sample = build(typed())
    assert type(sample) is CaptioningSample
    assert sample.image.shape == (3, 2, 4)
    assert sample.image[0, 0, 0] == pytest.approx(0.2)
    assert (sample.caption, sample.__key__, sample.__restore_key__) == ("hello", "a.tar/k", ("Source", 0, 7))
    assert sample.__sources__ == (SOURCE,)
    assert sample.__subflavors__ == {"x": 1}
    assert read(typed())[0].selection == PartSelection(frozenset({"jpg", "json"}), declared=False)
    assert build(typed("ImageSample", image="jpg"), decoder=None).image == bytes(PARTS["jpg"])


@pytest.mark.parametrize(
    ("access", "value"),
    [
        ("left.txt", "left"),
        ("png,left.txt", "left"),
        (" png , left.txt ", "left"),
        ("json[caption]", "hello"),
        ("json[list][0][0]", "zero"),
        ("json[list][1]", None),
        ("json[nothing],cls", 3),
        ("json[a,b],json[list][9],cls", 3),
    ],
)
def test_the_grammar_of_field_maps(access, value):
    assert build(typed("TextSample", text=access)).text == value


@pytest.mark.parametrize(
    "access", ["", "jpg,", "json[", "json]a[", "json[a]b", "a b", "json[]", 3, None, ["jpg"]]
)
def test_field_maps_outside_of_the_grammar_are_refused(access):
    with pytest.raises(MetadataError, match="the place of field 'text' is"):
        parse_field_map({"text": access}, WHERE)


@pytest.mark.parametrize("access", ["png", "json[captoin]", "json[list][2]", "cls[0]"])
def test_a_missing_part_is_named_with_those_that_exist(access):
    with pytest.raises(FieldError, match=r"field 'text' .*(cls, jpg, json, left\.txt).*\[s3://.*a\.tar/k\]"):
        build(typed("TextSample", text=access))


def test_a_damaged_part_is_named_with_its_sample():
    with pytest.raises(DecodeError, match=r"part 'jpg' .*\[s3://bucket/data: sample a\.tar/k\]") as raised:
        build(typed(), {**PARTS, "jpg": b"broken"})
    assert raised.value.__cause__ is not None


def test_crude_samples_hold_decoded_parts():
    crude = build(own("CrudeWebdataset"))
    assert type(crude) is CrudeSample
    assert crude["json"]["caption"] == "hello"
    assert (crude["cls"], crude["left.txt"], crude["__shard__"]) == (3, "left", "a.tar")
    assert crude["__sources__"] == (SOURCE,)
    filtered = {**own("CrudeWebdataset"), "part_filter": ["json"]}
    assert read(filtered)[0].selection == PartSelection(frozenset({"json"}))
    assert "jpg" not in build(filtered)
    assert read(own("CrudeWebdataset"))[0].selection is None
    assert build(own("CrudeWebdataset"), decoder=None)["cls"] == b"3"


def test_older_and_generic_factories_mean_sample_types():
    old = {**own("CaptioningWebdataset"), "field_map": typed()["field_map"]}
    assert type(build(old)) is CaptioningSample
    generic = {**own("StandardWebdatasetFactory"), **typed("TextSample", text="left.txt")}
    assert type(build(generic)) is TextSample
    elsewhere = {"__module__": "energon_stream.samples", "__class__": "TextSample"}
    assert type(build({"sample_type": elsewhere, "field_map": {"text": "cls"}})) is TextSample
    assert SAMPLE_TYPES["VQAOCRSample"] is VQAOCRSample


def test_options_are_surfaced_and_the_decoder_is_used():
    document = {
        **typed(),
        "subflavors": {"set": "a"},
        "parallel_shard_iters": 4,
        "max_samples_per_sequence": None,
        "decoder": {**own("SampleDecoder"), "image_decode": "rgb8"},
    }
    options = read(document)[1]
    assert options.subflavors == {"set": "a"}
    assert build(document).image.shape == (2, 4, 3)
    assert options.order == {"parallel_slices": 4, "max_samples_per_sequence": None}
    assert isinstance(build({**typed("ImageSample", image="jpg"), "decoder": None}).image, bytes)


CODE = {"sample_type": own("TextSample"), "sample_loader": "loader.py:sample_loader"}


def test_code_of_a_dataset_runs_only_when_it_is_trusted(monkeypatch):
    document = {**CODE, "part_filter": "loader.py:part_filter"}
    with pytest.raises(UntrustedCodeError, match="trust_dataset_code=True"):
        read(document)
    assert build(document, trust=True).text == "HELLO"
    monkeypatch.setenv(TRUST_VARIABLE, "1")
    assert build(document).text == "HELLO"
    with pytest.raises(UntrustedCodeError):
        read(document, trust=False)
    with pytest.raises(FieldError, match=r"the fields of TextSample: .*txet"):
        build({**document, "sample_loader": "loader.py:wrong"})
    for reference in ("loader.py:absent", "loader.py", "loader:sample_loader"):
        with pytest.raises(MetadataError, match=reference.partition(":")[0]):
            read({**document, "sample_loader": reference})


def test_foreign_classes_are_imported_only_when_trusted(tmp_path, monkeypatch):
    module = "import energon_stream.samples as s\n@s.edataclass\nclass Mine(s.Sample):\n    text: str\n"
    (tmp_path / "foreign_types.py").write_text(module)
    monkeypatch.syspath_prepend(str(tmp_path))
    document = typed("TextSample", text="left.txt")
    document["sample_type"] = {"__module__": "foreign_types", "__class__": "Mine"}
    with pytest.raises(UntrustedCodeError, match=r"import of foreign_types\.Mine"):
        read(document)
    assert "foreign_types" not in sys.modules
    assert type(build(document, trust=True)).__name__ == "Mine"
    for module, name in [("foreign_types", "Other"), ("os", "system"), ("no_such_module", "X")]:
        document["sample_type"] = {"__module__": module, "__class__": name}
        with pytest.raises(MetadataError, match=name):
            read(document, trust=True)


CALL = {"__module__": "os", "__function__": "system", "command": "false"}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({**typed(), "feild_map": {}}, "unknown key 'feild_map'.*'field_map'"),
        ({**typed(), "run": CALL}, "unknown key 'run'"),
        ({**typed(), "subset": 3}, "'subset' is 3"),
        ({**typed(), "decoder": CALL}, "a class is written as"),
        ({**typed(), "sample_type": CALL}, "a class is written as"),
        (
            {**typed(), "decoder": {**own("SampleDecoder"), "allow_pickle": True}},
            "unknown key 'allow_pickle'",
        ),
        (typed("CaptionSample"), "no sample type 'CaptionSample'.*'CaptioningSample'"),
        (typed(image="jpg"), "field_map lacks caption"),
        (typed(image="jpg", caption="txt", captoin="txt"), "'captoin'.*'caption'"),
        (typed(image="jpg", caption="txt", __key__="txt"), "'__key__'"),
        ({"sample_type": own("TextSample")}, "'field_map' must map"),
        ({**typed(), "sample_loader": "loader.py:sample_loader"}, "'field_map' is not allowed"),
        ({**own("CrudeWebdataset"), "field_map": {"text": "txt"}}, "'field_map' is not allowed"),
        ({**typed(), "part_filter": ["jpg"]}, "'part_filter' is not allowed"),
        ({**own("CrudeWebdataset"), "part_filter": 3}, "'part_filter' is 3"),
        (own("CrudeWebdatset"), "no dataset class.*'CrudeWebdataset'"),
        ({"__module__": "other.package", "__class__": "ChatMLWebdataset"}, "cannot be imported"),
        ({"__module__": "", "__class__": "ChatMLWebdataset"}, "cannot be imported"),
        ({"__module__": "other.package"}, "is written as __module__ and __class__"),
        ({**own("CaptioningWebdataset"), **typed()}, "'sample_type' is not allowed"),
        (own("StandardWebdatasetFactory"), "needs a sample_type"),
        ({"subflavors": {}}, "neither a sample_type nor a __class__"),
        ({**typed(), "subflavors": [1]}, r"'subflavors' is \[1\].*Map names to values"),
    ],
)
def test_what_is_wrong_with_a_dataset_yaml_is_said_when_it_is_read(document, message):
    with pytest.raises(MetadataError, match=message) as raised:
        read(document, trust=True)
    assert raised.value.where == WHERE


def test_a_dataset_is_understood_from_its_folder(tmp_path):
    (tmp_path / ".nv-meta").mkdir()
    (tmp_path / ".nv-meta" / "loader.py").write_text(LOADER)
    spec = StoreSpec(str(tmp_path))
    index = WebDatasetIndex(spec, "train", ("a.tar",), np.array([1]), dataset_yaml=CODE)
    factory, options = make_sample_factory(index, decoder=SampleDecoder(), trust=True)
    parts = {"json": PARTS["json"]}
    sample = factory.build("a.tar/k", parts, restore_key=(), subflavors=None, source=SOURCE)
    assert (sample.text, options) == ("HELLO", DatasetYamlOptions())
    bare = WebDatasetIndex(spec, "train", ("a.tar",), np.array([1]))
    with pytest.raises(NotPreparedError, match="prepare"):
        make_sample_factory(bare, decoder=None)
