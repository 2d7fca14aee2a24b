"""What programs that reach into the loader rely on: numbers of workers, signatures, parts, loaded datasets.

See ``behaviours.py``.
"""

import collections
import dataclasses
import inspect
import itertools
import json
import multiprocessing
import os

import megatron.energon as energon
import yaml
from behaviours_common import (
    CONFIG,
    CRUDE,
    FOLDER,
    case,
    mixture,
    more,
    run_cases,
    texts,
    train,
    validate,
    write_tars,
    write_yaml,
)
from megatron.energon import (
    BaseWebdatasetFactory,
    BlendDataset,
    Cooker,
    DefaultTaskEncoder,
    MapDataset,
    Metadataset,
    MetadatasetV2,
    RepeatDataset,
    SkipSample,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    cooker,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    get_val_datasets,
    load_dataset,
    stateless,
)
from megatron.energon.cache.file_store import WebdatasetFileStore
from megatron.energon.epathlib import EPath, epath
from megatron.energon.errors import ErrorContext
from megatron.energon.flavors.webdataset.itar_reader import SqliteITarEntryReader
from megatron.energon.flavors.webdataset.sample_loader import RawSampleData, WebdatasetSampleLoaderDataset
from megatron.energon.flavors.webdataset.sharder import Sharder
from megatron.energon.flavors.webdataset.structs import DatasetSubset, ShardInfo
from megatron.energon.metadataset import metadataset as first_version
from megatron.energon.metadataset import metadataset_v2 as nodes
from megatron.energon.metadataset.loader_interface import DatasetBlendMode


def of_workers(ranks, workers, number):
    """Return the keys that each worker of a job read, by its number."""
    found = {}
    for rank in range(ranks):
        config = WorkerConfig(rank=rank, world_size=ranks, num_workers=workers)

        class Numbered(DefaultTaskEncoder):
            def encode_sample(self, sample):
                return dataclasses.replace(
                    sample, text=str(WorkerConfig.active_worker_config.global_worker_id())
                )

        for sample in itertools.islice(
            get_savable_loader(train(long, Numbered(), worker_config=config)), number
        ):
            found.setdefault(sample.text, []).append(sample.__key__)
    return found


@case("WorkerConfig.global_worker_id", "lanes: N ranks of W workers read as 1 of N * W")
def lanes_are_not_mixed():
    two, one = of_workers(2, 2, 4), of_workers(1, 4, 8)
    second = WorkerConfig(rank=1, world_size=2, num_workers=2)
    numbers = [second.global_worker_id(worker) for worker in range(2)]
    return sorted(two), numbers, [second.worker_seed(worker) for worker in range(2)], two == one


@case("WorkerConfig.num_workers", "WorkerConfig.active_worker_config")
def a_configuration_is_changed_before_use():
    config = WorkerConfig.default_worker_config(2)
    config.num_workers = 0
    config.worker_activate(3)
    WorkerConfig.active_worker_config = None  # clears what was left
    config.worker_activate(4)
    seen = config.active_worker_sample_index
    config.worker_deactivate()
    return seen, len(list(itertools.islice(get_loader(train(texts, worker_config=config)), 5)))


@case("get_train_dataset(worker_config)", "get_val_dataset(worker_config)", "get_val_datasets(worker_config)")
def signatures_demand_a_configuration():
    found = []
    for function in (get_train_dataset, get_val_dataset, get_val_datasets):
        parameter = inspect.signature(function).parameters["worker_config"]
        found.append((parameter.kind.name, parameter.default is parameter.empty))
    try:
        get_val_dataset(texts, batch_size=1)
    except TypeError:
        found.append("TypeError")
    return found


@stateless
@cooker
def names_of_parts(sample):
    return TextSample(
        **basic_sample_keys(sample), text=str(sorted(name for name in sample if name[0] != "_"))
    )


class Parts(DefaultTaskEncoder):
    cookers = [Cooker(names_of_parts)]


@case("get_train_dataset(part_filter)", "get_val_datasets(part_filter)")
def some_parts_are_read():
    found = []
    for chosen in (["json"], ["json", "txt"], lambda part: part == "txt", ["nothing"], []):
        sample = next(iter(get_loader(train(parted, Parts(), part_filter=chosen))))
        found.append(sample.text)
    options = {"split_part": "train", "worker_config": CONFIG, "batch_size": None, "task_encoder": Parts()}
    ((dataset, _),) = get_val_datasets(parted, part_filter=["json"], **options)
    found.append(next(iter(get_loader(dataset))).text)
    return [*found, next(iter(get_loader(validate(parted, Parts(), part_filter=["txt"])))).text]


