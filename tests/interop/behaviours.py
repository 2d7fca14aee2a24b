"""Uses the public behaviour of Megatron-Energon 7.4.1, and prints what it sees as JSON.

It is run twice: by Megatron-Energon, and by this library under the alias. It knows only ``megatron.energon``.
Nothing that it prints depends on the order of samples, which differs by design.

    python behaviours.py FOLDER     FOLDER is empty, and has the sibling module ``behaviours_classes``
"""

import collections
import itertools
from pathlib import Path

import behaviours_classes  # imported by the program, so that datasets may name its classes
import megatron.energon
import torch
from behaviours_common import (
    CONFIG,
    FOLDER,
    TEXTS,
    case,
    failure,
    mixture,
    more,
    overridden,
    pickles,
    run_cases,
    texts,
    train,
    validate,
    write_tars,
    write_yaml,
)
from megatron.energon import (
    BatchDataset,
    BlendDataset,
    Cooker,
    CrudeWebdataset,
    DefaultTaskEncoder,
    EpochizeDataset,
    FilterDataset,
    GroupBatchDataset,
    IterMapDataset,
    JoinedWebdatasetFactory,
    LogSampleDataset,
    MapDataset,
    MixBatchDataset,
    PackingDataset,
    RepeatDataset,
    SkipSample,
    StandardWebdatasetFactory,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    cooker,
    get_loader,
    get_savable_loader,
    load_dataset,
    prepare_metadataset,
    stateless,
    traverse_metadataset,
)
from megatron.energon.dataset_config import get_dataset_from_config
from megatron.energon.epathlib import EPath
from megatron.energon.errors import FatalSampleError
from megatron.energon.flavors import BaseWebdatasetFactory


@case("Sample.__key__", "get_loader(dataset)")
def keys_are_plain():
    return sorted(sample.__key__ for sample in get_loader(validate(texts)))


@case("Batch.__key__")
def keys_of_batches_are_plain():
    return sorted(key for batch in get_loader(validate(texts, batch_size=5)) for key in batch.__key__)


@case("global_error_handler")
def keys_that_handlers_see():
    seen = []
    config = WorkerConfig(
        rank=0,
        world_size=1,
        num_workers=0,
        global_error_handler=lambda error, sample, *_: seen.append(sample),
    )

    class Fails(DefaultTaskEncoder):
        @stateless
        def encode_sample(self, sample):
            if sample.text.endswith("3"):
                raise ValueError(sample.text)
            return sample

    list(itertools.islice(get_loader(train(texts, Fails(), worker_config=config)), 20))
    return sorted({sample.__key__ for sample in seen})


@case("get_train_dataset: sample_type")
def sample_type_is_typing_only():
    return type(next(iter(get_loader(train(texts, sample_type=TextSample))))).__name__


class Packs(DefaultTaskEncoder):
    def select_samples_to_pack(self, samples):
        groups = [samples[at : at + 2] for at in range(0, len(samples), 2)]
        return groups[:-1] if len(samples) > 2 else groups

    @stateless
    def pack_selected_samples(self, samples):
        return TextSample.derive_from(samples[0], text="+".join(sample.text for sample in samples))


@case(
    "TaskEncoder.select_samples_to_pack",
    "TaskEncoder.pack_selected_samples",
    "get_val_dataset(packing_buffer_size)",
)
def selection_may_leave_samples_out():
    packs = [pack.text for pack in get_loader(validate(texts, Packs(), packing_buffer_size=6))]
    return len(packs), sum(len(pack.split("+")) for pack in packs)


def join(name, joiner):
    parts = {"a": {"path": "./texts"}, "b": {"path": "./more"}}
    path = write_yaml(name, {"join": parts, "joiner": {"__module__": "behaviours_classes", **joiner}})
    prepare_metadataset(EPath(path))
    return sorted((row.__key__, row.left, row.right) for row in get_loader(validate(path)))


@case("metadataset: join", "prepare_metadataset(path)")
def a_joiner_class_of_the_program():
    return join("class.yaml", {"__class__": "Pair"})


