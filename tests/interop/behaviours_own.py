"""Datasets that programs for Megatron-Energon 7.4.1 wrote themselves: pools, packers, wrappers with a state.

See ``behaviours.py``. The classes are modelled on those of public programs.
"""

import collections
import copy
import dataclasses
import gc
import itertools
import pickle
import random

import numpy as np
import torch
from behaviours_common import CONFIG, case, more, run_cases, texts, train, validate
from megatron.energon import (
    Batch,
    BatchDataset,
    BlendDataset,
    DefaultTaskEncoder,
    FilterDataset,
    LimitDataset,
    MapDataset,
    PackingDataset,
    RepeatDataset,
    Sample,
    SavableDataset,
    TextSample,
    WorkerConfig,
    edataclass,
    generic_concat,
    get_savable_loader,
    get_val_dataset,
    homogeneous_concat_mix,
    stateless,
)
from megatron.energon.rng import WorkerRng
from megatron.energon.savable_loader import _init_worker
from megatron.energon.wrappers.base import BaseWrapperDataset, SampleIndex
from megatron.energon.wrappers.buffer import SavableSampleBuffer
from megatron.energon.wrappers.gc_dataset import gc_init_worker


class SortedPool(SavableDataset):
    """Gathers samples, and returns them by length; its state is that of the inner dataset."""

    def __init__(self, dataset, *, size, worker_config):
        super().__init__(worker_config=worker_config)
        self.dataset, self.size = dataset, size
        self._rng = random.Random(7)

    def __len__(self):
        return len(self.dataset)

    def __iter__(self):
        pool = []
        for number, sample in enumerate(self.dataset):
            pool.append(sample)
            if len(pool) >= self.size:
                pool.sort(key=lambda sample: (len(sample.text), sample.text), reverse=True)
                random.Random(42 + number).shuffle(pool)
                yield from pool
                pool.clear()
        self._rng.shuffle(pool)
        yield from pool

    def len_worker(self, worker_idx=None):
        return self.dataset.len_worker(worker_idx)

    def worker_has_samples(self):
        return self.dataset.worker_has_samples()

    def can_restore_sample(self):
        return self.dataset.can_restore_sample()

    def assert_can_restore(self):
        self.dataset.assert_can_restore()

    def restore_sample(self, restore_key):
        return self.dataset.restore_sample(restore_key)

    def save_state(self):
        return self.dataset.save_state()

    def restore_state(self, state):
        self.dataset.restore_state(state)

    def reset_state_own(self):
        pass

    def config(self):
        return {"type": type(self).__qualname__, "size": self.size, "dataset": self.dataset.config()}


class Joined(BaseWrapperDataset):
    """Joins the texts of some samples, of which it keeps those that are left in a buffer."""

    _savable_fields = ("_buffer", "_rng", "_index", "_made")

    def __init__(self, dataset, *, size, worker_config):
        super().__init__(dataset, worker_config=worker_config)
        self.size = size
        self._buffer = SavableSampleBuffer(dataset, worker_config=worker_config)
        self._rng = WorkerRng(worker_config)
        self._index = SampleIndex(worker_config, src=self)
        self.reset_state_own()

    def reset_state_own(self):
        self._buffer.reset_state_own()
        self._rng = WorkerRng(self.worker_config)
        self._index = SampleIndex(self.worker_config, src=self)
        self._made = 0

    def len_worker(self, worker_idx=None):
        return self.dataset.len_worker(worker_idx) // self.size

    def _make(self, samples):
        with self._index.ctx() as index:
            self._made += 1
            chosen = self._rng.randbelow(3)
            text = "+".join(sample.text.split()[-1] for sample in samples)
            return TextSample.derive_from(samples[0], text=f"{self._made}/{index}/{chosen}:{text}")

    def __iter__(self):
        self._buffer.worker_start()
        for _ in self._buffer.append_iter():
            if len(self._buffer.buffer) > self.size + 1:
                yield self._make([self._buffer.pop(0) for _ in range(self.size)])
        while len(self._buffer.buffer):
            count = min(self.size, len(self._buffer.buffer))
            yield self._make([self._buffer.pop(0) for _ in range(count)])

    def config(self):
        return {"type": "Joined", "size": self.size, "dataset": self.dataset.config()}