@case("WebdatasetFileStore.list_sample_parts", "SqliteITarEntryReader(part_filter)")
def pictures_are_planned_before_they_are_read():
    parts = [tuple(part) for part in WebdatasetFileStore(EPath(parted)).list_sample_parts("0003")]
    entry = SqliteITarEntryReader(EPath(parted), part_filter=lambda part: part == "json")["0003"]
    return parts, entry["json"].decode(), "txt" in entry


class Copied(DefaultTaskEncoder):
    """Has a copy of what ``build_train_datasets`` does."""

    def build_train_datasets(
        self, *, datasets, worker_config, batch_size, blend_mode=None, repeat=True, **options
    ):
        pairs, offset = [], 0
        for each in datasets:
            self.seen.append(
                (len(each.dataset), each.weight, each.repetitions, type(each.repetitions).__name__)
            )
            inner = self._load_dataset(each, offset, worker_config)
            offset += len(each.dataset)
            weight, repeats = each.weight, None if repeat else 1
            if blend_mode == DatasetBlendMode.SAMPLE_REPETITIONS:
                repeats = each.repetitions
                weight = len(each.dataset) * repeats
            pairs.append((RepeatDataset(inner, repeats=repeats, worker_config=worker_config), weight))
        blended = BlendDataset(*pairs, worker_config=worker_config)
        encoded = self.build_encode_sample(blended, worker_config=worker_config)
        return self.build_batch(encoded, batch_size=batch_size, worker_config=worker_config)


class AsBefore(DefaultTaskEncoder):
    """Overrides a hook, so that it gets each dataset on its own."""

    def build_cook_crude_sample(self, dataset, **options):
        return super().build_cook_crude_sample(dataset, **options)


@case("LoadedDataset", "TaskEncoder._load_dataset", "TaskEncoder.build_train_datasets")
def datasets_with_repetitions_come_whole():
    found = []
    for path in (doubled, halved):
        for kind in (Copied, AsBefore, DefaultTaskEncoder):
            encoder = kind()
            encoder.seen = []
            samples = list(get_loader(train(path, encoder, repeat=False)))
            kinds = collections.Counter(sample.text.split()[0] for sample in samples)
            found.append((encoder.seen, sorted(kinds.items())))
    return found


@case("LoadedDataset(weight)")
def datasets_with_weights_have_their_share():
    encoder = Copied()
    encoder.seen = []
    train(mixture, encoder)
    return encoder.seen


@case("GroupBatchDataset(fixed_batch_size)", "TaskEncoder.batch_group_criterion")
def the_size_of_a_group_wins():
    class Grouped(DefaultTaskEncoder):
        def batch_group_criterion(self, sample):
            odd = int(sample.__key__) % 2
            return odd, 3 if odd else None

    return [batch.text for batch in get_loader(validate(texts, Grouped(), batch_size=2))]


@case("module attributes: hasattr of a missing name")
def a_name_that_is_nowhere():
    return hasattr(energon, "no_such_name"), hasattr(energon.savable_loader, "no_such_name")


@case("megatron.energon.cli.main: commands")
def commands_are_objects():
    from click.testing import CliRunner
    from megatron.energon.cli import main

    named = ("prepare", "prepare_media", "info", "lint", "preview", "mount", "checkpoint", "analyze_debug")
    found = [getattr(main, f"{name}_command").name for name in named]
    ended = CliRunner().invoke(main.info_command, [str(texts)])
    return found, ended.exit_code, "12" in ended.output


def _said(whole, part):
    options = {"split_part": part, "worker_config": CONFIG}
    loaded = whole.get_datasets(training=True, **options)
    is_blend = len(loaded.datasets) > 1
    shares = [
        (each.weight if is_blend else None, each.repetitions, each.dataset.subflavors)
        for each in loaded.datasets
    ]
    passes = whole.get_datasets(training=False, **options).datasets
    read = [[sample.text for sample in get_loader(_built(each.dataset))] for each in passes]
    return loaded.blend_mode.name, shares, read


