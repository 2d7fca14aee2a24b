"""All public modules and names of Megatron-Energon 7.4.1, and the parameters of what they name.

``energon_7_4_1.jsonl`` has them: for each module its own public names, with the parameters of functions and
classes (``=`` marks those with a default), and the names that it imports from its other modules.
"""

import importlib
import inspect
import json
import pickle
import subprocess
import sys
from enum import EnumType
from pathlib import Path

import pytest

from energon_stream import get_train_dataset
from energon_stream.compat.addresses import (
    MISSING_MODULES,
    MISSING_NAMES,
    NAMES,
    home,
    missing_reason,
    offered,
)
from energon_stream.errors import MissingNameError, MissingPackageError, UnknownArgumentError

FACTS = [
    json.loads(line) for line in Path(__file__).with_name("energon_7_4_1.jsonl").read_text().splitlines()
]
try:
    import torchvision
except (ImportError, RuntimeError):
    torchvision = None
NEED_TORCHVISION = ("transforms", "transforms.custom", "transforms.mappers", "transforms.merge")
OFFERED = [
    fact
    for fact in FACTS
    if missing_reason(fact["address"]) is None
    and (torchvision is not None or fact["address"] not in NEED_TORCHVISION)
]
PYTHON = Path(__file__).resolve().parents[2] / ".venv-energon" / "bin" / "python"

pytestmark = pytest.mark.usefixtures("lasting_alias")


def full(address):
    return f"megatron.energon.{address}".rstrip(".")


@pytest.mark.energon("all public modules and names")
@pytest.mark.parametrize("fact", OFFERED, ids=lambda fact: fact["address"] or "root")
def test_every_name_is_there_or_says_why_not(fact):
    address = fact["address"]
    module = importlib.import_module(full(address))
    for name in fact["names"]:
        reason = missing_reason(address, name)
        if reason is None:
            assert getattr(module, name) is not None or name == "NVDATASET_CACHE_DIR"
            assert name in module.__all__
            assert name in dir(module)
        else:
            assert name not in module.__all__
            assert reason is not None or home(address, name) is None
            with pytest.raises(AttributeError, match="is not offered here"):
                getattr(module, name)
            assert not hasattr(module, name)
            with pytest.raises(MissingNameError, match="is not offered here") as raised:
                exec(f"from {full(address)} import {name}")
            assert raised.value.hint == reason
    for name in fact["imported"]:
        if home("", name) is not None:
            assert getattr(module, name) is not None


@pytest.mark.skipif(torchvision is not None, reason="torchvision is there")
@pytest.mark.parametrize("address", NEED_TORCHVISION)
def test_transforms_without_torchvision_name_the_extra(address):
    module = importlib.import_module(full(address))
    names = [name for fact in FACTS if fact["address"] == address for name in fact["names"]]
    assert set(names) <= set(module.__all__)
    for name in names:
        with pytest.raises(MissingPackageError, match=r"energon-stream\[transforms\]"):
            getattr(module, name)


_MADE_BY_POOLS = "cache pools make these objects"
_BY_POSITION = "handlers are called by position"
_RAISED = "the library raises it"
_BASE = "programs make objects of derived classes"
DIFFERENT = {
    "Lazy": _MADE_BY_POOLS,
    "CacheFileLazy": _MADE_BY_POOLS,
    "FileCacheLazy": _MADE_BY_POOLS,
    "DirectLazy": _MADE_BY_POOLS,
    "log_exception": _BY_POSITION,
    "reraise_exception": _BY_POSITION,
    "DuplicateSampleKeyError": _RAISED,
    "JsonValueError": _RAISED,
    "BaseCoreDatasetFactory": _BASE,
    "DatasetLoaderInterface": _BASE,
    "JsonlPreparator": "programs call its methods on the class",
    "WebdatasetPreparator": "programs call its methods on the class",
    "LoadedDatasetList": "blend_mode has no default",
    "WorkerConfig": "the private parameters are missing",
    "MapDataset": "the second parameter is fn; map_fn is accepted by name",
}
"""Names whose parameters differ, and why."""


def parameters_of(text):
    """Parse ``path * rank count= **kwargs`` to positional ones, keyword-only ones, and the starred."""
    positional, keyword, starred, only = [], [], set(), False
    for word in text.split():
        if word == "*" or word.startswith("*"):
            only = only or not word.startswith("**")
            starred |= {word} - {"*"}
        else:
            (keyword if only else positional).append(word)
    return positional, keyword, starred


