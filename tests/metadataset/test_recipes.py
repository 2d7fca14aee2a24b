"""Recipes of Megatron-Energon 8: their rules, as small models of these tests say them."""

import pickle
import random
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial

import pytest
from mixtures import ALONE, Texts, text_dataset, texts, train, val, write

from energon_stream import (
    Batch,
    Cooker,
    CrudeSample,
    DefaultTaskEncoder,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    edataclass,
    get_savable_loader,
    get_train_dataset,
    load_dataset,
    traverse_metadataset,
)
from energon_stream.errors import ConfigError, LimitError, MetadataError
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import write_shards

RECIPE = {"__module__": "megatron.energon", "__class__": "Recipe"}
CRUDE = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}
NAMES = ("a", "b", "c")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("recipes")
    for name in NAMES:
        text_dataset(made / name, name, per_shard=10, shards=2, split_ratio=(1, 0, 0))
    text_dataset(
        made / "inner", "i", per_shard=5, shards=2, split_ratio=(1, 0, 0), subflavors={"k": "in", "own": 1}
    )
    return made


def recipe(node, **splits):
    return {**RECIPE, "splits": {"train": node, **splits}}


# The rules: weights are normalised at each node and multiplied along the path; outer tags win; integers
# multiply, -1 beats them, and None beats all; percentages compose, the inner range first.


def flat(node, files, weight=Fraction(1)):
    """``(path, weight, tags, multipliers, ranges)`` of each leaf, from the outermost setting on."""
    if "blend" in node:
        total = sum(Fraction(entry.get("weight", 1)) for entry in node["blend"])
        below = [
            leaf
            for entry in node["blend"]
            for leaf in flat(entry, files, weight * Fraction(entry.get("weight", 1)) / total)
        ]
    elif node["path"] in files:
        below = flat(files[node["path"]], files, weight)
    else:
        below = [(node["path"], weight, {}, [], [])]
    return [
        (
            path,
            share,
            {**tags, **node.get("tags", node.get("subflavors", {}))},
            [node.get("shuffle_over_epochs_multiplier", 1), *multipliers],
            [node.get("subset", ("0%", "100%")), *ranges],
        )
        for path, share, tags, multipliers, ranges in below
    ]


def product(multipliers):
    if None in multipliers:
        return None
    found = 1
    for each in multipliers:
        found *= each
    return -1 if -1 in multipliers else found


def composed(ranges):
    low, high = Fraction(0), Fraction(1)
    for begin, end in reversed(ranges):  # the innermost first
        begin, end = (Fraction(bound.rstrip("%")) / 100 for bound in (begin, end))
        low, high = low + (high - low) * begin, low + (high - low) * end
    return low, high


def random_settings(draw):
    found = {}
    if draw.random() < 0.6:
        found[draw.choice(("tags", "subflavors"))] = {
            draw.choice("xyz"): draw.randrange(9) for _ in range(draw.randrange(3))
        }
    if draw.random() < 0.4:
        found["shuffle_over_epochs_multiplier"] = draw.choice((2, 3, -1, None))
    if draw.random() < 0.4:
        found["subset"] = draw.choice((("0%", "50%"), ("25%", "75%"), ("50%", "100%")))
    return found


