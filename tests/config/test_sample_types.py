"""A new sample type: the steps in CONTRIBUTING.md are all that it takes."""

import shutil
from pathlib import Path

import children

import energon_stream
from energon_stream.config.sample_types import DATASET_CLASSES, SAMPLE_TYPES
from energon_stream.samples import VQAOCRSample, types

PACKAGE = Path(energon_stream.__file__).parent
CLASS = '''

@edataclass
class PoemSample(Sample):
    """A poem."""

    poem: str
'''
PROGRAM = """
import sys
for name in [name for name in sys.modules if name.partition(".")[0] == "energon_stream"]:
    del sys.modules[name]
import energon_stream.integrations.megatron as megatron
megatron.install_alias()
from energon_stream.cli.dataset_yaml_wizard import find_sample_type
from energon_stream.config.dataset_yaml import read_dataset_config
from energon_stream.samples import PoemSample
from megatron import energon

own, fields = {"__module__": "megatron.energon"}, {"field_map": {"poem": "txt"}}
typed = {"sample_type": {**own, "__class__": "PoemSample"}, **fields}
for document in (typed, {**own, "__class__": "PoemWebdataset", **fields}):
    factory, _ = read_dataset_config(document, where="", decoder=None, read_text=str)
    assert factory.sample_type is PoemSample
assert energon.PoemSample is energon.flavors.PoemSample is PoemSample
assert energon.PoemWebdataset.__sample_type__ is PoemSample
assert find_sample_type("PoemWebdataset") == "PoemSample"
print(*sys.modules["energon_stream"].__path__)
"""


def test_a_new_type_takes_a_class_and_its_name_in_two_lists(tmp_path):
    copy = tmp_path / "energon_stream"
    shutil.copytree(PACKAGE, copy)
    for path, before, after in [
        ("samples/types.py", "__all__ = [", '__all__ = [\n    "PoemSample",'),
        (
            "__init__.pyi",
            "from .samples.types import (",
            "from .samples.types import (\n    PoemSample as PoemSample,",
        ),
    ]:
        text = (copy / path).read_text()
        assert text.count(before) == 1
        (copy / path).write_text(text.replace(before, after))
    with (copy / "samples/types.py").open("a") as file:
        file.write(CLASS)
    done = children.run("-c", PROGRAM, cwd=tmp_path, check=True)
    assert done.stdout == f"{copy}\n"


def test_tables_follow_from_the_types():
    assert SAMPLE_TYPES["VQAOCRSample"] is DATASET_CLASSES["VQAOCRWebdataset"] is VQAOCRSample
    assert SAMPLE_TYPES.keys() == {"Sample", *types.__all__}