def complaint(found, text):
    """Return what is wrong with a signature for a call that suits 7.4.1's; None if nothing is."""
    if isinstance(found, EnumType):  # called with a value; each version of Python has another signature
        return None
    try:
        own = list(inspect.signature(found).parameters.values())
    except ValueError:  # a built-in base without a signature takes anything
        return None
    kinds = {kind: [p for p in own if p.kind is kind] for kind in type(inspect.Parameter.KEYWORD_ONLY)}
    positional, keyword, starred = parameters_of(text)
    places = [p for p in own if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = {p.name for p in own if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    takes_any = bool(kinds[inspect.Parameter.VAR_KEYWORD])
    for number, word in enumerate(positional):
        name = word.removesuffix("=")
        if number >= len(places):
            if not kinds[inspect.Parameter.VAR_POSITIONAL]:
                return f"{name} cannot be given by position"
        elif places[number].name != name:
            return f"parameter {number} is {places[number].name}, not {name}"
    for word in keyword:
        if word.removesuffix("=") not in names and not takes_any:
            return f"there is no {word}"
    asked = {word.removesuffix("=") for word in (*positional, *keyword) if not word.endswith("=")}
    for p in own:
        needed = p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        if needed and p.name not in asked:
            return f"{p.name} must be given"
    if any(not word.startswith("**") for word in starred) and not kinds[inspect.Parameter.VAR_POSITIONAL]:
        return "takes no further positional arguments"
    return None


def test_parameters_agree():
    wrong = {}
    for fact in OFFERED:
        module = importlib.import_module(full(fact["address"]))
        for name, text in fact["names"].items():
            if text is not None and home(fact["address"], name) is not None:
                said = complaint(getattr(module, name), text)
                if said is not None:
                    wrong[name] = said
    assert wrong.keys() == DIFFERENT.keys(), wrong


@pytest.mark.parametrize("address", ["", "task_encoder", "task_encoder.loader"])
def test_the_order_must_be_given_under_the_alias(address):
    function = importlib.import_module(f"megatron.energon.{address}".rstrip(".")).get_train_dataset
    parameters = inspect.signature(function).parameters
    demanded = {name for name, each in parameters.items() if each.default is each.empty} - {"options"}
    order = {"shuffle_buffer_size", "max_samples_per_sequence"}
    assert demanded == {"path", "batch_size", "worker_config", *order}
    assert inspect.signature(get_train_dataset).parameters.keys() == parameters.keys()
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'max_samples_per_seq"):
        function("nowhere", batch_size=4, shuffle_buffer_size=None, worker_config=None)
    with pytest.raises(UnknownArgumentError, match="'max_samples_per_sequence'"):
        function("nowhere", batch_size=4, shuffle_buffer_size=None, max_samples_per_sequenc=None)
    assert pickle.loads(pickle.dumps(function)) is function


def test_missing_modules_say_why():
    for address in MISSING_MODULES:
        with pytest.raises(ImportError, match="not offered") as raised:
            importlib.import_module(full(address))
        assert raised.value.hint == missing_reason(address)
        assert " " in raised.value.hint, "a key without a text"


def test_the_table_has_the_names_of_the_list_and_no_reason_is_stale():
    assert {fact["address"] for fact in FACTS} == set(NAMES)
    for fact in FACTS:
        assert set(fact["names"]) == set(NAMES[fact["address"]].split()), fact["address"]
    for address, reasons in MISSING_NAMES.items():
        for names in reasons.values():
            for name in names.split():
                assert name in NAMES[address].split()
                assert " " in missing_reason(address, name), "a key without a text"
                assert home(address, name) is None, f"{address}.{name} is there"


def test_few_names_are_missing():
    """In modules that are there. A name that another module exports is missing only with its object."""
    facts = [fact for fact in FACTS if missing_reason(fact["address"]) is None]
    missing = [
        (kind, fact["address"], name)
        for fact in facts
        for kind in ("names", "imported")
        for name in set(fact[kind]) - set(offered(fact["address"]))
        if kind == "names" or home(fact["address"], name) is None
    ]
    listed = sum(len(fact["names"]) + len(fact["imported"]) for fact in facts)
    own = [name for kind, _, name in missing if kind == "names"]
    assert listed >= 1200
    assert len(own) <= 55, sorted(missing)  # each with its reason: test_every_name_is_there_or_says_why_not
    assert len(missing) <= 81, sorted(missing)


def test_submodules_are_attributes_without_an_import(run):
    program = (
        "import megatron.energon as e; print(e.flavors.webdataset.itar.ITAR_SUFFIX, e.edataclass.__name__)"
    )
    setup = "from energon_stream.integrations.megatron import install_alias; install_alias();"
    assert run("-c", setup + program) == ".tar.idx edataclass\n"


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
            names = {*fact["names"], *fact["imported"]}
            if fact["address"] == "av.av_decoder":
                names -= {"MISSING_DEPENDENCY"}  # only there without PyAV
            assert names <= set(there[fact["address"]]), fact["address"]
