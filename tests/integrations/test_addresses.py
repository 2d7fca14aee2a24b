"""All public modules and names of Megatron-Energon 7.4.1, and the parameters of what they name.

``energon_7_4_1.jsonl`` has them: for each module its own public names, with the parameters of functions and
classes (``=`` marks those with a default), and the names that it imports from its other modules.
"""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from energon_stream.compat.address_names import NAMES
from energon_stream.compat.addresses import home, missing_reason
from energon_stream.compat.missing import MISSING_MODULES, MISSING_NAMES
from energon_stream.errors import MissingNameError

FACTS = [
    json.loads(line) for line in Path(__file__).with_name("energon_7_4_1.jsonl").read_text().splitlines()
]
OFFERED = [fact for fact in FACTS if missing_reason(fact["address"]) is None]
PYTHON = Path(__file__).resolve().parents[2] / ".venv-energon" / "bin" / "python"

pytestmark = pytest.mark.usefixtures("alias")


def full(address):
    return f"megatron.energon.{address}".rstrip(".")


@pytest.mark.energon("all public modules and names")
@pytest.mark.parametrize("fact", OFFERED, ids=lambda fact: fact["address"] or "root")
def test_every_name_is_there_or_says_why_not(fact):
    address = fact["address"]
    module = importlib.import_module(full(address))
    for name in fact["names"]:
        reason = missing_reason(address, name)
        if home(address, name) is not None or name == "logger":
            assert getattr(module, name) is not None or name == "NVDATASET_CACHE_DIR"
            assert name in module.__all__
            assert name in dir(module)
        else:
            assert name not in module.__all__
            with pytest.raises(ImportError, match="is not offered here") as raised:
                getattr(module, name)
            assert isinstance(raised.value, MissingNameError)
            assert raised.value.hint == reason
    for name in fact["imported"]:
        if home("", name) is not None:
            assert getattr(module, name) is not None


def test_missing_modules_say_why():
    for address, reason in MISSING_MODULES.items():
        with pytest.raises(ImportError, match="not offered") as raised:
            importlib.import_module(full(address))
        assert raised.value.hint == reason


def test_the_table_has_the_names_of_the_list_and_no_reason_is_stale():
    assert {fact["address"] for fact in FACTS} == set(NAMES)
    for fact in FACTS:
        assert set(fact["names"]) == set(NAMES[fact["address"]].split()), fact["address"]
    for address, reasons in MISSING_NAMES.items():
        for names in reasons:
            for name in names.split():
                assert name in NAMES[address].split()
                assert home(address, name) is None, f"{address}.{name} is there"


def test_submodules_are_attributes_without_an_import():
    program = (
        "import megatron.energon as e; print(e.flavors.webdataset.itar.ITAR_SUFFIX, e.edataclass.__name__)"
    )
    setup = "from energon_stream.integrations.megatron import install_alias; install_alias();"
    done = subprocess.run([sys.executable, "-c", setup + program], capture_output=True, text=True, check=True)
    assert done.stdout == ".tar.idx edataclass\n"


def test_importing_the_root_imports_nothing_heavy():
    program = (
        "import sys; from energon_stream.integrations.megatron import install_alias; install_alias();"
        "import megatron.energon, megatron.energon.task_encoder.base; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "yaml", "apsw"} & set(done.stdout.split())


LISTING = """
import importlib, json, sys
found = {}
for address in json.load(sys.stdin):
    try:
        module = importlib.import_module(f"megatron.energon.{address}".rstrip("."))
    except ImportError:  # of an optional package
        continue
    found[address] = [name for name in dir(module) if not name.startswith("_")]
print(json.dumps(found))
"""


@pytest.mark.skipif(not PYTHON.exists(), reason="no Python with megatron-energon (make interop)")
def test_the_list_is_that_of_megatron_energon():
    asked = json.dumps([fact["address"] for fact in FACTS])
    done = subprocess.run(
        [str(PYTHON), "-W", "ignore", "-c", LISTING], input=asked, capture_output=True, text=True, check=True
    )
    there = json.loads(done.stdout)
    assert len(there) > 100
    for fact in FACTS:
        if fact["address"] in there:
            assert {*fact["names"], *fact["imported"]} <= set(there[fact["address"]]), fact["address"]
