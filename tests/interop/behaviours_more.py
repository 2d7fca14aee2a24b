"""More public behaviour of Megatron-Energon 7.4.1: samples, batches, operators, loaders, stores, paths.

See ``behaviours.py``.
"""

import collections
import io
import itertools
import json
import os

import numpy as np
import torch
from behaviours_common import (
    CONFIG,
    FOLDER,
    case,
    failure,
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
    AugmentTaskEncoder,
    Batch,
    BatchDataset,
    CachePool,
    CaptioningSample,
    ConcatDataset,
    Cooker,
    CrudeJsonlDatasetFactory,
    CrudeSample,
    DecodeFileStore,
    DefaultTaskEncoder,
    EpochizeDataset,
    FileStoreCachePool,
    GcDataset,
    GroupBatchDataset,
    ImageClassificationSample,
    ImageSample,
    InterleavedSample,
    LimitDataset,
    MapDataset,
    MultiChoiceVQASample,
    NoCachePool,
    OCRSample,
    PrimaryFileStore,
    RepeatDataset,
    Sample,
    SampleDecoder,
    SavableDataset,
    ShuffleBufferDataset,
    SimilarityInterleavedSample,
    SourceInfo,
    SystemFileStore,
    TaskEncoder,
    TextSample,
    VidQASample,
    VQASample,
    WorkerConfig,
    basic_sample_keys,
    batch_list,
    batch_pad_stack,
    batch_stack,
    concat_pad,
    cooker,
    edataclass,
    generic_batch,
    generic_concat,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    get_val_datasets,
    homogeneous_concat_mix,
    load_dataset,
    log_exception,
    prepare_metadataset,
    reraise_exception,
    stateless,
)
from megatron.energon.epathlib import EPath
from megatron.energon.task_encoder.base import get_stateless
from PIL import Image

META = {"__key__": "k", "__restore_key__": ()}


def plain(value):
    """Make a value that JSON can hold."""
    if isinstance(value, torch.Tensor):
        return ["tensor", str(value.dtype), value.tolist()]
    if isinstance(value, np.ndarray):
        return ["array", str(value.dtype), value.tolist()]
    if isinstance(value, bytes):
        return ["bytes", value.decode()]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else type(value).__name__


def kind_of(function, *arguments, **keywords):
    try:
        function(*arguments, **keywords)
    except Exception as error:
        return [kind.__name__ for kind in type(error).__mro__[:-2] if kind.__module__ == "builtins"]
    return "no error"


# Samples and batches


@case(
    "CaptioningSample",
    "ImageSample",
    "ImageClassificationSample",
    "InterleavedSample",
    "MultiChoiceVQASample",
    "OCRSample",
    "SimilarityInterleavedSample",
    "TextSample",
    "VQASample",
    "VidQASample",
)
def fields_of_sample_types():
    made = [
        CaptioningSample(**META, image=torch.zeros(1), caption="c"),
        ImageSample(**META, image=torch.zeros(1)),
        ImageClassificationSample(**META, image=torch.zeros(1), label=3, label_name="cat"),
        InterleavedSample(**META, sequence=[torch.zeros(1), "a"]),
        MultiChoiceVQASample(**META, image=torch.zeros(1), context="q", choices=["a"], correct_choice_idx=0),
        OCRSample(**META, image=torch.zeros(1), text="t"),
        SimilarityInterleavedSample(**META, images=[], texts=["a"]),
        TextSample(**META, text="t"),
        VQASample(**META, image=torch.zeros(1), context="q", answers=["a"]),
        VidQASample(**META, video=None, context="q", answers=["a"]),
    ]
    return [(type(sample).__name__, plain(vars_of(sample))) for sample in made]


def vars_of(sample):
    return {name: getattr(sample, name) for name in sample.__dataclass_fields__}


@edataclass
class Labelled(Sample):
    """A sample type of the program."""

    label: int
    text: str = ""


@edataclass
class Louder(Labelled):
    """A type derived from it."""

    volume: int


@case("Sample.derive_from", "Sample.extend", "edataclass", "Sample")
def samples_of_samples():
    base = TextSample(**META, __subflavors__={"x": 1}, text="t")
    derived = Labelled.derive_from(base, label=2)
    extended = Louder.extend(derived, volume=3)
    return plain(vars_of(derived)), plain(vars_of(extended))