@case("metadataset: joiner functions")
def a_joiner_function_of_the_program():
    return join("function.yaml", {"__function__": "make_pair"})


@case("parts that no hook reads")
def a_pickle_that_nobody_reads():
    @stateless
    def cook(crude):
        return TextSample(**basic_sample_keys(crude), text=crude["txt"])

    class Cooks(DefaultTaskEncoder):
        cookers = [Cooker(cook)]

    return sorted(sample.text for sample in get_loader(validate(pickles, Cooks())))


class BuildsTexts(DefaultTaskEncoder):
    def build_train_datasets(self, *, datasets, worker_config, batch_size, **options):
        blend = BlendDataset(
            *[
                (
                    RepeatDataset(each.dataset.build(worker_rotation_offset=1), worker_config=worker_config),
                    1.0,
                )
                for each in datasets
            ],
            worker_config=worker_config,
        )
        encoded = self.build_encode_sample(blend, worker_config=worker_config)
        return self.build_batch(encoded, batch_size=batch_size, worker_config=worker_config)


@case("BaseCoreDatasetFactory.build", "BlendDataset(worker_config)", "TaskEncoder.build_encode_sample")
def datasets_are_built_by_an_override():
    found = set()
    for batch in itertools.islice(get_loader(train(mixture, BuildsTexts(), batch_size=4)), 60):
        found.update(batch.text)
    return sorted(found)


@case("BaseCoreDatasetFactory")
def one_pass_of_a_built_dataset():
    class OnePass(DefaultTaskEncoder):
        def build_train_datasets(self, *, datasets, worker_config, **options):
            return self.build_encode_sample(datasets[0].dataset.build(), worker_config=worker_config)

    return sorted(sample.text for sample in get_loader(train(texts, OnePass())))


@case("DatasetLoaderInterface", "DatasetLoaderInterface.get_datasets")
def datasets_have_paths_and_subflavors():
    loaded = load_dataset(mixture).get_datasets(
        training=True, split_part="train", worker_config=CONFIG, max_samples_per_sequence=None
    )
    return [
        [
            [path.name for path in each.dataset.paths],
            each.dataset.subflavors,
            each.weight,
            sorted(each.aux or ()),
        ]
        for each in loaded.datasets
    ]


@stateless
@cooker(need_primary=True)
def cook_with_stores(crude, primary, other):
    text = (
        f"{Path(str(primary.get_path())).name} {crude['txt'] == other.get(crude['__key__'] + '.txt', crude)}"
    )
    return TextSample(**basic_sample_keys(crude), text=text)


class CooksItself(DefaultTaskEncoder):
    cookers = [Cooker(cook_with_stores)]
    decoder = None
    said = ()

    def build_cook_crude_sample(self, dataset, *, worker_config, subflavors, get_primary_aux, aux=None):
        type(self).said = (dict(subflavors or {}), callable(get_primary_aux), sorted(aux or ()))
        return super().build_cook_crude_sample(
            dataset,
            worker_config=worker_config,
            subflavors=subflavors,
            get_primary_aux=get_primary_aux,
            aux=aux,
        )


@case(
    "TaskEncoder.build_cook_crude_sample",
    "TaskEncoder.build_cook_crude_sample(subflavors)",
    "TaskEncoder.build_cook_crude_sample(get_primary_aux)",
    "TaskEncoder.build_cook_crude_sample(aux)",
)
def build_cook_crude_sample_is_called_as_it_is_declared():
    path = write_yaml(
        "cooked.yaml", {"path": "./pickles", "subflavors": {"x": 1}, "aux": {"other": "./texts"}}
    )
    sample = next(iter(get_loader(train(path, CooksItself()))))
    return CooksItself.said, sample.text


