"""``megatron.energon`` as another name: the addresses, other Megatrons, and other processes."""

import importlib
import importlib.metadata
import importlib.util
import io
import pickle
import sys
from pathlib import Path

import pytest
import torch

import energon_stream
from energon_stream.compat.addresses import ENERGON_VERSION, NAMES, missing_reason
from energon_stream.compat.alias import ON_PATH
from energon_stream.errors import AliasError, StateError
from energon_stream.integrations.megatron import install_alias, uninstall_alias
from energon_stream.testing.media_files import VideoFile

CLIENTS = {
    "": "VQASample DefaultTaskEncoder WorkerConfig stateless get_train_dataset Sample SimilarityInterleavedSample "
    "SkipSample Batch get_savable_loader Cooker basic_sample_keys get_loader InterleavedSample batch_list "
    "batch_pad_stack CaptioningSample get_val_dataset get_val_datasets LimitDataset RepeatDataset OCRSample "
    "MultiChoiceVQASample ImageSample generic_batch BatchDataset MapDataset FilterDataset CrudeSample edataclass "
    "TaskEncoder cooker CachePool FileStore FileStoreCachePool DatasetLoaderInterface DatasetLoader MetadatasetV2 "
    "BlendDataset ConcatDataset MixBatchDataset EpochizeDataset homogeneous_concat_mix concat_pad "
    "CaptioningWebdataset",
    "task_encoder": "DefaultTaskEncoder stateless Batch",
    "task_encoder.base": "WorkerConfig stateless get_stateless Batch",
    "task_encoder.cooking": "Cooker basic_sample_keys",
    "flavors": "BaseWebdatasetFactory CrudeJsonlDatasetFactory",
    "flavors.base_dataset": "Sample BaseCoreDatasetFactory SavableDataset",
    "flavors.crude": "CrudeWebdataset",
    "flavors.webdataset": "DefaultDecoderWebdatasetFactory MAIN_FOLDER_NAME AVData VideoData",
    "flavors.webdataset.base_webdataset": "BaseWebdatasetFactory",
    "flavors.webdataset.sample_loader": "SliceState",
    "epathlib": "EPath",
    "epathlib.epath": "EPath",
    "worker": "WorkerConfig",
    "metadataset.loader_interface": "DatasetBlendMode",
    "edataclass": "edataclass",
    "errors": "SkipSample FatalSampleError",
    "av": "AVDecoder",
    "savable_loader": "SavableDataLoaderState SavableDatasetCheckpoint SavableDatasetState SavableCheckpoint",
    "state": "FlexState",
    "rng": "SystemRngState",
}
"""What clients import, by address."""


OWN_FORMS = (
    "get_train_dataset",
    "get_val_dataset",
    "get_val_datasets",
    "get_savable_loader",
    "traverse_metadataset",
    "load_dataset",
)
"""Functions of another form under the alias: the order must be given, paths are ``EPath``, and loaders deal
the files of other ranks.
"""


def address_of(name):
    return f"megatron.energon.{name}".rstrip(".")


@pytest.mark.parametrize("address", CLIENTS)
def test_addresses_have_the_names_that_clients_import(lasting_alias, address):
    module = importlib.import_module(address_of(address))
    for name in CLIENTS[address].split():
        found = getattr(module, name)
        if name in energon_stream.__all__ and name not in OWN_FORMS:
            assert found is getattr(energon_stream, name)


@pytest.mark.parametrize("address", [name for name in NAMES if missing_reason(name) is None])
def test_all_that_is_offered_is_there_and_one_object_wherever(lasting_alias, address):
    module = importlib.import_module(address_of(address))
    assert module.__name__ == address_of(address)
    for name in module.__all__:
        if name in energon_stream.__all__:
            is_same = getattr(module, name) is getattr(energon_stream, name)
            assert is_same == (name not in OWN_FORMS)


def test_every_way_to_import(alias):
    import megatron.energon
    import megatron.energon.flavors.crude as crude
    from megatron import energon
    from megatron.energon import edataclass, task_encoder
    from megatron.energon.edataclass import edataclass as of_the_module

    assert megatron.energon is energon
    assert energon.flavors.crude is crude
    assert task_encoder.base.stateless is energon_stream.stateless
    assert energon.edataclass is edataclass is of_the_module is energon_stream.edataclass
    assert importlib.util.find_spec("megatron.energon.worker") is not None
    namespace = {}
    exec("from megatron.energon import *", namespace)
    assert namespace["WorkerConfig"] is energon_stream.WorkerConfig


