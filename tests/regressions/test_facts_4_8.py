"""Functional defects of Megatron-Energon 7.4.1 that are none here.

Tested with the part in question, not again here:

- Preparing joins of remote datasets, and JSONL: ``tests/read/test_join.py``,
``tests/index/test_jsonl_index.py``.
- Cache directories, the second ``get()`` of a lazy file: with the cache pools.
- Overriding hooks with lambdas and assigned methods: ``tests/task/test_encoder.py``.
- The checkpoint tool: ``tests/cli/test_checkpoint.py``.
- Media metadata by glob, and what a run that fails leaves: ``tests/prepare/test_media.py``.
- Workers started with ``spawn``, pinned memory, the watchdog: ``tests/loader/test_loader.py``.

Without a counterpart here:

- ``preview``: there is no such command yet.
"""

import io
import os
import subprocess
import sys
from itertools import islice

import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from repetitions import is_nightly

from energon_stream import (
    Batch,
    DefaultTaskEncoder,
    EpochizeDataset,
    GroupBatchDataset,
    LimitDataset,
    MapDataset,
    SkipSample,
    WorkerConfig,
    edataclass,
    get_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
)
from energon_stream.cli.main import main
from energon_stream.errors import ConfigError, FatalSampleError, MetadataError
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.samples import TextSample
from energon_stream.testing.datasets import (
    CAPTIONING_YAML,
    CRUDE_YAML,
    captioning_dataset,
    prepared_captioning_dataset,
    write_shards,
)
from energon_stream.testing.operator_suite import NumbersDataset, run_steps

IN_PROCESS = WorkerConfig(0, 1, 0)


def pixel():
    """A JPEG of one pixel."""
    buffer = io.BytesIO()
    Image.new("RGB", (1, 1)).save(buffer, "JPEG")
    return buffer.getvalue()


PIXEL = pixel()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return prepared_captioning_dataset(tmp_path_factory.mktemp("data"), shards=3, samples_per_shard=8)


def train(folder, encoder=None, workers=0, **options):
    return get_train_dataset(
        str(folder),
        batch_size=options.pop("batch_size", 2),
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        worker_config=WorkerConfig(0, 1, workers),
        task_encoder=encoder,
        split_part=options.pop("split_part", "train"),
        **options,
    )


@pytest.mark.parametrize("ratio", [(7, 2, 1), (6, 3, 1), (8, 1, 1)])
def test_a_split_ratio_loses_no_shards(tmp_path, ratio):
    write_shards(tmp_path, shards=10, samples_per_shard=1, parts=lambda number: {"txt": b""})
    prepare_dataset(str(tmp_path), split_ratio=ratio, dataset_yaml=CRUDE_YAML)
    for name, share in zip(("train", "val", "test"), ratio, strict=True):
        dataset = get_val_dataset(str(tmp_path), batch_size=None, split_part=name, worker_config=IN_PROCESS)
        assert len(list(dataset)) == share


@pytest.mark.parametrize("workers", [0, 4])
def test_fewer_samples_than_streams(tmp_path, workers):
    prepared_captioning_dataset(tmp_path, shards=1, samples_per_shard=3, split_ratio=(1, 0, 0))
    config = WorkerConfig(0, 1, workers)
    dataset = get_val_dataset(str(tmp_path), batch_size=1, split_part="train", worker_config=config)
    with get_loader(dataset) as loader:
        assert [len(list(loader)) for _ in range(2)] == [3, 3]
    if workers:  # an endless pass over nothing must not be built
        with pytest.raises(ConfigError, match="3 samples cannot be dealt to 4 streams"):
            train(tmp_path, workers=workers)