@case(
    "MapDataset(map_fn_config)",
    "MapDataset(stateless_map_fn)",
    "MapDataset(failure_tolerance)",
    "FilterDataset",
    "FilterDataset(filter_fn)",
    "FilterDataset(filter_fn_config)",
    "BatchDataset(batcher_config)",
    "BatchDataset(batcher_stateless)",
    "BatchDataset(failure_tolerance)",
)
def wrappers_take_configs_and_marks():
    double = MapDataset(
        validate(texts),
        lambda sample: sample.text * 2,
        stateless_map_fn=True,
        map_fn_config={"times": 2},
        failure_tolerance=3,
        worker_config=CONFIG,
    )
    kept = FilterDataset(
        double, filter_fn=lambda text: "1" in text, filter_fn_config=lambda: {"has": 1}, worker_config=CONFIG
    )
    batched = BatchDataset(
        kept,
        2,
        len,
        batcher_stateless=True,
        batcher_config={"what": "length"},
        drop_last=True,
        failure_tolerance=5,
        worker_config=CONFIG,
    )
    return list(get_loader(batched)), double.can_restore_sample()


def in_pairs(samples):
    for first in samples:
        second = next(samples, None)
        yield first.text if second is None else f"{first.text} {second.text}"


@case(
    "IterMapDataset",
    "IterMapDataset(iter_map_fn)",
    "IterMapDataset(len_map_fn)",
    "IterMapDataset(stateless_iter_fn)",
    "IterMapDataset(iter_map_fn_config)",
)
def stream_functions_take_configs_and_marks():
    paired = IterMapDataset(
        validate(texts),
        in_pairs,
        len_map_fn=lambda length: length // 2,
        stateless_iter_fn=True,
        iter_map_fn_config={"by": 2},
        worker_config=CONFIG,
    )
    return len(list(get_loader(paired))), paired.can_restore_sample()


@case(
    "PackingDataset",
    "PackingDataset(final_packer_stateless)",
    "PackingDataset(sample_encoder)",
    "PackingDataset(sample_encoder_stateless)",
    "PackingDataset(packer_config)",
    "PackingDataset(pre_packer_failure_tolerance)",
    "PackingDataset(final_packer_failure_tolerance)",
    "PackingDataset(sample_encoder_failure_tolerance)",
)
def packing_takes_configs_and_marks():
    packs = PackingDataset(
        validate(texts),
        6,
        lambda samples: [samples[:2], samples[2:]],
        lambda samples: [len(samples)],
        final_packer_stateless=True,
        sample_encoder=lambda sample: sample,
        sample_encoder_stateless=True,
        packer_config={"first": 2},
        pre_packer_failure_tolerance=1,
        final_packer_failure_tolerance=2,
        sample_encoder_failure_tolerance=3,
        worker_config=CONFIG,
    )
    return list(get_loader(packs)), packs.can_restore_sample()


@case(
    "GroupBatchDataset(sample_group_key)", "GroupBatchDataset(batcher)", "GroupBatchDataset(batcher_config)"
)
def groups_in_the_order_of_arguments():
    groups = GroupBatchDataset(
        validate(texts),
        3,
        lambda sample: (int(sample.text.split()[1]) % 2, None),
        lambda samples: len({int(sample.text.split()[1]) % 2 for sample in samples}),
        batcher_stateless=True,
        batcher_config={},
        drop_last=True,
        worker_config=CONFIG,
    )
    return list(get_loader(groups))


@case("MixBatchDataset", "MixBatchDataset(batch_size)", "MixBatchDataset(batch_mix_fn)")
def mixed_batches_are_lists():
    mixed = MixBatchDataset((train(texts), 1), (train(more), 1), batch_size=4, worker_config=CONFIG)
    batch = next(iter(get_loader(mixed)))
    return type(batch).__name__, [type(sample).__name__ for sample in batch]


@case("LogSampleDataset", "LogSampleDataset(mode)", "EpochizeDataset(worker_config)")
def epochs_and_logs_by_position():
    epochs = LogSampleDataset(EpochizeDataset(train(texts), 5, CONFIG), "train", CONFIG)
    loader = get_loader(epochs)
    return [len(list(loader)), len(list(loader))]


@case(
    "DefaultDecoderWebdatasetFactory",
    "BaseWebdatasetFactory.load_sample",
    "BaseWebdatasetFactory.sample_filter",
)
def a_dataset_class_that_filters_and_loads():
    return sorted((sample.__key__, sample.text) for sample in get_loader(validate(overridden)))