@case(
    "Metadataset(splits)",
    "MetadatasetV2(splits)",
    "MetadatasetBlend, BlendDatasetReference, Subset and other nodes of metadatasets",
)
def metadatasets_in_python():
    named = {"split_part": "train", "path": "./texts"}
    other = {"split_part": "train", "path": EPath(more)}
    half = nodes.Subset(range=("0%", "50%"))
    splits = {
        "single": nodes.DatasetReference(**named, subflavors={"x": 1}),
        "part": nodes.DatasetReference(**named, subset=half),
        "blend": nodes.MetadatasetBlend(
            blend=[
                nodes.BlendDatasetReference(**named, weight=1, subflavors={"x": 1}),
                nodes.BlendDatasetReference(weight=3, subset=half, **other),
            ]
        ),
        "repeated": nodes.MetadatasetBlendEpochized(
            blend_epochized=[
                nodes.BlendEpochizedDatasetReference(repetitions=2, **named),
                nodes.BlendEpochizedDatasetReference(**other),
            ]
        ),
    }
    whole = MetadatasetV2(path=EPath(FOLDER) / "not_there.yaml", splits=splits)
    whole.post_initialize()
    found = [_said(whole, name) for name in splits]
    references = [
        first_version.DatasetReference(weight=2, **named),
        first_version.DatasetReference(subflavors={"y": 2}, **other),
    ]
    first = Metadataset(
        path=EPath(FOLDER) / "not_there.yaml",
        splits={"a": first_version.MetadatasetBlender(datasets=references)},
    )
    first.post_initialize()
    found.append(_said(first, "a"))
    found.append(
        (references[0].weight, str(references[0].path).rpartition("/")[2], splits["blend"].blend[1].weight)
    )
    kinds = [nodes.BlendWeightMixin, nodes.DatasetReference, nodes.SubsetRatioMixin]
    return [*found, [isinstance(splits["blend"].blend[0], kind) for kind in kinds]]


def _built(dataset):
    return dataset.build() if hasattr(dataset, "build") else dataset


SHARDS = [ShardInfo(name=str(count), path=EPath(f"/{count}"), count=count) for count in (5, 0, 9, 12)]


@case(
    "Sharder",
    "BaseWebdatasetFactory.shard_workers",
    "BaseWebdatasetFactory.slice_workers",
    "BaseWebdatasetFactory.split_samples_to_workers",
    "CrudeJsonlDatasetFactory.shard_workers",
    "CrudeJsonlDatasetFactory.slice_workers",
    "CrudeJsonlDatasetFactory.split_samples_to_workers",
    "JoinedWebdatasetFactory.shard_workers",
    "JoinedWebdatasetFactory.slice_workers",
    "JoinedWebdatasetFactory.split_samples_to_workers",
)
def shares_of_workers():
    found = []
    for rank, ranks, workers in ((0, 1, 0), (0, 1, 3), (1, 2, 2), (2, 3, 2)):
        config = WorkerConfig(rank=rank, world_size=ranks, num_workers=workers)
        found += [
            Sharder.split_samples_to_workers(5, 5 + samples, config, rotation_offset=3)
            for samples in (0, 1, 7, 100)
        ]
        subset = DatasetSubset(range=(0.5, 1.0))
        for longest in (None, 1, 3, 10):
            sizes = {"max_samples_per_sequence": longest}
            found.append(BaseWebdatasetFactory.shard_workers(SHARDS, config, **sizes))
            found.append(Sharder.shard_workers(SHARDS, config, subset=subset, rotation_offset=1, **sizes))
            found.append(Sharder.slice_workers(23, config, subset=subset, rotation_offset=2, **sizes))
    return found