@case("Sample.from_joined")
def samples_from_joined_samples():
    first = TextSample(**META, text="a")
    second = ImageSample(__key__="j", __restore_key__=(), image=torch.ones(1))
    joined = CaptioningSampleOfJoin.from_joined(first, second)
    return plain([joined.__key__, joined.text, joined.image])


@edataclass
class CaptioningSampleOfJoin(Sample):
    """The fields of two samples."""

    text: str
    image: torch.Tensor


@edataclass
class Texts(Batch):
    """A batch type of the program."""

    text: list


@edataclass
class Pictures(Batch):
    """A batch with a tensor."""

    image: torch.Tensor


@case("Batch", "Batch.from_samples", "Batch.derive_from")
def batches_of_samples():
    samples = [
        TextSample(__key__=f"k{n}", __restore_key__=(n,), __subflavors__={"x": n}, text=f"t{n}")
        for n in range(2)
    ]
    batch = Texts.from_samples(samples, text=["a", "b"])
    derived = Pictures.derive_from(batch, image=torch.ones(2))
    return plain([batch.__key__, batch.__subflavors__, batch.text, derived.__key__, derived.image])


@case("batch_stack", "batch_pad_stack", "batch_list", "generic_batch")
def columns_of_batches():
    ragged = [torch.ones(2), torch.ones(3)]
    return plain(
        [
            batch_stack([torch.zeros(2), torch.ones(2)]),
            batch_pad_stack(ragged),
            batch_list(["a", "b"]),
            generic_batch([{"a": torch.ones(1), "b": "x"}, {"a": torch.ones(2), "b": "y"}]),
            generic_batch(ragged),
            generic_batch(["a", "b"]),
        ]
    )


@case("concat_pad", "generic_concat", "homogeneous_concat_mix")
def columns_of_mixed_batches():
    @edataclass
    class Numbers(Batch):
        number: torch.Tensor
        word: list

    batches = [
        Numbers(__key__=[f"k{n}"], __restore_key__=(n,), number=torch.full((1, n + 1), n), word=[f"w{n}"])
        for n in range(2)
    ]
    mixed = homogeneous_concat_mix(batches)
    return plain(
        [
            concat_pad([torch.ones(1, 2), torch.ones(1, 3)]),
            generic_concat([torch.ones(1, 2), torch.ones(1, 1)]),
            [mixed.number, len(mixed.word), len(mixed.__key__)],
        ]
    )


@case("DefaultTaskEncoder", "DefaultTaskEncoder(batch_type)", "DefaultTaskEncoder(encoded_sample_type)")
def types_of_the_default_encoder():
    named = next(iter(get_loader(validate(texts, DefaultTaskEncoder(batch_type=Texts), batch_size=2))))
    as_dicts = DefaultTaskEncoder(encoded_sample_type=dict, raw_batch_type=dict, batch_type=dict)
    return (
        type(named).__name__,
        named.text,
        sorted(next(iter(get_loader(validate(texts, as_dicts, batch_size=2))))),
    )


# Functions that open datasets


@case(
    "get_train_dataset",
    "get_train_dataset(virtual_epoch_length)",
    "get_train_dataset(batch_size)",
    "get_loader",
)
def epochs_of_training():
    loader = get_loader(train(texts, batch_size=5, virtual_epoch_length=3))
    sizes = [[len(batch.text) for batch in loader] for _ in range(2)]
    return len(loader), sizes


@case("get_train_dataset(repeat)", "get_train_dataset(batch_drop_last)")
def one_pass_of_training():
    whole = [len(batch.text) for batch in get_loader(train(texts, batch_size=5, repeat=False))]
    dropped = [
        len(batch.text)
        for batch in get_loader(train(texts, batch_size=5, repeat=False, batch_drop_last=True))
    ]
    return sorted(whole), dropped


@case("get_train_dataset(shuffle_over_epochs_multiplier)", "get_train_dataset(packing_buffer_size)")
def options_of_training():
    over = [
        sample.text for sample in get_loader(train(texts, shuffle_over_epochs_multiplier=2, repeat=False))
    ]

    class Pairs(DefaultTaskEncoder):
        def select_samples_to_pack(self, samples):
            return [samples[at : at + 2] for at in range(0, len(samples), 2)]

        @stateless
        def pack_selected_samples(self, samples):
            return TextSample.derive_from(samples[0], text=" ".join(sample.text for sample in samples))

    packed = list(get_loader(train(texts, Pairs(), packing_buffer_size=4, repeat=False)))
    return sorted(collections.Counter(over).values()), len(packed), len(packed[0].text.split())