class NamesNothing(DefaultTaskEncoder):
    @stateless
    def encode_sample(self, sample):
        return undefined_name  # noqa: F821


@case("NameError in a hook")
def a_misspelt_name_ends_the_run():
    return failure(lambda: next(iter(get_loader(train(texts, NamesNothing())))))


@case("ImportError in a hook")
def a_missing_import_ends_the_run():
    class Imports(DefaultTaskEncoder):
        @stateless
        def encode_sample(self, sample):
            import no_such_module  # noqa: F401

    return failure(lambda: next(iter(get_loader(train(texts, Imports())))))


@case("FatalSampleError.from_sample")
def fatal_errors_of_a_hook_end_the_run():
    class Gives(DefaultTaskEncoder):
        @stateless
        def encode_sample(self, sample):
            raise FatalSampleError.from_sample(sample, "enough")

    return failure(lambda: next(iter(get_loader(train(texts, Gives())))))


@case("FatalSampleError")
def too_many_failures_end_the_run():
    class Fails(DefaultTaskEncoder):
        @stateless(failure_tolerance=3)
        def encode_sample(self, sample):
            raise ValueError("no")

    return failure(lambda: next(iter(get_loader(train(texts, Fails())))))


@case("SkipSample")
def skipped_samples_are_no_failures():
    class Skips(DefaultTaskEncoder):
        @stateless(failure_tolerance=2)
        def encode_sample(self, sample):
            if sample.text != "text 7":
                raise SkipSample
            return sample

    return [sample.text for sample in get_loader(validate(texts, Skips()))]


@case("cooker", "cooker(fn)")
def a_bare_cooker_mark_returns_the_function():
    def cook(crude):
        return crude

    return cooker(cook)("crude"), cooker(need_cache=True)(cook)("crude")


@case("duplicate keys in split.yaml")
def the_last_duplicate_of_split_yaml_counts():
    folder = write_tars("twice", TEXTS)
    split = folder / ".nv-meta" / "split.yaml"
    split.write_text("split_parts:\n  train: [shard-0.tar]\n  train: [shard-1.tar]\n  val: []\nexclude: []\n")
    return sorted(sample.text for sample in get_loader(validate(folder)))


@case("megatron.energon.__version__")
def the_module_says_what_it_is():
    import importlib.metadata

    return (
        isinstance(megatron.energon.__file__, str),
        megatron.energon.__version__,
        importlib.metadata.version("megatron-energon"),
    )


@case("TaskEncoder.current_batch_index")
def batch_indices_of_restored_batches():
    class Counts(DefaultTaskEncoder):
        @stateless(restore_seeds=True)
        def batch(self, samples):
            batch = super().batch(samples)
            batch.text = [f"{self.current_batch_index} {torch.rand(1).item():.6f}"]
            return batch

    loader = get_savable_loader(train(texts, Counts(), batch_size=3))
    batches = list(itertools.islice(loader, 4))
    again = [loader.restore_sample(batch.__restore_key__).text for batch in batches]
    return [batch.text[0].split()[0] for batch in batches], again == [batch.text for batch in batches]


@case("WorkerConfig.worker_activate", "WorkerConfig.worker_deactivate")
def hooks_of_the_program_outside_of_a_loader():
    class Draws(DefaultTaskEncoder):
        @stateless(restore_seeds=True)
        def encode_sample(self, sample):
            drawn.append(int(torch.randint(10**6, ())))
            return self.current_batch_index, self.current_sample_index

    drawn = []
    draws = Draws()
    config = WorkerConfig(rank=0, world_size=1, num_workers=2, seed_offset=7, worker_log_level=2)
    seen = [[config.should_log(level) for level in range(4)], config.worker_seed(0), config.worker_seed(1)]
    config.worker_activate(5, override_global_rank=1, cache_pool=(pool := object()))
    seen += [draws.encode_sample(None), draws.cache is pool, config.worker_seed(), config.global_worker_id()]
    config.worker_push_sample_index(9)
    seen += [draws.encode_sample(None), config.worker_pop_sample_index(), draws.encode_sample(None)]
    config.worker_deactivate()
    config.worker_deactivate()
    seen.append(WorkerConfig.active_worker_config is None)
    try:
        config.assert_worker()
    except Exception:
        seen.append("no worker")
    return seen, drawn[0] == drawn[2] != drawn[1]


