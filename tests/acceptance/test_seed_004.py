"""Seed 004, the tutorial: items 33 to 45 of the acceptance list."""

from itertools import islice
from pathlib import Path

import children
import pytest
import torch
import tutorial
from acceptance_helpers import SHUFFLED, assert_share
from click.testing import CliRunner

from energon_stream import (
    CaptioningSample,
    DefaultTaskEncoder,
    IgnoreSample,
    SkipSample,
    WorkerConfig,
    get_loader,
    get_train_dataset,
)
from energon_stream.cli.main import main
from energon_stream.errors import UntrustedCodeError
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import CRUDE_YAML, captioning_dataset
from energon_stream.testing.operator_suite import assert_equal_values

PAGES = Path(tutorial.__file__).parent

SAMPLE_LOADER = """
def sample_loader(raw):
    return {"__key__": raw["__key__"], "image": raw["png"], "caption": raw["txt"].upper()}

def part_filter(part):
    return part in ("png", "txt")
"""


@pytest.fixture(scope="module")
def tars(tmp_path_factory):
    """Two tars made as the page makes them, prepared with its four answers."""
    folder = tmp_path_factory.mktemp("tutorial")
    tutorial.draw(folder)
    tutorial.build_tars(folder, folder / "tars", maxcount=20)
    tutorial.prepare(folder / "tars")
    return folder / "tars"


@pytest.fixture
def crude(tmp_path):
    """Tars without a type."""
    captioning_dataset(tmp_path, shards=2, samples_per_shard=6, image_format="PNG")
    prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0), dataset_yaml=CRUDE_YAML)
    return tmp_path


def load(path, encoder=None, batch_size=2, **options):
    config = options.pop("worker_config", WorkerConfig(rank=0, world_size=1, num_workers=0))
    return get_train_dataset(
        str(path), batch_size=batch_size, worker_config=config, task_encoder=encoder, **SHUFFLED, **options
    )


def test_item_33_prepare_with_exactly_four_answers(tars):
    assert (tars / ".nv-meta" / "dataset.yaml").exists()
    captions = [sample.caption for sample in load(tars, batch_size=None, repeat=False)]
    assert len(captions) == 40
    assert "picture 0" in captions


def test_item_34_the_prompts_name_field_and_type_and_ask_again(tmp_path):
    captioning_dataset(tmp_path, shards=1, samples_per_shard=2, image_format="PNG")
    result = CliRunner().invoke(main, ["prepare", str(tmp_path)], input="10,0,0\n0\ngif\npng\ntxt\n")
    assert result.exit_code == 0, result.output
    assert "0. CaptioningSample" in result.output
    prompt = "webdataset field name for 'image' (<class 'torch.Tensor'>)"
    assert result.output.count(prompt) == 2  # there is no gif
    assert "webdataset field name for 'caption' (<class 'str'>)" in result.output


def test_item_35_the_files_and_the_split(tars):
    names = {path.name for path in (tars / ".nv-meta").iterdir()}
    assert {"index.sqlite", "dataset.yaml", "split.yaml"} < names
    assert names & {".info.json", ".info.yaml"}
    assert len(list(tars.glob("*.tar.idx"))) == 2
    split = (tars / ".nv-meta" / "split.yaml").read_text()
    assert "val: []" in split
    assert "test: []" in split


def test_item_35_the_older_info_file_is_read(tars, tmp_path):
    meta = tmp_path / ".nv-meta"
    meta.mkdir()
    for path in [*tars.glob("*.tar*"), *(tars / ".nv-meta").glob("*.yaml")]:
        (tmp_path / path.relative_to(tars)).write_bytes(path.read_bytes())
    (meta / ".info.yaml").write_text("shard_counts:\n  data-000000.tar: 20\n  data-000001.tar: 20\n")
    assert len(list(load(tmp_path, batch_size=None, repeat=False))) == 40


def test_item_36_prepare_without_questions(tmp_path):
    captioning_dataset(tmp_path, shards=10, samples_per_shard=2, image_format="PNG")
    options = ["--non-interactive", "--split-ratio", "8,1,1", "--sample-type", "CaptioningSample"]
    options += ["--field-map", '{"image":"png","caption":"txt"}']
    result = CliRunner().invoke(main, ["prepare", str(tmp_path), *options])
    assert result.exit_code == 0, result.output
    assert len(list(load(tmp_path, batch_size=None, repeat=False))) == 16


def test_item_37_load_and_print_batches(tars):
    with get_loader(tutorial.dataset(str(tars))) as loader:
        for batch in islice(loader, 3):
            assert len(batch.caption) == 2
            assert str(batch).startswith("CaptioningSample(__key__=['data-00000")