def random_files(draw):
    """Recipes by name, each of which may name those after it."""
    files = {}
    for number in reversed(range(4)):
        choices = [*NAMES, *files] if files else list(NAMES)
        entries = [
            {"path": draw.choice(choices), "weight": draw.choice((1, 2, 0.5, 7)), **random_settings(draw)}
            for _ in range(draw.randint(1, 3))
        ]
        if number == 0 and files:
            entries[0]["path"] = next(reversed(files))
        files[f"r{number}.yaml"] = {"blend": entries, **random_settings(draw)}
    return files


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.energon("8: Recipe", "8: tags", "8: subset", "8: shuffle_over_epochs_multiplier")
def test_random_recipes_follow_the_rules(folder, seed):
    files = random_files(random.Random(seed))
    for name, node in files.items():
        write(folder / name, recipe(node))
    wanted = flat(files["r0.yaml"], files)
    found = traverse_metadataset(folder / "r0.yaml", split_part="train")
    shares = load_dataset(folder / "r0.yaml").get_datasets(training=True, worker_config=ALONE).datasets
    assert [entry.weight for entry in shares] == pytest.approx([float(weight) for _, weight, *_ in wanted])
    assert [entry.subflavors for entry in shares] == [tags for _, _, tags, *_ in wanted]
    for leaf, (path, _, tags, multipliers, ranges) in zip(found, wanted, strict=True):
        assert (leaf.path, leaf.subflavors) == (str(folder / path), tags)
        assert leaf.multiplier == product(multipliers)
        assert (leaf.subset.lower, leaf.subset.upper) == pytest.approx(composed(ranges))


@pytest.mark.energon("8: a YAML without __class__")
@pytest.mark.parametrize(
    ("document", "version"),
    [
        ({"splits": {"train": {"datasets": [{"path": "a"}]}}}, "Metadataset"),
        ({"splits": {"train": {"path": "a"}}}, "MetadatasetV2"),
        ({"splits": {"train": {"blend": [{"path": "a"}]}, "val": {"path": "b"}}}, "MetadatasetV2"),
        ({"__module__": "megatron.energon", "splits": {"train": {"path": "a"}}}, "MetadatasetV2"),
        (recipe({"path": "a"}), "MetadatasetV2"),
        ({"__class__": "Recipe", "splits": {"train": {"path": "a"}}}, "MetadatasetV2"),
    ],
)
def test_the_splits_say_what_a_file_without_class_is(folder, document, version):
    path = write(folder / "class.yaml", document)
    assert type(load_dataset(path)).__name__ == version
    assert {text[0] for text in texts(train(path), 8)} == {"a"}


def test_a_recipe_nests_files_of_all_versions(folder):
    write(folder / "one.yaml", {"splits": {"train": {"datasets": [{"path": "b", "subflavors": {"k": 1}}]}}})
    write(
        folder / "two.yaml",
        {
            **RECIPE,
            "__class__": "MetadatasetV2",
            "splits": {"train": {"path": "c", "subflavors": {"k": 2, "l": 2}}},
        },
    )
    entries = [{"path": "one.yaml", "tags": {"k": 0}}, {"path": "two.yaml"}, {"path": "inner"}]
    path = write(folder / "outer.yaml", recipe({"blend": entries, "tags": {"l": 9}}))
    found = load_dataset(path).get_datasets(training=True, worker_config=ALONE).datasets
    assert [entry.subflavors for entry in found] == [
        {"k": 0, "l": 9},
        {"k": 2, "l": 9},
        {"k": "in", "own": 1, "l": 9},
    ]


def test_validation_concatenates_whatever_the_weights_say(folder):
    node = {
        "blend": [{"path": "b", "weight": 9, "split_part": "train"}, {"path": "a", "split_part": "train"}]
    }
    document = recipe({"path": "a"}, val=node)
    path = write(folder / "val.yaml", document)
    assert "".join(text[0] for text in texts(val(path))) == "b" * 20 + "a" * 20