@case(
    "get_val_dataset",
    "get_val_dataset(limit)",
    "get_val_dataset(batch_size)",
    "get_val_dataset(split_part)",
    "get_val_dataset(batch_drop_last)",
)
def validation_sets():
    limited = get_loader(validate(texts, batch_size=2, limit=3))
    dropped = get_loader(validate(texts, batch_size=5, batch_drop_last=True))
    return [len(list(limited)), len(list(limited)), len(limited)], [len(batch.text) for batch in dropped]


@case("get_val_datasets")
def validation_sets_one_by_one():
    path = write_yaml(
        "concat.yaml", {"blend": [{"weight": 1, "path": "./texts"}, {"weight": 1, "path": "./more"}]}
    )
    pairs = get_val_datasets(path, split_part="train", worker_config=CONFIG, batch_size=None)
    return [
        (
            len(list(get_loader(dataset))),
            source.path.name if hasattr(source.path, "name") else str(source.path).rpartition("/")[2],
        )
        for dataset, source in pairs
    ]


@case("get_val_dataset(path)")
def validation_of_a_blend_is_concatenated():
    path = write_yaml(
        "concat2.yaml", {"blend": [{"weight": 1, "path": "./texts"}, {"weight": 9, "path": "./more"}]}
    )
    found = [sample.text.split()[0] for sample in get_loader(validate(path))]
    return [(word, len(list(group))) for word, group in itertools.groupby(found)]


@case("load_dataset", "DatasetLoader", "MetadatasetV2", "Metadataset")
def kinds_of_loader_objects():
    first = {"__module__": "megatron.energon", "__class__": "Metadataset"}
    path = FOLDER / "version1.yaml"
    datasets = [{"path": "./texts", "weight": 1, "subflavors": {"y": 2}}]
    path.write_text(json.dumps({**first, "splits": {"train": {"datasets": datasets}}}))
    sample = next(iter(get_loader(train(path))))
    return [type(load_dataset(each)).__name__ for each in (texts, mixture, path)], sample.__subflavors__


@case("metadataset: blend_epochized")
def repetitions_of_datasets():
    entries = [{"repetitions": 2, "path": "./texts"}, {"repetitions": 0.5, "path": "./more"}]
    path = write_yaml("epochized.yaml", {"blend_epochized": entries})
    counts = collections.Counter(sample.text for sample in get_loader(train(path, repeat=False)))
    words = collections.Counter()
    for text, count in counts.items():
        words[text.split()[0]] += count
    return sorted(words.items()), sorted({count for text, count in counts.items() if text.startswith("text")})


@case("metadataset: subset")
def subsets_of_datasets():
    halves = write_yaml("half.yaml", {"path": "./texts", "subset": {"range": ["0%", "50%"]}})
    numbered = write_yaml("numbered.yaml", {"path": "./texts", "subset": {"range": [2, 5]}})
    return [
        sorted(sample.text for sample in get_loader(train(path, repeat=False))) for path in (halves, numbered)
    ]


@case("metadataset: subflavors, split_part")
def subflavors_of_metadatasets():
    path = write_yaml(
        "flavored.yaml",
        {
            "blend": [
                {"weight": 1, "path": "./mixture.yaml", "subflavors": {"x": 5, "z": 1}, "split_part": "train"}
            ]
        },
    )
    samples = itertools.islice(get_loader(train(path)), 40)
    return sorted({json.dumps(sample.__subflavors__, sort_keys=True) for sample in samples})


@case("prepare_metadataset")
def preparing_a_metadataset_without_joins():
    return prepare_metadataset(EPath(mixture)) in (None, [])


# Loaders and their states


def keys_of(batches, count):
    return [list(batch.__key__) for batch in itertools.islice(batches, count)]