class Numbered(BaseWrapperDataset):
    """Numbers samples with a counter that it saves itself."""

    def __init__(self, dataset, *, worker_config):
        super().__init__(dataset, worker_config=worker_config)
        self.reset_state_own()

    def reset_state_own(self):
        self.count = 0

    def len_worker(self, worker_idx=None):
        return self.dataset.len_worker(worker_idx)

    def __iter__(self):
        for sample in self.dataset:
            self.count += 1
            yield TextSample.derive_from(sample, text=f"{self.count}. {sample.text}")

    def save_state(self):
        return {"count": self.count, "inner": self.dataset.save_state()}

    def restore_state(self, state):
        self.count = state["count"]
        self.dataset.restore_state(state["inner"])

    def config(self):
        return {"type": "Numbered", "dataset": self.dataset.config()}


class Doubled(BaseWrapperDataset):
    """Returns each sample and a copy of it, and nothing of every third."""

    def reset_state_own(self):
        pass

    def len_worker(self, worker_idx=None):
        return self.dataset.len_worker(worker_idx) * 2

    def __iter__(self):
        for sample in self.dataset:
            if int(sample.text.split()[-1]) % 3 != 2:
                yield sample
                yield TextSample.derive_from(sample, text=sample.text.upper())

    def config(self):
        return {"type": "Doubled", "dataset": self.dataset.config()}


def source(path=texts, workers=0):
    return validate(path) if not workers else _validate(path, workers)


def _validate(path, workers):
    return get_val_dataset(path, split_part="train", worker_config=_config(workers), batch_size=None)


def _config(workers):
    return WorkerConfig(rank=0, world_size=1, num_workers=workers)


def _build(kind, workers):
    config, inner = _config(workers), _validate(texts, workers)
    if kind == "pool":
        return SortedPool(inner, size=5, worker_config=config)
    if kind == "joined":
        return Joined(inner, size=2, worker_config=config)
    if kind == "numbered":
        return Numbered(inner, worker_config=config)
    if kind == "doubled":
        return Doubled(inner, worker_config=config)
    if kind == "nested":
        return Doubled(
            Numbered(Doubled(inner, worker_config=config), worker_config=config), worker_config=config
        )
    assert kind == "mapped"
    inner = MapDataset(Numbered(inner, worker_config=config), _shout, worker_config=config)
    return Doubled(inner, worker_config=config)


def _shout(sample):
    return TextSample.derive_from(sample, text=f"oh {sample.text}")


def _texts(batches):
    return [batch.text for batch in batches]


def _take(iterator, count):
    return _texts(itertools.islice(iterator, count))


KINDS = ("pool", "joined", "numbered", "doubled", "nested", "mapped")


@case("BaseWrapperDataset", "SavableSampleBuffer", "SampleIndex", "WorkerRng")
def passes():
    return {kind: _texts(get_savable_loader(_build(kind, 0))) for kind in KINDS}


@case()
def passes_in_workers():
    return {kind: _texts(get_savable_loader(_build(kind, 2))) for kind in KINDS}


def _resumes(kind, workers, after):
    loader = get_savable_loader(_build(kind, workers), checkpoint_every_sec=0)
    batches = iter(loader)
    taken = _take(batches, after)
    state = loader.save_state_rank()
    rest = _texts(batches)
    again = get_savable_loader(_build(kind, workers), checkpoint_every_sec=0)
    again.restore_state_rank(state)
    found = _texts(again)
    return len(taken), len(rest), found == rest


@case()
def resumed():
    """The others lose elements there, which ``tests/compat/test_own_datasets.py`` shows are kept here."""
    return {kind: [_resumes(kind, 0, after) for after in (1, 3, 4)] for kind in ("joined", "numbered")}


def _attributes(sample):
    return [hasattr(sample, "__dict__"), dict(vars(sample)), sorted(dataclasses.asdict(sample))]