class Reader:
    """A reader of a joined dataset: a sequence of samples, or None."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        sample = {
            "__key__": str(index),
            "__restore_key__": ("Webdataset", index),
            "__sources__": (),
            "x": index,
        }
        return None if index == 5 else sample


def _slices(workers, epochs, parallel):
    config = WorkerConfig(rank=0, world_size=1, num_workers=workers)
    offsets = Sharder.slice_workers(12, config, max_samples_per_sequence=3)
    options = {"shuffle_over_epochs": epochs, "parallel_slice_iters": parallel}
    dataset = WebdatasetSampleLoaderDataset([Reader(), Reader()], offsets, worker_config=config, **options)
    return get_savable_loader(MapDataset(dataset, lambda sample: sample, worker_config=config)), len(dataset)


@case("WebdatasetSampleLoaderDataset", "RawSampleData")
def slices_of_readers():
    found = [repr(RawSampleData(__restore_key__=("a", 1), data=(None,)))]
    for workers, *options in ((0, None, 1), (0, 1, 4), (0, 2, 2), (0, -1, 3), (2, 1, 1), (2, -1, 3)):
        loader, length = _slices(workers, *options)
        first = itertools.islice(loader, 7)
        read = [sample.data[1]["x"] for sample in first]
        state = loader.save_state_rank()
        again, _ = _slices(workers, *options)
        again.restore_state_rank(state)
        rest = [sample.data[1]["x"] for sample in itertools.islice(again, 12)]
        found.append((length, read, rest))
    return found


@case("WorkerConfig(global_error_handler): sources are a list", "Batch.__sources__")
def sources_are_lists():
    found = []

    class Failing(DefaultTaskEncoder):
        def encode_sample(self, sample):
            if sample.__key__ == "0003":
                raise ValueError("broken")
            return sample

    def handler(error, sample, sources):
        found.append((type(sources).__name__, len(sources)))

    config = WorkerConfig(rank=0, world_size=1, num_workers=0, global_error_handler=handler)
    batches = list(get_loader(get_val_dataset(texts, split_part="train", worker_config=config, batch_size=4,
                                              task_encoder=Failing())))  # fmt: skip
    return found, [(type(batch.__sources__).__name__, len(batch.__sources__)) for batch in batches]


@case("SavableDataLoader.restore_state_rank while workers run")
def restoring_too_late():
    loader = get_savable_loader(train(texts, workers=1))
    iterator = iter(loader)
    next(iterator)
    state = loader.save_state_rank()
    try:
        loader.restore_state_rank(state)
    except AssertionError:
        return "AssertionError"


@case("restore_state_rank into smaller batches")
def batches_get_smaller():
    """Of each worker's batch of 4, two of 2 are left, whatever the order is."""
    options = {"workers": 2}
    loader = get_savable_loader(train(long, batch_size=4, **options))
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = loader.save_state_rank()
    rest = [next(iterator).__key__ for _ in range(4)]
    smaller = get_savable_loader(train(long, batch_size=2, **options))
    smaller.restore_state_rank(state)
    found = [batch.__key__ for batch in itertools.islice(smaller, 8)]
    expected = [
        rest[first + worker][half : half + 2] for first in (0, 2) for half in (0, 2) for worker in (0, 1)
    ]
    return found == expected


@case("epath.NVDATASET_CACHE_DIR, assigned")
def folder_of_datasets():
    (FOLDER / "named" / "1").mkdir(parents=True)
    (FOLDER / "named" / "1" / "file.txt").write_text("found")
    epath.NVDATASET_CACHE_DIR = EPath(FOLDER)
    return EPath("dss://named@1/file.txt").read_text()


@case("metadataset: half a repetition of several copies")
def half_a_repetition():
    found = []
    for copies in (1, 2, 3):
        for repetitions in (0.5, 1, 1.5):
            entries = [{"repetitions": repetitions, "path": "./texts"}, {"path": "./more"}]
            path = write_yaml(f"half-{copies}-{repetitions}.yaml", {"blend_epochized": entries})
            options = {"repeat": False, "shuffle_over_epochs_multiplier": copies}
            kinds = collections.Counter(
                sample.text.split()[0] for sample in get_loader(train(path, **options))
            )
            found.append(sorted(kinds.items()))
    return found


@case("get_val_datasets: the length of a source")
def lengths_of_sources():
    pairs = get_val_datasets(mixture, split_part="train", worker_config=CONFIG, batch_size=5)
    return [(len(dataset), len(source), source.path.name, source.subflavors) for dataset, source in pairs]


class Local:
    """Makes an encoder that cannot be pickled."""

    def make(self):
        class Encoder(DefaultTaskEncoder):
            def encode_sample(self, sample):
                return sample

        return Encoder()


@case("get_loader after multiprocessing.set_start_method")
def workers_are_forked():
    multiprocessing.set_start_method("spawn", force=True)
    try:
        return sorted(
            sample.text for sample in get_loader(train(texts, Local().make(), workers=1, repeat=False))
        )
    finally:
        multiprocessing.set_start_method("fork", force=True)


class Counting(DefaultTaskEncoder):
    def encode_sample(self, sample):
        config = WorkerConfig.active_worker_config
        return [self.current_sample_index, config.active_worker_sample_index, config.rank_worker_id()]

    def batch(self, samples):
        return samples

    def encode_batch(self, samples):
        return [
            samples,
            self.current_batch_index,
            WorkerConfig.active_worker_config.active_worker_batch_index,
        ]