@case(
    "get_savable_loader",
    "SavableDataLoader.save_state_rank",
    "SavableDataLoader.restore_state_rank",
    "SavableDataLoader.restore_state_global",
    "SavableDataLoader.save_state_global",
)
def states_of_loaders():
    answers = []
    for workers in (0, 2):
        loader = get_savable_loader(train(texts, batch_size=3, workers=workers))
        batches = iter(loader)
        keys_of(batches, 3)
        state, whole = loader.save_state_rank(), loader.save_state_global(global_dst_rank=0)
        expected = keys_of(batches, 4)
        for restore, saved in (("restore_state_rank", state), ("restore_state_global", whole)):
            again = get_savable_loader(train(texts, batch_size=3, workers=workers))
            getattr(again, restore)(saved)
            answers.append(keys_of(again, 4) == expected)
    return answers


@case("SavableDataLoader.can_restore_sample", "SavableDataLoader.restore_sample", "stateless")
def samples_from_their_keys():
    class Random(DefaultTaskEncoder):
        @stateless(restore_seeds=True)
        def encode_sample(self, sample):
            sample.text += f" {torch.rand(1).item():.6f} {np.random.rand():.6f}"
            return sample

    loader = get_savable_loader(train(texts, Random(), batch_size=3))
    batches = list(itertools.islice(loader, 3))

    class Stateful(DefaultTaskEncoder):
        def encode_sample(self, sample):
            return sample

    return (
        loader.can_restore_sample(),
        all(loader.restore_sample(batch.__restore_key__).text == batch.text for batch in batches),
        get_savable_loader(train(texts, Stateful(), batch_size=3)).can_restore_sample(),
    )


@case("get_savable_loader(worker_config)", "get_loader(worker_config)")
def another_configuration_for_a_loader():
    other = WorkerConfig(rank=0, world_size=2, num_workers=0)
    dataset = train(texts, batch_size=2)
    return (
        len(next(iter(get_loader(dataset, worker_config=CONFIG))).text),
        kind_of(get_savable_loader, dataset, worker_config=other) != "no error",
    )


@case("get_savable_loader(checkpoint_every_sec)", "get_savable_loader(watchdog_timeout_seconds)")
def options_of_loaders():
    loader = get_savable_loader(
        train(texts, batch_size=2),
        checkpoint_every_sec=10,
        checkpoint_every_min_n_samples=1,
        n_checkpoints=5,
        gc_collect_every_n_steps=0,
        prefetch_factor=3,
        watchdog_timeout_seconds=60,
        watchdog_initial_timeout_seconds=100,
        fail_on_timeout=True,
    )
    return len(next(iter(loader)).text), isinstance(loader.config(), dict)


@case("SavableDataLoader.config", "SavableDataset.config")
def descriptions():
    dataset = train(texts, batch_size=2)
    return isinstance(dataset.config()["type"], str), isinstance(get_savable_loader(dataset).config(), dict)


# Operators


def numbers(dataset):
    return [int(sample.text.split()[1]) for sample in get_loader(dataset)]


@case("ConcatDataset")
def one_dataset_after_the_other():
    concatenated = ConcatDataset(validate(texts), validate(more), worker_config=CONFIG)
    found = [sample.text.split()[0] for sample in get_loader(concatenated)]
    return [(word, len(list(group))) for word, group in itertools.groupby(found)], len(
        get_loader(concatenated)
    )


@case("LimitDataset", "LimitDataset(reset_after_epoch)", "RepeatDataset", "RepeatDataset(repeats)")
def limits_and_repetitions():
    limited = LimitDataset(validate(texts), 5, reset_after_epoch=True, worker_config=CONFIG)
    endless = RepeatDataset(validate(texts), worker_config=CONFIG)
    going_on = LimitDataset(endless, length=15, reset_after_epoch=True, worker_config=CONFIG)
    repeated = RepeatDataset(validate(texts), repeats=2, worker_config=CONFIG)
    first, second = get_loader(limited), get_loader(going_on)
    return (
        [[sample.text for sample in first] for _ in range(2)],
        [[sample.text for sample in second] for _ in range(3)],
        len(numbers(repeated)),
        len(get_loader(repeated)),
    )


@case("RepeatDataset(restart)")
def repetitions_that_do_not_begin_anew():
    once = get_loader(RepeatDataset(validate(texts), repeats=1, restart=False, worker_config=CONFIG))
    return [len(list(once)), len(list(once))]


@case("EpochizeDataset", "EpochizeDataset(length)")
def virtual_epochs():
    endless = RepeatDataset(validate(texts), worker_config=CONFIG)
    loader = get_loader(EpochizeDataset(endless, length=5, worker_config=CONFIG))
    return [[sample.text for sample in loader] for _ in range(3)], len(loader)