@case("TextSample", "Sample")
def attributes():
    """Samples have a ``__dict__``, which holds what a program sets beside the fields."""
    sample = TextSample(__key__="a", __restore_key__=(), text="t")
    before = _attributes(sample)
    sample.tag = 3
    changed = dataclasses.replace(sample, text="u")
    copies = [copy.copy(sample), copy.deepcopy(sample), pickle.loads(pickle.dumps(sample))]
    derived = [TextSample.derive_from(sample, text="v"), TextSample.extend(sample, text="w")]
    return {
        "before": before,
        "tagged": _attributes(sample),
        "replaced": [changed.text, vars(changed)],
        "copies": [[each.text, vars(each)] for each in copies],
        "derived": [[each.text, vars(each)] for each in derived],
        "equal": [sample == copies[0], sample == changed],
        "missing": getattr(sample, "other", "none"),
    }


@edataclass
class Own(Sample):
    number: int


@edataclass
class Texts(Batch):
    text: list


@edataclass
class NoSample:
    number: int


@dataclasses.dataclass
class Plain(Sample):
    number: int = 0


@case("edataclass", "Batch")
def attributes_of_own_types():
    sample, batch = (
        Own(__key__="a", __restore_key__=(), number=1),
        Texts(__key__=["a"], __restore_key__=(), text=[]),
    )
    plain = Plain(__key__="a", __restore_key__=(), number=1)
    other = NoSample(number=1)
    for value in (sample, batch, plain):
        value.tag = 1
    return [vars(sample), vars(batch), sorted(vars(plain)), hasattr(other, "__dict__")]


class Tagging(DefaultTaskEncoder):
    def encode_sample(self, sample):
        sample.tag = sample.text
        return sample

    def batch(self, samples):
        made = Texts.from_samples(samples)
        made.tags = [sample.tag for sample in samples]
        return made


@case()
def tags_in_a_loader():
    found = {}
    for workers in (0, 2):
        dataset = get_val_dataset(
            texts, split_part="train", worker_config=_config(workers), batch_size=None, task_encoder=Tagging()
        )
        found[f"samples, {workers} workers"] = [vars(sample) for sample in get_savable_loader(dataset)][:4]
        dataset = get_val_dataset(
            texts, split_part="train", worker_config=_config(workers), batch_size=2, task_encoder=Tagging()
        )
        found[f"batches, {workers} workers"] = [vars(sample) for sample in get_savable_loader(dataset)][:4]
    return found


def _activated(function):
    CONFIG.worker_activate(0)
    try:
        return function()
    except Exception as error:
        return type(error).__name__
    finally:
        CONFIG.worker_deactivate()


def _endless():
    return train(texts, batch_size=2, worker_config=CONFIG)


def _position(build, before, after):
    """Go on from a state in another dataset."""
    dataset = build()
    batches = iter(dataset)
    first = _take(batches, before)
    state = pickle.loads(pickle.dumps(dataset.save_state()))
    rest = _take(batches, after)
    other = build()
    other.restore_state(state)
    return [len(first), len(rest), _take(iter(other), after) == rest]


@case("SavableDataset.save_state", "SavableDataset.restore_state", "SavableDataset.reset_state_deep")
def positions():
    """Datasets that a program iterates itself have a position."""

    def goes_on():
        dataset = _endless()
        parts = _take(iter(dataset), 3) + _take(iter(dataset), 3)
        return parts == _take(iter(_endless()), 6)

    def of_the_start():
        dataset = _endless()
        state = dataset.save_state()
        first = _take(iter(dataset), 3)
        other = _endless()
        other.restore_state(state)
        return _take(iter(other), 3) == first

    def passes():
        dataset = validate(texts, batch_size=5)
        first = _texts(dataset)
        state = dataset.save_state()
        other = validate(texts, batch_size=5)
        other.restore_state(state)
        return [len(first), _texts(dataset) == first, _texts(other) == first]

    def in_a_pass():
        dataset = validate(texts, batch_size=5)
        _take(iter(dataset), 1)
        state = dataset.save_state()
        other = validate(texts, batch_size=5)
        other.restore_state(state)
        return [len(_texts(other)), len(_texts(other))]

    return {
        "endless": _activated(lambda: _position(_endless, 3, 4)),
        "finite": _activated(lambda: _position(lambda: validate(texts, batch_size=3), 2, 2)),
        "numbered": _activated(lambda: _position(lambda: _build("numbered", 0), 5, 4)),
        "goes on": _activated(goes_on),
        "of the start": _activated(of_the_start),
        "passes": _activated(passes),
        "in a pass": _activated(in_a_pass),
    }