@case("SavableDataLoader")
def restored_samples_of_a_pipeline():
    loader = get_savable_loader(train(texts, batch_size=3))
    batches = list(itertools.islice(loader, 4))
    return all(loader.restore_sample(batch.__restore_key__).text == batch.text for batch in batches)


@case("get_dataset_from_config")
def a_dataset_of_a_configuration():
    made = get_dataset_from_config(EPath(texts), split_part="train", training=False, worker_config=CONFIG)
    samples = list(get_loader(made.build()))
    return type(made).__name__, made.path.name, sorted((sample.__key__, sample.text) for sample in samples)


@case(
    "StandardWebdatasetFactory",
    "StandardWebdatasetFactory(sample_type)",
    "BaseWebdatasetFactory",
    "DefaultGenericWebdatasetFactory",
    "DefaultGenericWebdatasetFactory(field_map)",
    "DefaultGenericWebdatasetFactory(subflavors)",
)
def a_dataset_of_a_class():
    made = StandardWebdatasetFactory(
        EPath(texts),
        sample_type=TextSample,
        field_map={"text": "txt"},
        split_part="train",
        training=True,
        worker_config=CONFIG,
        subflavors={"x": 2},
    )
    samples = list(get_loader(made.build()))
    return sorted((sample.text, sample.__subflavors__["x"]) for sample in samples)


@case("JoinedWebdatasetFactory", "JoinedWebdatasetFactory(join_index)", "JoinedWebdatasetFactory(joiner)")
def a_join_of_dataset_objects():
    join("objects.yaml", {"__class__": "Pair"})
    (index,) = FOLDER.glob("objects.yaml.cache/join_index_*.bin")
    inner = [
        get_dataset_from_config(EPath(path), split_part="train", training=False, worker_config=CONFIG)
        for path in (texts, more)
    ]
    joined = JoinedWebdatasetFactory(
        inner,
        training=False,
        worker_config=CONFIG,
        join_index=EPath(index),
        joiner=behaviours_classes.Pair,
    )
    return sorted((row.left, row.right) for row in get_loader(joined.build()))


@case("BaseWebdatasetFactory.iter_dataset_content", "BaseWebdatasetFactory.prepare_dataset")
def parts_of_a_tar():
    content = list(BaseWebdatasetFactory.iter_dataset_content(EPath(pickles / "shard-0.tar"), ("txt",)))
    return len(content), sorted(content[0]), content[0]["txt"].decode(), content[0]["pickle"] is None


@case("traverse_metadataset", "traverse_metadataset(split_part)")
def references_of_a_metadataset():
    path = write_yaml(
        "refs.yaml", {"path": "./texts", "subflavors": {"x": 1}, "aux": {"files": "filesystem://."}}
    )
    (ref,) = traverse_metadataset(path, split_part="train")
    return (
        type(ref.path).__name__,
        ref.path.name,
        ref.split_part,
        ref.subflavors,
        str(ref.aux["files"]) == str(FOLDER),
    )


@case("basic_sample_keys")
def metadata_of_a_crude_sample():
    crude = {"__key__": "a", "__restore_key__": (), "txt": "b"}
    return basic_sample_keys(crude), basic_sample_keys({**crude, "__sources__": None})


@case("CrudeWebdataset")
def datasets_derive_from_named_classes():
    kinds = [base.__name__ for base in CrudeWebdataset.__mro__]
    return [name for name in kinds if name in ("DefaultDecoderWebdatasetFactory", "BaseWebdatasetFactory")]


@case("BlendDataset")
def weights_of_a_blend():
    blend = BlendDataset((train(texts), 3), (train(more), 1), worker_config=CONFIG)
    counts = collections.Counter(
        sample.text.split()[0] for sample in itertools.islice(get_loader(blend), 2000)
    )
    return abs(counts["text"] / 2000 - 0.75) < 0.05, sorted(counts)


run_cases()