@case("ShuffleBufferDataset", "GcDataset", "GcDataset(every_n_iter)", "GcDataset(freeze)")
def samples_that_pass_through():
    shuffled = ShuffleBufferDataset(validate(texts), 5, worker_config=CONFIG)
    collected = GcDataset(shuffled, worker_config=CONFIG, every_n_iter=2, freeze=False)
    return sorted(numbers(collected))


@case("MapDataset", "MapDataset(map_fn)")
def mapped_samples():
    def some(sample):
        number = int(sample.text.split()[1])
        for copy in range(number % 3):
            yield f"{number}/{copy}"

    return sorted(get_loader(MapDataset(validate(texts), map_fn=some, worker_config=CONFIG)))


@case("BatchDataset", "BatchDataset(drop_last)", "GroupBatchDataset")
def batched_samples():
    def joined(samples):
        return " ".join(sample.text.split()[1] for sample in samples)

    whole = list(get_loader(BatchDataset(validate(texts), 5, joined, worker_config=CONFIG)))
    full = list(get_loader(BatchDataset(validate(texts), 5, joined, drop_last=True, worker_config=CONFIG)))
    sized = GroupBatchDataset(
        validate(texts),
        None,
        lambda sample: (int(sample.text.split()[1]) % 2, 2 + int(sample.text.split()[1]) % 2),
        joined,
        worker_config=CONFIG,
    )
    return whole, full, sorted(get_loader(sized))


@case("SavableDataset", "SavableDataset.len_rank", "SavableDataset.assert_can_restore")
def lengths():
    dataset = validate(texts, batch_size=5)
    assert isinstance(dataset, SavableDataset)
    dataset.assert_can_restore()
    return len(dataset), dataset.len_rank(), len(get_loader(validate(texts)))


# Task encoders


@case(
    "TaskEncoder",
    "TaskEncoder.encode_sample",
    "TaskEncoder.batch",
    "TaskEncoder.encode_batch",
    "TaskEncoder.preencode_sample",
    "TaskEncoder.postencode_sample",
)
def hooks_of_encoders():
    class Pre(DefaultTaskEncoder):
        @stateless
        def preencode_sample(self, sample):
            sample.text += " pre"
            return sample

        @stateless
        def postencode_sample(self, sample):
            sample.text += " post"
            return sample

        @stateless
        def batch(self, samples):
            return [sample.text for sample in samples]

        @stateless
        def encode_batch(self, batch):
            return {"texts": batch}

    class Bare(TaskEncoder):
        @stateless
        def encode_sample(self, sample):
            return sample.text

        @stateless
        def batch(self, samples):
            return "+".join(samples)

    return next(iter(get_loader(validate(texts, Pre(), batch_size=2)))), next(
        iter(get_loader(validate(texts, Bare(), batch_size=2)))
    )


@case("TaskEncoder.batch_group_criterion")
def groups_of_an_encoder():
    class Groups(DefaultTaskEncoder):
        def batch_group_criterion(self, sample):
            return int(sample.text.split()[1]) % 2, None

    batches = [
        sorted(int(text.split()[1]) for text in batch.text)
        for batch in get_loader(validate(texts, Groups(), batch_size=3))
    ]
    return sorted(batches)


@case("TaskEncoder.encode_sample (generator)", "TaskEncoder.current_sample_index")
def generators_of_an_encoder():
    class Twice(DefaultTaskEncoder):
        @stateless
        def encode_sample(self, sample):
            for number in range(2):
                yield TextSample.derive_from(sample, text=f"{sample.text}/{number}")

    class Counts(DefaultTaskEncoder):
        @stateless
        def encode_sample(self, sample):
            return TextSample.derive_from(sample, text=str(self.current_sample_index))

    counted = [sample.text for sample in get_loader(validate(texts, Counts()))]
    return [sample.text for sample in get_loader(validate(texts, Twice()))][:4], counted