def test_item_38_own_parsing_with_a_sample_loader(crude):
    meta = crude / ".nv-meta"
    (meta / "sample_loader.py").write_text(SAMPLE_LOADER)
    (meta / "dataset.yaml").write_text(
        "sample_type:\n  __module__: megatron.energon\n  __class__: CaptioningSample\n"
        "sample_loader: sample_loader.py:sample_loader\npart_filter: sample_loader.py:part_filter\n"
    )
    sample = next(iter(load(crude, batch_size=None, trust_dataset_code=True)))
    assert type(sample) is CaptioningSample
    assert sample.caption.startswith("CAPTION ")
    with pytest.raises(UntrustedCodeError, match="trust_dataset_code"):
        list(load(crude))


@pytest.mark.parametrize("encoder", [tutorial.MyParsingEncoder, tutorial.MyCookingEncoder])
def test_item_39_own_parsing_in_the_encoder(crude, encoder):
    batch = next(iter(load(crude, encoder())))
    assert batch.image.shape == (2, 3, 12, 16)
    assert batch.caption[0].startswith("caption ")
    assert batch.__key__[0].startswith("data-00000")


@pytest.mark.parametrize("signal", [IgnoreSample, SkipSample])
def test_item_40_hooks_may_skip_samples(tars, signal):
    class Skipping(DefaultTaskEncoder):
        def encode_sample(self, sample):
            if not sample.caption:
                raise signal
            return sample

    captions = [c for batch in load(tars, Skipping(), repeat=False) for c in batch.caption]
    assert len(captions) == 39
    assert "" not in captions


def test_item_41_the_tutorials_whole_encoder(tars):
    raw_batches = []

    class Spy(tutorial.MyTaskEncoder):
        def encode_batch(self, batch):
            raw_batches.append(batch)
            return super().encode_batch(batch)

    batch = next(iter(load(tars, Spy(), image_decode="torchrgb")))
    assert type(batch) is tutorial.CaptioningBatch
    assert batch.images.shape == (2, 3, 16, 16)
    raw = raw_batches[0]
    assert type(raw) is tutorial.CaptioningRawBatch
    assert (raw.__key__, raw.__subflavor__, raw.__subflavors__) == (batch.__keys__, None, [{}, {}])
    assert len(raw.__restore_key__) == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_item_42_packing_restored_in_the_middle_of_a_buffer(tars, tmp_path, workers):
    config = WorkerConfig.default_worker_config(workers)
    with tutorial.save(str(tars), tmp_path, config) as loader:
        with tutorial.restore(str(tars), tmp_path, config) as restored:
            pending = [stream["node"] for stream in restored.save_state_rank()["streams"].values()]
            assert '"groups": [[' in str(pending).replace("'", '"')  # selected, and not packed yet
            for expected, batch in islice(zip(loader, restored, strict=False), 30):
                assert_equal_values(batch, expected)
                assert all(len(caption) <= tutorial.PACK + len(" | ") * 3 for caption in batch.captions)
        packed = [c for batch in islice(loader, 10) for c in batch.captions]
    assert any(" | " in caption for caption in packed)


def test_item_43_ratios_and_origins_by_yaml(tars, tmp_path):
    (tmp_path / "first").symlink_to(tars)
    (tmp_path / "second").symlink_to(tars)
    path = tmp_path / "mixture.yaml"
    path.write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    blend:\n"
        "      - {weight: 3, path: ./first, subflavors: {origin: first}}\n"
        "      - {weight: 1, path: ./second, subflavors: {origin: second}}\n"
    )
    origins = [sample.__subflavors__["origin"] for sample in islice(load(path, batch_size=None), 400)]
    assert_share(origins.count("first"), 0.75, 400)
    assert set(origins) == {"first", "second"}


def test_item_44_states_of_ranks_in_files_and_new_processes(tars, tmp_path):
    continuations = []
    for rank in range(2):
        config = WorkerConfig(rank=rank, world_size=2, num_workers=0)
        loader = tutorial.save(str(tars), tmp_path, config)
        continuations.append([batch.captions for batch in islice(loader, 5)])
    assert torch.load(tmp_path / "dataloader_state_rank1.pth") == torch.load(
        tmp_path / "dataloader_state_rank1.pth", weights_only=True
    )
    script = (
        "import sys; from itertools import islice; import tutorial; from energon_stream import WorkerConfig\n"
        "for rank in range(2):\n"
        "    loader = tutorial.restore(sys.argv[1], sys.argv[2], WorkerConfig(rank, 2, 0))\n"
        "    print([batch.captions for batch in islice(loader, 5)])\n"
    )
    answer = children.run("-c", script, tars, tmp_path, cwd=PAGES, check=True).stdout
    assert answer.splitlines() == [str(captions) for captions in continuations]


def test_item_45_the_rank_is_readable():
    assert WorkerConfig.default_worker_config().rank == 0
    assert WorkerConfig(rank=3, world_size=4, num_workers=2).rank == 3


def test_the_example_runs(tmp_path, capsys):
    tutorial.main(tmp_path)
    assert "restored as without restoring: True" in capsys.readouterr().out