@pytest.mark.parametrize(
    ("node", "parts"),
    [
        (
            {"path": "a", "tags": {}, "subflavors": {}},
            ["'tags' and 'subflavors'", "splits.train", "write all"],
        ),
        ({"path": "a", "tags": {"x": 1}, "subflavor": "x"}, ["'tags' and 'subflavor'"]),
        ({"blend": [{"path": "a"}], "tags": {}, "subflavors": {}}, ["'tags' and 'subflavors'"]),
        ({"path": "inner.yaml", "tags": {}, "subflavors": {}}, ["'tags' and 'subflavors'"]),
        ({"path": "a", "tags": ["x"]}, ["'tags' is ['x']", "names to values"]),
        ({"path": "a", "tag": {"x": 1}}, ["unknown key 'tag'", "Did you mean 'tags'"]),
        ({"blend": [{"path": "a"}], "split_part": "val"}, ["unknown key 'split_part'"]),
        ({"blend": [{"path": "a"}], "shuffle_over_epochs_multiplier": 0}, ["multiplier' is 0", "positive"]),
        ({"blend": [{"path": "a"}], "subset": {"range": [0, 5]}}, ["sample numbers", "percentages"]),
        ({"datasets": [{"path": "a"}]}, ["'datasets' is a key of version 1", "Write blend:"]),
        (
            {"blend": [{"blend": [{"path": "a"}], "weight": 2}]},
            ["blend[0]", "has blend", "a file of its own"],
        ),
        ({"blend": [{"path": "a", "weight": 1e400}]}, ["'weight' is inf"]),
        (
            {"blend": [{"path": "a", "weight": 1e308}, {"path": "b", "weight": 1e308}]},
            ["too small or too large"],
        ),
        ({"blend": [{"path": "a", "weight": {"step": 5}}]}, ["weight.step", "by batch are 5"]),
        ({"blend": [{"path": "a", "weight": {"step": {0: 1}, "linear": {0: 1}}}]}, ["unknown key 'linear'"]),
        ({"blend": [{"path": "a", "weight": {"step": {0: 1}, "0": 1}}]}, ["unknown key '0'"]),
        ({"blend": [{"path": "a", "weight": {"step": {10: 1}}}]}, ["[10]", "begin with 0".capitalize()]),
        ({"blend": [{"path": "a", "weight": {"step": {}}}]}, ["the batches of a weight are []"]),
        ({"blend": [{"path": "a", "weight": {"linear": {}}}]}, ["the batches of a weight are []"]),
        ({"blend": [{"path": "a", "weight": {"linear": {9: 1, 3: 2}}}]}, ["ascending order"]),
        ({"blend": [{"path": "a", "weight": {"linear": {0: 1, 3: "x"}}}]}, ["weight at batch 3 is 'x'"]),
        ({"blend": [{"path": "a", "weight": {"linear": {0: {"to": 1}}}}]}, ["weight.linear"]),
        (
            {"blend": [{"path": "a", "weight": {"step": {0: 1, 3: {"to": 1, "ramp": "linear"}}}}]},
            ["weight.step"],
        ),
        ({"blend_epochized": [{"path": "a", "repetitions": {"step": {0: 1}}}]}, ["'repetitions' is"]),
        ({"blend": [{"path": "a", "weight": {"step": {0: 0}}}]}, ["all weights are 0 from batch 0"]),
    ],
)
def test_slips_are_named_with_their_place(folder, node, parts):
    with pytest.raises((MetadataError, ConfigError)) as caught:
        load_dataset(recipe(node)).get_datasets(training=True, worker_config=ALONE)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("document", "parts"),
    [
        (
            {"splits": {"train": {"blend": [{"path": "a"}]}, "val": {"datasets": [{"path": "a"}]}}},
            ["'val' has datasets:", "'train' is of version 2", "Write blend:"],
        ),
        ({"splits": {"train": {"datasets": [{"path": "a"}], "blend": []}}}, ["unknown key 'datasets'"]),
        ({"splits": {"train": {"datasets": [{"path": "a", "tags": {}}]}}}, ["unknown key 'tags'"]),
        ({"splits": {"train": 3}}, ["a mapping is needed", "splits.train"]),
        ({"__class__": ["Recipe"], "splits": {}}, ["['Recipe'] is not a metadataset"]),
        ({"__class__": "Recipes", "splits": {}}, ["Recipes is not a metadataset"]),
        ({"__module__": "os", "splits": {"train": {"path": "a"}}}, ["os.None is not a metadataset"]),
    ],
)
def test_slips_of_whole_recipes_are_named(document, parts):
    with pytest.raises(MetadataError) as caught:
        load_dataset(document)
    for part in parts:
        assert part in str(caught.value)