@case("TaskEncoder.build_train_datasets", "TaskEncoder.build_val_datasets", "TaskEncoder.build_batch")
def builders_that_extend_the_default():
    class Builds(DefaultTaskEncoder):
        def build_train_datasets(self, **options):
            dataset = super().build_train_datasets(**options)
            return MapDataset(
                dataset, lambda sample: sample.text.upper(), worker_config=options["worker_config"]
            )

        def build_val_datasets(self, **options):
            dataset = super().build_val_datasets(**options)
            return MapDataset(
                dataset, lambda sample: sample.text.title(), worker_config=options["worker_config"]
            )

    found = {text.split()[0] for text in itertools.islice(get_loader(train(mixture, Builds())), 100)}
    return sorted(found), next(iter(get_loader(validate(texts, Builds()))))


@case("stateless(restore_seeds)", "stateless(failure_tolerance)")
def marks_of_functions():
    @stateless
    def bare(value):
        return value

    @stateless(failure_tolerance=7)
    def tolerant(value):
        return value

    @stateless(restore_seeds=True)
    def seeded(value):
        return value

    return get_stateless(bare), get_stateless(seeded), tolerant.__failure_tolerance__, get_stateless(len)


@case("AugmentTaskEncoder")
def augmented_encoders():
    class Shouts(AugmentTaskEncoder):
        @stateless
        def encode_sample(self, sample):
            sample = super().encode_sample(sample)
            sample.text += "!"
            return sample

    return next(iter(get_loader(validate(texts, Shouts(DefaultTaskEncoder()))))).text


@case("log_exception", "reraise_exception", "WorkerConfig(global_error_handler)")
def handlers_of_errors():
    class Fails(DefaultTaskEncoder):
        @stateless
        def encode_sample(self, sample):
            if sample.text in ("text 3", "text 8"):
                raise ValueError(sample.text)
            return sample

    config = WorkerConfig(rank=0, world_size=1, num_workers=0, global_error_handler=reraise_exception)
    strict = get_val_dataset(
        texts, split_part="train", worker_config=config, batch_size=None, task_encoder=Fails()
    )
    log_exception(ValueError("x"), {"__key__": "k"}, None)
    return len(list(get_loader(validate(texts, Fails())))), kind_of(lambda: list(get_loader(strict)))


# Cookers, stores and pools


@case("Cooker", "CrudeSample", "TaskEncoder.cook_crude_sample", "Cooker(has_subflavors)")
def cookers_by_subflavors():
    def cook(word):
        @stateless
        def cooked(crude):
            assert isinstance(crude, CrudeSample)
            return TextSample(**basic_sample_keys(crude), text=f"{word} {crude['txt']}")

        return cooked

    class Cooks(DefaultTaskEncoder):
        cookers = [Cooker(cook("one"), has_subflavors={"x": 1}), Cooker(cook("other"))]

    entries = [{"weight": 1, "path": "./crude", "subflavors": {"x": 1}}, {"weight": 1, "path": "./crude"}]
    path = write_yaml("cookers.yaml", {"blend": entries})
    return sorted(
        {sample.text.split()[0] for sample in itertools.islice(get_loader(train(path, Cooks())), 60)}
    )


@case("CrudeJsonlDatasetFactory.prepare_dataset", "jsonl datasets")
def lines_of_json():
    path = FOLDER / "lines.jsonl"
    path.write_text("".join(json.dumps({"txt": f"line {number}"}) + "\n" for number in range(5)))
    count = CrudeJsonlDatasetFactory.prepare_dataset(EPath(path))

    @stateless
    def cook(crude):
        return TextSample(**basic_sample_keys(crude), text=crude["json"]["txt"])

    class Cooks(DefaultTaskEncoder):
        cookers = [Cooker(cook)]

    samples = list(get_loader(train(path, Cooks(), repeat=False)))
    return count, sorted((sample.__key__, sample.text) for sample in samples)


@case("SystemFileStore", "SystemFileStore(base_dir)", "FileStore.get_path", "DecodeFileStore", "SourceInfo")
def files_of_a_folder():
    (FOLDER / "note.json").write_text('{"a": 1}')
    store = SystemFileStore(EPath(FOLDER))
    decoded = DecodeFileStore(store, decoder=SampleDecoder())
    sample = TextSample(**META, __sources__=(), text="t")
    data = store.get("note.json", sample)
    (source,) = sample.__sources__
    return plain(
        [data, decoded.get("note.json", sample), str(store.get_path()) == str(FOLDER), source.file_names]
    )