@case("SavableDataset.reset_state_deep", "SavableDataset.reset_state_own")
def reset():
    def again():
        dataset = validate(texts, batch_size=5)
        first = _take(iter(dataset), 1)
        dataset.reset_state_deep()
        return _take(iter(dataset), 1) == first

    return _activated(again)


@case("SavableDataset.len_worker", "SavableDataset.len_rank", "SavableDataset.worker_has_samples")
def lengths():
    found = {}
    for kind in KINDS:
        for workers in (0, 2):
            dataset = _build(kind, workers)
            found[f"{kind}, {workers} workers"] = [
                len(dataset), dataset.len_rank(), dataset.len_worker(0), dataset.can_restore_sample(),
                len(get_savable_loader(dataset)),
            ]  # fmt: skip
    return found


@case()
def over_a_blend():
    """A wrapper of a blend, and a blend of wrappers: which samples come, and how they are numbered."""
    first, second = validate(texts), validate(more)
    blend = BlendDataset((first, 1.0), (second, 1.0), worker_config=CONFIG)
    numbered = _texts(get_savable_loader(Numbered(blend, worker_config=CONFIG)))
    wrapped = [(Numbered(each, worker_config=CONFIG), 1.0) for each in (first, second)]
    blended = _texts(get_savable_loader(BlendDataset(*wrapped, worker_config=CONFIG)))
    return [
        [text.split()[0] for text in numbered],
        sorted(text.split(". ")[1] for text in numbered),
        sorted(blended),
    ]


@case("generic_concat", "homogeneous_concat_mix", "MixBatchDataset(batch_mix_fn)")
def lists_of_batches():
    """Lists stay nested."""
    batches = [Texts(__key__=[key], __restore_key__=(key,), text=[key, key]) for key in "ab"]
    joined, mixed = generic_concat(batches), homogeneous_concat_mix(batches)
    return [
        generic_concat([["a"], ["b", "c"]]),
        generic_concat([{"text": ["a", "b"], "n": {"m": ["x"]}}, {"text": ["c"], "n": {"m": ["y"]}}]),
        generic_concat([("a",), ("b",)]),
        homogeneous_concat_mix([["a"], ["b"]]),
        [joined.text, joined.__key__, joined.__restore_key__, joined.__subflavors__],
        [mixed.text, mixed.__key__],
    ]


@case("LimitDataset", "LimitDataset(reset_after_epoch)")
def limits():
    """Each pass begins with the first element."""
    found = {}
    for resets in (False, True):
        limited = LimitDataset(validate(texts), 5, reset_after_epoch=resets, worker_config=CONFIG)
        loader = get_savable_loader(limited)
        found[f"passes, {resets}"] = [_texts(loader) for _ in range(3)]
        limited = LimitDataset(train(texts), 5, reset_after_epoch=resets, worker_config=CONFIG)
        loader = get_savable_loader(limited)
        found[f"endless, {resets}"] = _texts(loader) == _texts(loader)
        limited = LimitDataset(validate(texts), 3, reset_after_epoch=resets, worker_config=CONFIG)
        found[f"repeated, {resets}"] = _texts(
            get_savable_loader(RepeatDataset(limited, repeats=2, worker_config=CONFIG))
        )
    return found


class Selecting(DefaultTaskEncoder):
    """Packs of samples, of copies that the selector changed, and of parts of samples."""

    def select_samples_to_pack(self, samples):
        packs = []
        for sample in samples:
            word, number = sample.text.split()
            packs.append([dataclasses.replace(sample, text=word.upper()), sample])
            packs.append([dataclasses.replace(sample, text=number), copy.copy(sample)])
        return [*packs, samples, samples[:1]]

    def pack_selected_samples(self, samples):
        return TextSample.derive_from(samples[0], text="+".join(sample.text for sample in samples))


@case("TaskEncoder.select_samples_to_pack", "DefaultTaskEncoder.select_samples_to_pack")
def selected_copies():
    """Selectors may return changed copies of samples, and samples several times."""
    dataset = validate(texts, Selecting(), packing_buffer_size=5)
    return _texts(get_savable_loader(dataset))


