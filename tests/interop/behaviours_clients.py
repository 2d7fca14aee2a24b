"""What programs that reach into the loader rely on: numbers of workers, signatures, parts, loaded datasets.

See ``behaviours.py``.
"""

import collections
import dataclasses
import inspect
import itertools
import json

import megatron.energon as energon
from behaviours_common import (
    CONFIG,
    CRUDE,
    case,
    mixture,
    run_cases,
    texts,
    train,
    validate,
    write_tars,
    write_yaml,
)
from megatron.energon import (
    BlendDataset,
    Cooker,
    DefaultTaskEncoder,
    RepeatDataset,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    cooker,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    get_val_datasets,
    stateless,
)
from megatron.energon.cache.file_store import WebdatasetFileStore
from megatron.energon.epathlib import EPath
from megatron.energon.flavors.webdataset.itar_reader import SqliteITarEntryReader
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