@case(
    "PrimaryFileStore",
    "cooker(need_primary)",
    "cooker(need_cache)",
    "CachePool.get",
    "CachePool.get_lazy",
    "Lazy.get",
)
def stores_of_a_cooker():
    @stateless
    @cooker(need_cache=True, need_primary=True)
    def cook(crude, primary, cache):
        assert isinstance(primary, PrimaryFileStore)
        assert isinstance(cache, CachePool)
        name = f"{crude['__key__']}.txt"
        found = [cache.get(primary, name, crude), cache.get(primary, ".txt", crude)]
        return TextSample(**basic_sample_keys(crude), text=[found, cache.get_lazy(primary, name)])

    class Cooks(DefaultTaskEncoder):
        cookers = [Cooker(cook)]

        @stateless
        def postencode_sample(self, sample):
            found, lazy = sample.text
            sample.text = [*found, lazy.get(sample)]
            return sample

    pool = FileStoreCachePool(parent_cache_dir=FOLDER / "pool", num_workers=1)
    answers = []
    for chosen in (NoCachePool(), pool):
        loader = get_loader(validate(crude, Cooks()), cache_pool=chosen)
        answers.append(plain(sorted(sample.text for sample in loader)[:2]))
    return answers


@case("CachePool.to_cache", "FileStoreCachePool", "NoCachePool")
def values_in_pools():
    answers = []
    for pool in (NoCachePool(), FileStoreCachePool(parent_cache_dir=FOLDER / "values", num_workers=1)):
        sample = TextSample(**META, text="t")
        answers.append(plain(pool.to_cache([1, "a"], "name").get(sample)))
        pool.close()
    return answers


@case("metadataset: aux")
def auxiliary_data():
    path = write_yaml(
        "aux.yaml", {"path": "./crude", "aux": {"words": "./texts", "files": "filesystem://./folder"}}
    )
    (FOLDER / "folder").mkdir()
    (FOLDER / "folder" / "a.txt").write_text("file")

    @stateless
    def cook(crude, words, files):
        found = words.get(f"{crude['__key__']}.txt", crude), files.get("a.txt", crude)
        return TextSample(**basic_sample_keys(crude), text=found)

    class Cooks(DefaultTaskEncoder):
        cookers = [Cooker(cook)]

    samples = sorted(get_loader(train(path, Cooks(), repeat=False)), key=lambda sample: sample.__key__)
    return plain([samples[0].text, len(samples[0].__sources__)])


# Decoding