def test_a_recipe_that_contains_itself_is_named(folder):
    write(folder / "loop.yaml", recipe({"blend": [{"path": "a"}, {"path": "loop.yaml"}]}))
    with pytest.raises((MetadataError, LimitError), match="contains itself"):
        train(folder / "loop.yaml")


# Schedules count the batches of a rank. The model gives a batch its weight by that number.


def of_ranks(path, ranks, steps):
    loaders = [
        iter(
            get_savable_loader(
                get_train_dataset(
                    path,
                    worker_config=WorkerConfig(rank, ranks, 0),
                    batch_size=4,
                    shuffle_buffer_size=10,
                    max_samples_per_sequence=4,
                    task_encoder=Texts(),
                    draws="even",
                )
            )
        )
        for rank in range(ranks)
    ]
    return [[text[0] for text in next(loader)] for _ in range(steps) for loader in loaders]


@pytest.mark.energon("8: weight {step: …}")
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_steps_hold_from_a_batch_of_the_rank(folder, ranks):
    node = {
        "blend": [
            {"path": "a", "weight": {"step": {0: 1, 5: 0}}},
            {"path": "b", "weight": {"step": {0: 0, 5: 3}}},
        ]
    }
    path = write(folder / f"step-{ranks}.yaml", recipe(node))
    wanted = ["a" if number < 5 else "b" for number in range(9) for _ in range(ranks)]
    assert of_ranks(path, ranks, 9) == [[name] * 4 for name in wanted]


@pytest.mark.energon("8: weight {linear: …}")
@pytest.mark.parametrize("ranks", [1, 2])
def test_lines_are_clamped_at_their_ends(folder, ranks):
    node = {
        "blend": [
            {"path": "a", "weight": {"linear": {10: 0, 30: 1}}},
            {"path": "b", "weight": {"linear": {10: 1, 30: 0}}},
        ]
    }
    path = write(folder / f"line-{ranks}.yaml", recipe(node))
    batches = of_ranks(path, ranks, 36)
    of_b = [batch.count("b") for batch in batches]
    assert of_b[: 10 * ranks] == [4] * 10 * ranks
    assert of_b[30 * ranks :] == [0] * 6 * ranks
    wanted = sum(4 * (1 - (number - 10) / 20) for number in range(10, 30)) * ranks
    assert sum(of_b[10 * ranks : 30 * ranks]) == pytest.approx(wanted, abs=2 * ranks + 1)


@pytest.mark.energon("8: __tags__", "8: Cooker(has_tags)")
def test_tags_and_subflavors_are_the_same(folder):
    def cook(crude, name):
        assert crude["__tags__"] == crude["__subflavors__"]
        assert "__tags__" in crude
        return TextSample(**basic_sample_keys(crude), text=f"{name} {crude['txt']}")

    class Task(DefaultTaskEncoder):
        cookers = (
            Cooker(partial(cook, name="one"), has_tags={"kind": 1}),
            Cooker(partial(cook, name="two"), has_subflavors={"kind": 2}),
        )

    for name in ("d", "e"):
        write_shards(folder / name, shards=2, samples_per_shard=5, parts=lambda i: {"txt": b"text"})
        prepare_dataset(str(folder / name), split_ratio=(1, 0, 0), dataset_yaml=CRUDE)
    entries = [{"path": name, "tags": {"kind": number}} for number, name in ((1, "d"), (2, "e"))]
    path = write(folder / "cooked.yaml", recipe({"blend_epochized": entries}))
    found = [
        (sample.text.split()[0], sample.__tags__, sample.__subflavors__)
        for sample in train(path, task_encoder=Task(), repeat=False)
    ]
    assert {(name, str(tags)) for name, tags, _ in found} == {("one", "{'kind': 1}"), ("two", "{'kind': 2}")}
    assert all(tags is old for _, tags, old in found)