def test_what_is_not_offered_is_an_ordinary_import_error(alias):
    with pytest.raises(ModuleNotFoundError, match=r"megatron\.energon\.no_such_module"):
        importlib.import_module("megatron.energon.no_such_module")
    with pytest.raises(ImportError, match="no_such_name"):
        from megatron.energon import no_such_name  # noqa: F401


def test_the_version_that_clients_ask_for(alias):
    import megatron.energon

    assert importlib.metadata.version("megatron-energon") == ENERGON_VERSION == megatron.energon.__version__
    assert importlib.metadata.version("megatron_energon").startswith("7.4.")
    assert Path(megatron.energon.__file__).is_file()


def test_nothing_is_left_after_it():
    sys.modules.pop("megatron", None)  # an empty namespace package, from programs that ran before
    before = list(sys.path), list(sys.meta_path)
    install_alias()
    install_alias()
    assert len(sys.meta_path) == len(before[1]) + 1
    assert importlib.import_module("megatron.energon.worker")
    uninstall_alias()
    uninstall_alias()
    assert (sys.path, sys.meta_path) == before
    assert not [name for name in sys.modules if name.split(".")[0] == "megatron"]
    with pytest.raises(ImportError):
        importlib.import_module("megatron.energon")
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("megatron-energon")


@pytest.fixture(params=["namespace", "regular package"])
def megatron(request, tmp_path, monkeypatch):
    """A folder with a Megatron in it, on the path."""
    (tmp_path / "megatron" / "core").mkdir(parents=True)
    (tmp_path / "megatron" / "core" / "__init__.py").write_text("NAME = 'core'\n")
    if request.param == "regular package":
        (tmp_path / "megatron" / "__init__.py").write_text("NAME = 'megatron'\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "megatron"
    uninstall_alias()
    for name in [name for name in sys.modules if name.split(".")[0] == "megatron"]:
        del sys.modules[name]


@pytest.mark.parametrize("imported", ["before", "after"])
def test_beside_another_part_of_megatron(megatron, imported):
    if imported == "before":
        assert importlib.import_module("megatron.core").NAME == "core"
    install_alias()
    assert importlib.import_module("megatron.energon").WorkerConfig is energon_stream.WorkerConfig
    assert importlib.import_module("megatron.core").__file__ == str(megatron / "core" / "__init__.py")
    uninstall_alias()
    assert importlib.import_module("megatron.core").NAME == "core"
    assert not hasattr(sys.modules["megatron"], "energon")


def test_megatron_energon_itself_is_not_hidden_unless_asked(megatron):
    (megatron / "energon").mkdir()
    (megatron / "energon" / "__init__.py").write_text("NAME = 'energon'\n")
    with pytest.raises(AliasError, match=r"is installed, .*shadow=True") as raised:
        install_alias()
    assert raised.value.where == str(megatron / "energon" / "__init__.py")
    assert "megatron" not in sys.modules  # asking has imported nothing
    install_alias(shadow=True)
    assert importlib.import_module("megatron.energon").WorkerConfig is energon_stream.WorkerConfig
    uninstall_alias()
    assert importlib.import_module("megatron.energon").NAME == "energon"
    for shadow in (False, True):
        with pytest.raises(AliasError, match="was imported already"):
            install_alias(shadow=shadow)


ASK = "import megatron.energon as e, importlib.metadata as m; print(e.WorkerConfig, m.version('megatron-energon'))"
ANSWER = f"<class 'energon_stream.worker.WorkerConfig'> {ENERGON_VERSION}\n"


def test_by_the_path_alone(run, run_fresh):
    assert run_fresh("-c", ASK, PYTHONPATH=ON_PATH) == ANSWER
    program = (
        "from energon_stream.integrations.megatron import install_alias as i, uninstall_alias as u; i();"
    )
    assert run("-c", program + ASK, PYTHONPATH=ON_PATH) == ANSWER


def test_by_the_environment(run_fresh, tmp_path):
    run = run_fresh
    assert run("-c", "import energon_stream;" + ASK, ENERGON_STREAM_ALIAS="1") == ANSWER
    assert run("-c", ASK, ENERGON_STREAM_ALIAS="1", PYTHONPATH=ON_PATH) == ANSWER
    for value in ("", "0"):
        assert "No module named 'megatron'" in run(
            "-c", "import energon_stream;" + ASK, ENERGON_STREAM_ALIAS=value, code=1
        )
    assert "Use 1, 0, or shadow" in run("-c", "import energon_stream", ENERGON_STREAM_ALIAS="yes", code=1)
    (tmp_path / "megatron" / "energon").mkdir(parents=True)
    (tmp_path / "megatron" / "energon" / "__init__.py").touch()
    other = {"PYTHONPATH": str(tmp_path)}
    assert "AliasError" in run("-c", "import energon_stream", ENERGON_STREAM_ALIAS="1", **other, code=1)
    assert run("-c", "import energon_stream;" + ASK, ENERGON_STREAM_ALIAS="shadow", **other) == ANSWER


ENCODER = """
from megatron.energon import DefaultTaskEncoder
from megatron.energon.task_encoder.base import stateless

class Encoder(DefaultTaskEncoder):
    @stateless
    def encode_sample(self, sample):
        import megatron.energon, multiprocessing, importlib.metadata
        sample.caption = multiprocessing.current_process().name + importlib.metadata.version("megatron-energon")
        return sample
"""
PROGRAM = """
import sys
from pathlib import Path

if __name__ == "__main__":
    from energon_stream.integrations.megatron import install_alias
    install_alias()
    from megatron.energon import WorkerConfig, get_loader, get_train_dataset
    import of_a_client
    dataset = get_train_dataset(
        sys.argv[1], batch_size=1, shuffle_buffer_size=None, max_samples_per_sequence=None,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=1), task_encoder=of_a_client.Encoder(),
    )
    with get_loader(dataset, start_method=sys.argv[2]) as loader:
        print(next(iter(loader)).caption)
"""


@pytest.mark.parametrize("method", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_have_it_however_they_start(run, run_fresh, data, tmp_path, method):
    """Those of ``spawn`` begin with a program that does not install it, and a module that needs it."""
    (tmp_path / "of_a_client.py").write_text(ENCODER)
    (tmp_path / "program.py").write_text(PROGRAM)
    printed = (run_fresh if method == "spawn" else run)(tmp_path / "program.py", data / "coco", method)
    assert "Process-1" in printed
    assert ENERGON_VERSION in printed


class Restricted(pickle.Unpickler):
    """Takes the classes that clients allow for states of Megatron-Energon, by their addresses."""

    def find_class(self, module, name):
        assert module.startswith("megatron.energon."), module
        return super().find_class(module, name)


def foreign_state():
    from megatron.energon.flavors.webdataset.sample_loader import SliceState
    from megatron.energon.rng import SystemRngState
    from megatron.energon.savable_loader import (
        SavableDataLoaderState,
        SavableDatasetCheckpoint,
        SavableDatasetState,
    )
    from megatron.energon.state import FlexState

    inner = SavableDatasetState(
        rng=SystemRngState(torch=None, numpy=None, random=None),
        dataset_state=FlexState(slices=[SliceState(index=1, current=2)]),
        sample_index=3,
    )
    checkpoint = SavableDatasetCheckpoint(state=inner, offset=1)
    return SavableDataLoaderState(worker_states=[checkpoint], next_worker_id=0, micro_batch_size=1)


def test_states_of_megatron_energon_load_and_are_refused(alias, data):
    state = foreign_state()
    loaded = Restricted(io.BytesIO(pickle.dumps(state))).load()
    assert loaded == state
    config = energon_stream.WorkerConfig(rank=0, world_size=1, num_workers=0)
    dataset = energon_stream.get_val_dataset(str(data / "coco"), batch_size=1, worker_config=config)
    loader = energon_stream.get_savable_loader(dataset)
    with pytest.raises(StateError, match="SavableDataLoaderState that is not a rank's state"):
        loader.restore_state_rank(loaded)


def test_pickles_do_not_need_the_alias(alias):
    from megatron.energon import CaptioningSample, WorkerConfig
    from megatron.energon.epathlib import EPath

    sample = CaptioningSample(__key__="a", __restore_key__=(), image=torch.zeros(1), caption="b")
    made = pickle.dumps([sample, WorkerConfig(rank=0, world_size=1, num_workers=0), EPath("/a")])
    assert b"megatron" not in made
    uninstall_alias()
    assert pickle.loads(made)[0].caption == "b"


def test_video_is_decoded_under_the_alias(alias, tmp_path):
    from megatron.energon import SampleDecoder
    from megatron.energon.av import AVData, AVDecoder
    from megatron.energon.av.utils import get_clips_uniform

    VideoFile(frames=10).write(tmp_path / "a.mp4")
    decoder = SampleDecoder().decode("mp4", (tmp_path / "a.mp4").read_bytes())
    assert isinstance(decoder, AVDecoder)
    found = get_clips_uniform(decoder, 0.1, 2, request_video=True)
    assert isinstance(found, AVData)
    assert [len(clip) for clip in found.video_clips] == [3, 3]