def png(number):
    buffer = io.BytesIO()
    Image.fromarray(np.full((2, 3, 3), [number, 100, 200], dtype=np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


@case("SampleDecoder", "SampleDecoder(image_decode)", "TaskEncoder.decoder")
def modes_of_image_decoding():
    modes = "l8 rgb8 rgba8 l rgb rgba torchl8 torchrgb8 torchrgba8 torchl torchrgb torch torchrgba pill pil pilrgb pilrgba"
    answers = []
    for mode in modes.split():

        class Decodes(DefaultTaskEncoder):
            decoder = SampleDecoder(image_decode=mode)

        image = next(iter(get_loader(validate(pictures, Decodes())))).image
        if isinstance(image, Image.Image):
            answers.append([mode, image.mode, list(image.size), next(iter(image.getdata()))])
        else:
            first = np.asarray(image, dtype=float).reshape(-1)[0]
            answers.append(
                [mode, type(image).__name__, str(image.dtype), list(image.shape), round(float(first), 4)]
            )
    return answers


@case("SampleDecoder.decode")
def parts_by_extension():
    def saved(save, value):
        buffer = io.BytesIO()
        save(buffer, value)
        return buffer.getvalue()

    parts = {
        "json": b'{"a": [1]}',
        "jsonl": b'{"a": 1}\n{"b": 2}\n',
        "txt": "käse".encode(),
        "text": b"t",
        "cls": b"7",
        "index": b"5",
        "id": b"9",
        "npy": saved(np.save, np.arange(3)),
        "npz": saved(lambda buffer, value: np.savez(buffer, a=value), np.arange(2)),
        "pth": saved(lambda buffer, value: torch.save(value, buffer), torch.arange(2)),
        "bin": b"zz",
    }
    decoder = SampleDecoder()
    return {name: plain(decoder.decode(f"x.{name}", data)) for name, data in parts.items()}


@case("decoder = None")
def parts_that_stay_bytes():
    class Leaves(DefaultTaskEncoder):
        decoder = None

    return type(next(iter(get_loader(validate(pictures, Leaves())))).image).__name__


@case("field_map: alternatives and places in JSON")
def field_maps():
    mapped = write_tars(
        "mapped",
        {
            "sample_type": {"__module__": "megatron.energon", "__class__": "TextSample"},
            "field_map": {"text": "json[words][1]"},
        },
        parts={"json": lambda number: json.dumps({"words": ["a", f"word {number}"]}).encode()},
    )
    return sorted(sample.text for sample in get_loader(validate(mapped)))[:3]


# Configurations and paths


@case(
    "WorkerConfig",
    "WorkerConfig.default_worker_config",
    "WorkerConfig.global_rank",
    "WorkerConfig(seed_offset)",
)
def configurations():
    default = WorkerConfig.default_worker_config(3)
    config = WorkerConfig(rank=1, world_size=4, num_workers=2, seed_offset=7)
    return (
        [
            default.rank,
            default.world_size,
            default.num_workers,
            WorkerConfig.default_worker_config().num_workers,
        ],
        [config.rank, config.world_size, config.num_workers, config.seed_offset],
        config == WorkerConfig(rank=1, world_size=4, num_workers=2, seed_offset=7),
        failure(lambda: WorkerConfig(rank=0, world_size=1)) != "no error",
    )


@case("ranks see disjoint data")
def shares_of_ranks():
    found = []
    for rank in range(2):
        config = WorkerConfig(rank=rank, world_size=2, num_workers=0)
        dataset = get_train_dataset(
            texts,
            worker_config=config,
            batch_size=None,
            shuffle_buffer_size=None,
            max_samples_per_sequence=2,
            repeat=False,
        )
        found.append({sample.text for sample in get_loader(dataset)})
    return len(found[0]), len(found[1]), len(found[0] & found[1])


@case(
    "EPath",
    "EPath.name",
    "EPath.parent",
    "EPath.is_dir",
    "EPath.is_file",
    "EPath.is_local",
    "EPath.read_text",
    "EPath.write_text",
    "EPath.read_bytes",
    "EPath.write_bytes",
    "EPath.relative_to",
    "EPath.with_suffix",
    "EPath.url",
    "EPath.mkdir",
    "EPath.size",
    "EPath.unlink",
    "EPath.open",
    "EPath.walk",
    "EPath.copy",
    "EPath.move",
    "EPath.display_name",
    "EPath.local_path",
)
def paths():
    root = EPath(FOLDER / "paths")
    root.mkdir()
    file = root / "deep" / "a.txt"
    (root / "deep").mkdir()
    file.write_text("text")
    (root / "b.bin").write_bytes(b"12")
    (root / "b.bin").copy(root / "c.bin")
    (root / "c.bin").move(root / "d.bin")
    with (root / "d.bin").open("rb") as stream:
        read = stream.read()
    answers = [
        file.name,
        file.parent.name,
        [root.is_dir(), file.is_dir(), file.is_file(), root.is_local()],
        file.read_text(),
        read.decode(),
        str(file.relative_to(root)),
        file.with_suffix(".json").name,
        file.url.endswith("/paths/deep/a.txt"),
        file.size(),
        sorted(path.name for path in root.glob("*.bin")),
        sorted(path.name for path in root.glob("[a-b].bin")),
        sorted(path.name for path in root.walk()),
        str(file / ".." / "b") == str(root / "deep" / "b"),
        root == EPath(str(FOLDER / "paths")),
        os.fspath(file.local_path()).endswith("paths/deep/a.txt")
        if callable(file.local_path)
        else str(file.local_path).endswith("a.txt"),
    ]
    (root / "b.bin").unlink()
    return [*answers, (root / "b.bin").is_file()]


@case("GroupBatchDataset(fixed_batch_size)", "SourceInfo(file_names)")
def sources_of_samples():
    sample = next(iter(get_loader(validate(texts))))
    (source,) = sample.__sources__
    assert isinstance(source, SourceInfo)
    return (
        os.path.basename(str(source.dataset_path)),
        source.index,
        source.shard_name,
        list(source.file_names),
    )


crude = write_tars("crude", {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"})
pictures = write_tars(
    "pictures",
    {
        "sample_type": {"__module__": "megatron.energon", "__class__": "ImageSample"},
        "field_map": {"image": "png"},
    },
    parts={"png": png},
)

run_cases()