def test_tags_of_samples_and_batches_can_be_set():
    keys = {"__key__": "a", "__restore_key__": ()}
    sample = TextSample(**keys, __tags__={"x": 1}, text="")
    assert sample == TextSample(**keys, __subflavors__={"x": 1}, text="")
    assert replace(sample, __subflavors__={"z": 1}).__tags__ == {"z": 1}
    assert pickle.loads(pickle.dumps(sample)).__tags__ == {"x": 1}
    with pytest.raises(ValueError, match="both given"):
        TextSample(**keys, __tags__={}, __subflavors__={}, text="")
    with pytest.raises(TypeError, match=r"TextSample.__init__\(\) missing"):
        TextSample(**keys)
    sample.__tags__ = {"y": 2}
    assert sample.__subflavors__ == {"y": 2}
    assert TextSample.derive_from(sample, __tags__={"z": 3}, text="").__subflavors__ == {"z": 3}
    assert TextSample.extend(sample, __tags__=None).__subflavors__ is None
    batch = Batch.from_samples([sample, sample])
    assert batch.__tags__ == batch.__subflavors__ == [{"y": 2}] * 2
    assert Batch.from_samples([sample], __tags__=[None]).__tags__ == [None]
    made = CrudeSample(**keys, __subflavors__={"x": 1}, __tags__={"y": 2})
    assert basic_sample_keys(made)["__subflavors__"] == {"y": 2}
    with pytest.raises(ValueError, match="__tags__ and __subflavors__ are both given"):
        TextSample.derive_from(sample, __tags__={}, __subflavors__={}, text="")
    with pytest.raises(ValueError, match="has_tags and has_subflavors are both given"):
        Cooker(len, has_tags={"a": 1}, has_subflavors={"b": 1})
    assert Cooker(len, has_tags={"a": 1}) == Cooker(len, has_subflavors={"a": 1})
    assert Cooker(len, {"a": 1}).has_tags == {"a": 1}


@edataclass
class Boxes(TextSample):
    boxes: list[int] = field(default_factory=list)
    kind: int = field(default=3, init=False)


@edataclass
class Counted(TextSample):
    total: int = 0

    def __post_init__(self) -> None:
        self.total = len(self.text)


class Mixin:
    def __post_init__(self) -> None:
        self.seen = True


@edataclass
class Mixed(TextSample, Mixin):
    seen: bool = False


@dataclass
class Plain(TextSample, Mixin):
    seen: bool = False


@edataclass
class Tagged(TextSample):
    __tags__: list[str] = field(default_factory=list)


@edataclass
class MoreTagged(Tagged):
    more: int = 0


def test_types_of_programs_may_have_the_same_names():
    keys = {"__key__": "a", "__restore_key__": (), "text": "abc"}
    assert Mixed(**keys).seen
    assert Plain(**keys).seen
    for kind in (Tagged, MoreTagged):
        tagged = kind(**keys, __tags__=["x"], __subflavors__={"y": 1})
        assert (tagged.__tags__, tagged.__subflavors__) == (["x"], {"y": 1})


def test_types_of_programs_take_tags():
    keys = {"__key__": "a", "__restore_key__": (), "text": "abc"}
    made = Boxes(**keys, __tags__={"x": 1})
    assert (made.__tags__, made.boxes, made.kind) == ({"x": 1}, [], 3)
    assert Boxes(**keys).boxes is not made.boxes
    assert Batch(__key__=[], __restore_key__=(), __tags__=[{}]).__subflavors__ == [{}]
    assert Counted(**keys, __subflavors__={"x": 1}).total == 3
    with pytest.raises(TypeError, match="__tags__"):
        Counted(**keys, __tags__={})


def test_tags_of_a_call_override_those_of_the_data(folder):
    first = next(iter(val(folder / "inner", split_part="train", tags={"own": 2})))
    assert first.__tags__ == {"k": "in", "own": 2}
    with pytest.raises(ValueError, match="tags and subflavors are both given"):
        val(folder / "inner", tags={}, subflavors={})