def test_joins_know_missing_partners_and_any_number_of_excludes(tmp_path):
    """Three excludes: the name of the index must not depend on the order of a set."""
    text = {"sample_type": {"__module__": "megatron.energon", "__class__": "TextSample"}}
    for name, count in (("first", 8), ("second", 6)):
        parts = {"txt": name.encode()}
        write_shards(tmp_path / name, shards=1, samples_per_shard=count, parts=lambda number, p=parts: p)
        yaml = {**text, "field_map": {"text": "txt"}}
        prepare_dataset(str(tmp_path / name), split_ratio=(1, 0, 0), dataset_yaml=yaml)
    split = tmp_path / "second" / ".nv-meta" / "split.yaml"
    excluded = "".join(f"\n- data-000000.tar/{number:08d}" for number in (1, 3, 5))
    split.write_text(split.read_text().replace("exclude: []", f"exclude:{excluded}"))
    path = tmp_path / "joined.yaml"
    path.write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    join:\n"
        "      - {path: ./first}\n      - {path: ./second, nonmatch: none}\n"
        "    joiner: {__module__: megatron.energon, __class__: TextSample}\n"
    )
    script = "import sys; from energon_stream import prepare_metadataset; prepare_metadataset(sys.argv[1])"
    command = [sys.executable, "-c", script, str(path)]
    for seed in ("1", "2") if is_nightly() else ("1",):  # and that of this process, which is any other
        subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": seed})
    samples = list(train(path, batch_size=None, repeat=False))
    assert len(list((tmp_path / "joined.yaml.cache").iterdir())) == 1
    found = {int(sample.__key__[-8:]): (sample.text, len(sample.__sources__)) for sample in samples}
    assert found == {number: ("second", 2) if number in (0, 2, 4) else ("first", 1) for number in range(8)}