@case()
def overridden_hooks():
    """Own pipelines ask which hooks an encoder overrides."""
    hooks = ("encode_sample", "encode_batch", "batch", "preencode_sample", "select_samples_to_pack")
    encoders = (DefaultTaskEncoder(), Tagging(), Selecting())
    return [
        [[each._is_overridden(getattr(each, hook)) for hook in hooks] for each in encoders],
        [each._is_overridden(each.encode_sample, [Tagging]) for each in encoders],
    ]


class Pooling(DefaultTaskEncoder):
    """Puts a pool between encoding and batching, as public encoders do."""

    def encode_sample(self, sample):
        sample.length = len(sample.text)
        return sample

    def build_train_datasets(self, *, datasets, worker_config, batch_size, **options):
        inner = super().build_train_datasets(
            datasets=datasets, worker_config=worker_config, batch_size=None, **options
        )
        pool = SortedPool(inner, size=6, worker_config=worker_config)
        return self.build_batch(pool, batch_size=batch_size, worker_config=worker_config)


@case("TaskEncoder.build_train_datasets", "TaskEncoder.build_batch")
def pool_in_an_encoder():
    """The texts of some batches, without their order."""
    found = {}
    for workers in (0, 2):
        dataset = train(texts, Pooling(), batch_size=3, workers=workers)
        batches = [batch.text for batch in itertools.islice(get_savable_loader(dataset), 8)]
        found[f"{workers} workers"] = [
            [*map(len, batches)],
            sorted({text for batch in batches for text in batch}),
        ]
    return found


class Counting:
    """Numbers what an operator of the library yields, beside the state of the operator."""

    def reset_state_own(self):
        super().reset_state_own()
        self.made = 0

    def __iter__(self):
        for sample in super().__iter__():
            self.made += 1
            yield TextSample.derive_from(sample, text=f"{self.made}. {sample.text}")


def counting(kind):
    fields = (*kind._savable_fields, "made")
    return type(f"Counting{kind.__name__}", (Counting, kind), {"_savable_fields": fields})


def _join(samples):
    return TextSample.derive_from(samples[0], text="+".join(sample.text for sample in samples))


def _twice(sample):
    yield from (sample, sample)


def _of_counting(kind):
    options, inner = {"worker_config": CONFIG}, validate(texts)
    if kind is PackingDataset:
        options |= {"buffer_size": 5, "final_packer": _join, "final_packer_stateless": True}
        options |= {"pre_packer": lambda samples: [samples[:3], samples[3:]] if samples[3:] else [samples]}
        return counting(kind)(inner, **options)
    if kind is BatchDataset:
        return counting(kind)(inner, batch_size=5, batcher=_join, **options)
    arguments = {
        FilterDataset: {"filter_fn": lambda sample: sample.text[-1] != "3"},
        LimitDataset: {"length": 7},
        MapDataset: {"map_fn": _twice},
        RepeatDataset: {"repeats": 2},
    }
    return counting(kind)(inner, **arguments[kind], **options)


OPERATORS = (BatchDataset, FilterDataset, LimitDataset, MapDataset, PackingDataset, RepeatDataset)


@case("SavableDataset._savable_fields", "PackingDataset._savable_fields")
def operators_with_more_state():
    """Classes that derive from operators add attributes to what these save."""
    found = {}
    for kind in OPERATORS:
        loader = get_savable_loader(_of_counting(kind), checkpoint_every_sec=0)
        batches = iter(loader)
        taken = _take(batches, 2)
        state = loader.save_state_rank()
        rest = _texts(batches)
        again = get_savable_loader(_of_counting(kind), checkpoint_every_sec=0)
        again.restore_state_rank(state)
        found[kind.__name__] = [taken, rest, _texts(again) == rest]
    return found


@case("savable_loader._init_worker", "wrappers.gc_dataset.gc_init_worker")
def workers_begin():
    """A loader of one's own passes these functions to its workers."""
    _init_worker([11, 22], 1)
    drawn = [torch.initial_seed(), random.random(), np.random.rand(), torch.rand(1).item()]
    before = gc.get_freeze_count()
    return drawn, gc_init_worker(0), gc.get_freeze_count() - before