@case("WorkerConfig.active_worker_sample_index", "WorkerConfig.active_worker_batch_index")
def counters_of_workers():
    config = WorkerConfig(rank=1, world_size=2, num_workers=2)
    return list(itertools.islice(get_loader(train(texts, Counting(), 2, worker_config=config)), 6))


@case("get_val_datasets")
def validation_reads_repeated_datasets_once():
    found = get_val_datasets(doubled, split_part="train", worker_config=CONFIG, batch_size=None)
    whole = get_val_dataset(doubled, split_part="train", worker_config=CONFIG, batch_size=None)
    return [(len(each), len(list(get_loader(each))), len(source)) for each, source in found], len(whole)


def described(node):
    """Return class and attributes of a node, and of the nodes in it, without the folder."""
    if isinstance(node, str):
        return node
    if isinstance(node, (list, tuple)):
        return [described(each) for each in node]
    if isinstance(node, dict):
        return {key: described(each) for key, each in node.items()}
    names = ("path", "fs_path", "split_part", "subflavors", "subset", "range", "aux", "weight", "repetitions")
    names += ("nonmatch", "shuffle_over_epochs_multiplier", "blend", "blend_epochized", "join")
    found = {name: getattr(node, name) for name in names if hasattr(node, name)}
    if not found:
        return str(node)
    paths = {
        name: os.path.relpath(str(value), FOLDER) for name, value in found.items() if isinstance(value, EPath)
    }
    return {"": type(node).__name__, **{name: described(value) for name, value in found.items()}, **paths}


@case("MetadatasetV2(splits)", "load_dataset")
def splits_of_a_file():
    captions = {
        "path": "texts",
        "weight": 2,
        "subflavors": {"x": 1},
        "aux": {"a": "more", "b": "filesystem://m"},
    }
    joined = {"join": [{"path": "texts"}, {"path": "more", "nonmatch": "skip"}], "repetitions": 3}
    path = FOLDER / "splits.yaml"
    splits = {
        "train": {"blend": [captions, {"path": str(more), "subset": {"range": ["0%", "50%"]}}]},
        "val": {"path": "./texts", "split_part": "train"},
        "test": {
            "blend_epochized": [
                {"path": "mixture.yaml"},
                joined | {"joiner": {"__module__": "json", "__function__": "dumps"}},
            ]
        },
    }
    path.write_text(
        json.dumps({"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": splits})
    )
    loader, folder = load_dataset(EPath(path)), load_dataset(EPath(texts))
    sources = get_val_datasets(path, split_part="val", worker_config=CONFIG, batch_size=2)
    return (
        {name: described(node) for name, node in loader.splits.items()},
        [loader.path.name, str(loader.path.parent) == str(FOLDER), folder.path.name],
        [([each.name for each in source.paths], source.training) for _, source in sources],
    )


@case("ErrorContext")
def failures_in_a_row():
    context, seen = ErrorContext("a name", lambda *arguments: None, tolerance=5), []
    for error in (ValueError, ValueError, None, ValueError, SkipSample, ValueError):
        with context.handle_errors({"__key__": "a"}):
            if error is not None:
                raise error
        seen.append(context._consecutive_failures)
    context.reset()
    return seen, context._consecutive_failures


@case("BaseWebdatasetFactory.prepare_dataset(split_parts_ratio)", "cli: prepare --split-ratio")
def shares_of_few_tars():
    found = []
    for ratio in ((8, 1, 1), (1, 1, 1), (1, 0, 1)):
        folder = write_tars("split-" + "-".join(map(str, ratio)), CRUDE)
        BaseWebdatasetFactory.prepare_dataset(
            folder,
            ["shard-{0..1}.tar"],
            split_parts_ratio=[*zip(("train", "val", "test"), ratio, strict=True)],
            shuffle_seed=None,
            workers=1,
        )
        found.append(yaml.safe_load((folder / ".nv-meta" / "split.yaml").read_text())["split_parts"])
    return found


long = write_tars("long", json.loads((texts / ".nv-meta" / "dataset.yaml").read_text()), samples=64)
parted = write_tars(
    "parted",
    CRUDE,
    parts={"json": lambda n: json.dumps({"n": n}).encode(), "txt": lambda n: f"text {n}".encode()},
)
doubled = write_yaml(
    "doubled.yaml",
    {"blend_epochized": [{"repetitions": 2, "path": "./texts"}, {"repetitions": 1, "path": "./more"}]},
)
halved = write_yaml(
    "halved.yaml", {"blend_epochized": [{"repetitions": 0.5, "path": "./texts"}, {"path": "./more"}]}
)

run_cases()