def test_info_of_crude_datasets_metadatasets_and_jsonl(tmp_path):
    captioning_dataset(tmp_path / "crude", shards=2, samples_per_shard=3)
    prepare_dataset(str(tmp_path / "crude"), split_ratio=(1, 0, 0), dataset_yaml=CRUDE_YAML)
    (tmp_path / "meta.yaml").write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n"
        "  train: {blend: [{path: ./crude, weight: 3}, {path: ./other, weight: 1}]}\n"
    )
    (tmp_path / "lines.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    assert CliRunner().invoke(main, ["prepare", str(tmp_path / "lines.jsonl")]).exit_code == 0
    for path, *texts in (
        ("crude", "6 samples in 2 shards", "CrudeWebdataset"),
        ("meta.yaml", "train: 75.0% of samples from", "crude [train]", "train: 25.0%", "other [train]"),
        ("lines.jsonl", "2 samples"),
    ):
        result = CliRunner().invoke(main, ["info", str(tmp_path / path)])
        assert result.exit_code == 0, result.output
        assert [text for text in texts if text not in result.output] == []


def test_lint_decodes_and_knows_metadatasets(folder, tmp_path):
    def parts(number):
        return {"jpg": b"no image" if number % 2 else PIXEL, "txt": b""}

    write_shards(tmp_path / "bad", shards=2, samples_per_shard=3, parts=parts)
    prepare_dataset(str(tmp_path / "bad"), split_ratio=(1, 1, 0), dataset_yaml=CAPTIONING_YAML)
    (tmp_path / "good").symlink_to(folder)
    document = "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits: {train: {path: ./%s}}\n"
    for name in ("good", "bad"):
        (tmp_path / f"{name}.yaml").write_text(document % name)
    results = {}
    for path in ("good", "bad", "good.yaml", "bad.yaml"):
        result = CliRunner().invoke(main, ["lint", str(tmp_path / path)])
        results[path] = (result.exit_code, result.stderr.count(": sample "))
    assert results == {"good": (0, 0), "bad": (1, 3), "good.yaml": (0, 0), "bad.yaml": (1, 1)}
    assert CliRunner().invoke(main, ["lint", "--no-decode", str(tmp_path / "bad")]).exit_code == 0


@edataclass
class TextBatch(Batch):
    values: torch.Tensor
    text: list[str]


def test_batches_of_samples_are_stacked():
    samples = [
        {"__key__": str(n), "__restore_key__": (), "values": torch.ones(n), "text": "t"} for n in (1, 2)
    ]
    batch = TextBatch.from_samples(samples, __subflavors__=None, __sources__=None)
    assert batch.values.tolist() == [[1, 0], [1, 1]]
    assert (batch.__key__, batch.text) == (["1", "2"], ["t", "t"])


def test_a_tolerance_beside_seeds_is_kept(folder):
    class Failing(DefaultTaskEncoder):
        @stateless(restore_seeds=True, failure_tolerance=7)
        def encode_sample(self, sample):
            raise ValueError("damaged")

    with pytest.raises(FatalSampleError, match="7 samples in a row"):
        next(iter(train(folder, Failing())))


@pytest.mark.parametrize("error", [ValueError, SkipSample])
def test_a_group_criterion_that_raises_costs_that_sample_only(error):
    def criterion(number):
        if number in (0, 5):  # also at the first sample
            raise error
        return number % 2, None

    batches = list(GroupBatchDataset(NumbersDataset(10), 2, criterion, list))
    assert sorted(batches) == [[1, 3], [2, 4], [6, 8], [7, 9]]


@pytest.mark.parametrize("anew", [False, True])
def test_a_limit_reads_nothing_more_and_resets_only_on_request(anew):
    seen = []
    dataset = LimitDataset(
        MapDataset(NumbersDataset(9), lambda n: seen.append(n) or n), 3, reset_after_epoch=anew
    )
    steps = run_steps(dataset, 8)
    assert [step.value for step in steps] == [0, 1, 2, None, *([0, 1, 2] if anew else [3, 4, 5]), None]
    assert seen == [0, 1, 2, *([0, 1, 2] if anew else [3, 4, 5])]


def test_epochs_over_a_finite_dataset_are_never_short():
    loader = get_loader(EpochizeDataset(NumbersDataset(30), 20))
    epochs = [list(loader) for _ in range(5)]
    assert [len(epoch) for epoch in epochs] == [20] * 5
    assert [number for epoch in epochs for number in epoch] == [number % 30 for number in range(100)]


def test_options_of_one_call_do_not_reach_another(folder):
    pil = next(iter(train(folder, batch_size=None, image_decode="pil")))
    assert not isinstance(pil.image, torch.Tensor)
    assert isinstance(next(iter(train(folder, batch_size=None))).image, torch.Tensor)
    assert next(iter(train(folder, batch_size=None, image_decode="torchrgb8"))).image.dtype == torch.uint8


def test_a_required_field_without_a_part_is_found_when_opening(tmp_path):
    captioning_dataset(tmp_path, shards=1, samples_per_shard=2)
    yaml = {"sample_type": {"__module__": "megatron.energon", "__class__": "CaptioningSample"}}
    prepare_dataset(
        str(tmp_path), split_ratio=(1, 0, 0), dataset_yaml={**yaml, "field_map": {"image": "jpg"}}
    )
    with pytest.raises(MetadataError, match="field_map lacks caption"):
        train(tmp_path)


def test_configurations_compare_with_anything():
    assert WorkerConfig(0, 1, 0) == IN_PROCESS
    assert (IN_PROCESS == 3) is False
    assert WorkerConfig(0, 1, 1) != IN_PROCESS


def test_our_own_checks_are_not_counted_as_bad_samples(folder):
    calls = []

    class Wrong(DefaultTaskEncoder):
        def batch(self, samples):
            calls.append(samples)
            return self._batch(samples, result_type=TextSample)  # images and captions have no text

    with pytest.raises(ConfigError, match="TextSample needs the field 'text'"):
        next(iter(train(folder, Wrong())))
    assert len(calls) == 1


class Packing(DefaultTaskEncoder):
    def select_samples_to_pack(self, samples):
        return [[sample] for sample in samples]

    @stateless
    def pack_selected_samples(self, samples):
        return samples[0]


def test_nothing_is_printed(folder, capfd):
    loaders = [get_loader(train(folder, Packing(), workers=2, packing_buffer_size=4)) for _ in range(3)]
    for loader in loaders:
        assert len(list(islice(loader, 4))) == 4
    del loader, loaders
    assert capfd.readouterr() == ("", "")