Pair = collections.namedtuple("Pair", "first second")
NESTED = {"x": (1, (2, [3, (4,)]))}
FIELDS = {"pair": (1, 2), "nested": NESTED, "named": Pair(1, (2,)), "array": np.ones(2)}


@edataclass
class Mixed(Batch):
    pair: tuple
    nested: dict
    named: Pair
    array: np.ndarray


@dataclasses.dataclass
class Fields:
    pair: tuple
    nested: dict
    named: Pair
    array: np.ndarray
    __restore_key__: tuple = ()


MADE = {
    "batch": lambda keys: Mixed(__key__=keys, __restore_key__=(), **FIELDS),
    "dataclass": lambda keys: Fields(**FIELDS),
    "dict": lambda keys: dict(FIELDS, __restore_key__=()),
    "dataclass in a dict": lambda keys: {"one": Fields(**FIELDS), "list": [Fields(**FIELDS)]},
    "list": lambda keys: [(1, 2), [(3,)], np.float32(1)],
    "tuple": lambda keys: ((1, 2), [(3,)], np.arange(2)),
    "named": lambda keys: Pair((1,), {"x": (np.ones(1),)}),
    "others": lambda keys: {
        "ordered": collections.OrderedDict(a=(1,)), "default": collections.defaultdict(list, a=(1,)),
        "deque": collections.deque([(1,)]), "range": range(2), "set": {1}, "bytes": b"x", "bytearray": bytearray(b"y"),
        "integer": np.int64(3), "texts": np.array(["a"]), "objects": np.array([(1,)], dtype=object), "none": None,
    },
}  # fmt: skip


def _shape(value):
    if dataclasses.is_dataclass(value):
        value = {name: each for name, each in vars(value).items() if name[:2] != "__"}
    if isinstance(value, dict):
        return [
            type(value).__name__,
            {name: _shape(each) for name, each in value.items() if name[:2] != "__"},
        ]
    if isinstance(value, (list, tuple, collections.deque)):
        return [type(value).__name__, *map(_shape, value)]
    return f"{type(value).__name__} {getattr(value, 'dtype', value)}"


class Making(DefaultTaskEncoder):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    @stateless
    def batch(self, samples):
        return MADE[self.kind]([sample.__key__ for sample in samples])


@case("containers of batches: tuples and arrays in dataclasses, dicts, lists and tuples")
def containers_of_batches():
    """Loaders convert what is in containers, and not in dataclasses; datasets convert nothing."""
    found = {}
    for kind in MADE:
        for workers in (0, 1):
            options = {"worker_config": _config(workers), "batch_size": 2, "task_encoder": Making(kind)}
            loader = get_savable_loader(get_val_dataset(texts, split_part="train", **options))
            batch = next(iter(loader))
            found[f"{kind}, {workers} workers"] = _shape(batch)
        if isinstance(batch, dict) and "__restore_key__" in batch:
            key = batch["__restore_key__"]
            found["restored"] = [
                type(key).__name__,
                type(key[-1]).__name__,
                _shape(loader.restore_sample(key)),
            ]
        dataset = validate(texts, Making(kind), batch_size=2)
        found[f"{kind}, dataset"] = _activated(lambda: _shape(next(iter(dataset))))  # noqa: B023 # called here
    return found


class Dicts(DefaultTaskEncoder):
    def encode_sample(self, sample):
        return {name: getattr(sample, name) for name in ("__key__", "__restore_key__", "__sources__", "text")}


class Joining(DefaultTaskEncoder):
    def batch(self, samples):
        return Texts.from_samples(samples)


@case("generic_batch", "Batch.from_samples", "Batch.__sources__")
def sources_of_batches():
    """Those of each sample, but for ``from_samples``, which makes one list of them."""
    found = []
    for encoder in (DefaultTaskEncoder(), Dicts(), Joining()):
        batch = next(iter(get_savable_loader(validate(texts, encoder, batch_size=2))))
        sources = batch["__sources__"] if isinstance(batch, dict) else batch.__sources__
        found.append([type(sources).__name__, *[_names(source) for source in sources]])
    return found


def _names(source):
    return (
        [type(source).__name__, *map(_names, source)]
        if isinstance(source, (list, tuple))
        else source.file_names
    )


if __name__ == "__main__":
    run_cases()
