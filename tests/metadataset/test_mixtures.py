"""Metadatasets as datasets: shares, splits, subflavors, subsets, epochs, exact resume."""

from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
from mixtures import ALONE, V2, text_dataset, texts, train, v2, val, write
from repetitions import is_nightly

from energon_stream import (
    BlendDataset,
    DatasetBlendMode,
    DatasetLoader,
    DefaultTaskEncoder,
    EpochizeDataset,
    Metadataset,
    MetadatasetV2,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    get_val_dataset,
    get_val_datasets,
    load_dataset,
    prepare_metadataset,
    traverse_metadataset,
)
from energon_stream.errors import ConfigError, MetadataError, ObjectNotFoundError
from energon_stream.index.jsonl_index import prepare_jsonl
from energon_stream.state import dumps
from energon_stream.testing.operator_suite import assert_exact_resume, assert_restores_by_key, run_steps

FIVE_TO_TWO = {"blend": [{"weight": 5, "path": "./a"}, {"weight": 2, "path": "./b"}]}


class PageEncoder(DefaultTaskEncoder):
    """The page's literal signature: no packing or shuffling, pairs of dataset and weight."""

    def build_train_datasets(
        self, *, datasets, worker_config, batch_size, batch_drop_last, virtual_epoch_length=0
    ):
        dataset = BlendDataset(*datasets, worker_config=worker_config)
        dataset = self.build_batch(
            dataset, batch_size=batch_size, batch_drop_last=batch_drop_last, worker_config=worker_config
        )
        if virtual_epoch_length > 0:
            dataset = EpochizeDataset(dataset, length=virtual_epoch_length, worker_config=worker_config)
        return dataset


def in_batches(path, count, **changes):
    """Texts of so many samples, with their subflavors; a batch of forty has one state."""
    batches = islice(train(path, batch_size=40, **changes), count // 40)
    return [each for batch in batches for each in zip(batch.text, batch.__subflavors__, strict=True)]


def assert_share(found, of, share):
    """Within three standard errors."""
    count = sum(text.startswith(of) for text in found)
    assert abs(count - share * len(found)) <= 3 * (len(found) * share * (1 - share)) ** 0.5


def nested(folder):
    """``outer`` blends ``inner`` (b and c, 1:3) with a, 2:1; ``inner`` says less than its users."""
    inner = [
        {"path": "b", "subflavors": {"of": "b", "level": "inner"}, "shuffle_over_epochs_multiplier": 2},
        {"path": "c", "weight": 3, "split_part": "val"},
    ]
    write(folder / "inner.yaml", v2({"blend": inner}))
    return write(
        folder / "outer.yaml",
        v2(
            {
                "blend": [
                    {"path": "inner.yaml", "weight": 2, "subflavors": {"level": "outer"}},
                    {"path": "a", "weight": 1, "shuffle_over_epochs_multiplier": None},
                ]
            }
        ),
    )


@pytest.mark.every(2)
@pytest.mark.parametrize("encoder", [DefaultTaskEncoder, PageEncoder])
def test_a_blend_has_its_weights(lake, encoder):
    document = write(lake / "five.yaml", v2(FIVE_TO_TWO))
    found = [text for text, _ in in_batches(document, 2000, task_encoder=encoder())]
    assert_share(found, "a", 5 / 7)
    # Each source goes on pass by pass: no sample comes much more often than another.
    counts = Counter(text for text in found if text.startswith("a")).values()
    assert len(counts) == 32
    assert max(counts) - min(counts) <= 2


def test_nested_weights_multiply_and_levels_are_merged(lake):
    samples = in_batches(nested(lake), 2000)
    found = [text for text, _ in samples]
    for of, share in (("a", 1 / 3), ("b", 2 / 3 / 4), ("c", 2 / 3 * 3 / 4)):
        assert_share(found, of, share)
    flavors = {text[0]: own for text, own in samples}
    assert flavors == {
        "a": {},
        "b": {"of": "b", "level": "outer"},
        "c": {"of": "c", "kept": 1, "level": "outer"},
    }
    assert {text for text in found if text[0] == "c"} == {"c16", "c17"}  # the val part
    assert [text for text in found if text[0] == "a"][:3] != ["a0", "a1", "a2"]  # the window shuffles yet
    kept = texts(train(nested(lake), shuffle_buffer_size=None), 300)
    assert [text for text in kept if text[0] == "a"][:32] == [f"a{number}" for number in range(32)]


def test_two_entries_of_one_path_both_count(lake):
    entries = [
        {"weight": 5, "path": "a"},
        {"weight": 2, "path": "b", "subflavors": {"part": 1}},
        {"weight": 1, "path": "b", "split_part": "val", "subflavors": {"part": 2}},
        {"weight": 1, "path": "b", "subflavors": {"part": 3}},
    ]
    document = write(lake / "twice.yaml", v2({"blend": entries}))
    parts = Counter(flavors.get("part") for _, flavors in in_batches(document, 1800))
    assert [parts[part] / 200 for part in (None, 1, 2, 3)] == pytest.approx([5, 2, 1, 1], abs=0.8)


def epochized(folder):
    entries = [{"path": "a", "repetitions": 2}, {"path": "b"}, {"path": "c", "repetitions": 0.5}]
    return write(folder / "epochs.yaml", v2({"blend_epochized": entries}, val={"blend_epochized": entries}))


@pytest.mark.parametrize("streams", [1, 3])
def test_blend_epochized_is_exact(lake, streams):
    config = WorkerConfig(0, 1, 0, num_streams=streams)
    dataset = train(epochized(lake), repeat=False, worker_config=config)
    counts = Counter(texts(dataset))
    assert {text: n for text, n in counts.items() if text[0] == "a"} == {f"a{i}": 2 for i in range(32)}
    assert {text: n for text, n in counts.items() if text[0] == "b"} == {f"b{i}": 1 for i in range(32)}
    # Half of each stream's share, rounded down.
    assert sum(n for text, n in counts.items() if text[0] == "c") == {1: 8, 3: 7}[streams]
    assert dataset.len_rank() == sum(counts.values())
    if streams == 1:  # and each epoch of the endless form is one of these
        endless = texts(train(epochized(lake)), 3 * 104)
        for epoch in range(3):
            kinds = Counter(text[0] for text in endless[104 * epoch : 104 * (epoch + 1)])
            assert kinds == {"a": 64, "b": 32, "c": 8}


def test_epochized_shares_hold_all_the_way(lake):
    """The weights are the samples in an epoch, so that no source ends long before the others."""
    found = texts(train(epochized(lake), repeat=False))
    last = {text[0]: place for place, text in enumerate(found)}
    assert min(last["a"], last["b"]) > 80


@pytest.mark.parametrize("version", [1, 2])
def test_validation_goes_through_all_sources_once_and_in_order(lake, version):
    entries = [
        {"path": "b", "weight": 7, "subflavors": {"n": 1}},
        {"path": "c"},
        {"path": "a", "split_part": "test"},
    ]
    document = v2({"path": "a"}, val={"blend": entries}, test={"path": "c"})
    if version == 1:
        document = {"splits": {"val": {"datasets": entries}, "test": {"datasets": [{"path": "c"}]}}}
    path = write(lake / f"val{version}.yaml", document)
    expected = [f"b{i}" for i in range(32, 36)] + ["c16", "c17"] + [f"a{i}" for i in range(36, 40)]
    assert texts(val(path)) == expected
    assert texts(val(path, split_part="test")) == ["c18", "c19"]
    with get_loader(val(path, worker_config=WorkerConfig(0, 1, 2))) as loader:
        assert sorted(sample.text for sample in loader) == sorted(expected)
    apart = get_val_datasets(path, batch_size=None, worker_config=ALONE)
    assert [texts(dataset) for dataset, _ in apart] == [expected[:4], expected[4:6], expected[6:]]
    assert [(ref.path, ref.split_part) for _, ref in apart] == [
        (str(lake / "b"), "val"),
        (str(lake / "c"), "val"),
        (str(lake / "a"), "test"),
    ]
    assert apart[0][1].subflavors == {"n": 1}


def test_blend_epochized_counts_once_in_validation(lake):
    assert len(texts(val(epochized(lake)))) == 4 + 4 + 2


def test_subsets_of_entries_and_of_blends(lake):
    document = {
        "blend": [
            {"path": "a", "subset": {"range": [4, 20]}},
            {"path": "b", "subset": {"range": ["25%", "100%"]}},
        ],
        "subset": {"range": ["50%", "100%"]},
    }
    path = write(lake / "subsets.yaml", v2(document, val=document))
    found = set(texts(train(path), 600))
    assert found == {f"a{i}" for i in range(12, 20)} | {f"b{i}" for i in range(20, 32)}
    halved = set(texts(train(path, subset={"range": ["0%", "50%"]}), 600))
    assert halved == {f"a{i}" for i in range(12, 16)} | {f"b{i}" for i in range(20, 26)}


def test_the_older_singular_subflavor(lake):
    path = write(lake / "old.yaml", v2({"path": "a", "subflavor": "small", "subflavors": {"x": "y"}}))
    with pytest.warns(FutureWarning, match="subflavor: is deprecated") as caught:
        dataset = train(path, worker_config=WorkerConfig(0, 1, 1))
    assert Path(caught[0].filename).parent == Path(__file__).parent
    with get_loader(dataset) as loader:
        assert next(iter(loader)).__subflavors__ == {"__subflavor__": "small", "x": "y"}


def test_a_parsed_document_is_relative_to_the_current_folder(lake, monkeypatch):
    expected = texts(train(write(lake / "five.yaml", v2(FIVE_TO_TWO))), 50)
    monkeypatch.chdir(lake)
    assert texts(train(v2(FIVE_TO_TWO)), 50) == expected
    assert texts(train("five.yaml"), 50) == expected


@pytest.mark.parametrize("part", [None, 3, ["train"]])
def test_a_split_part_is_one_name(lake, part):
    for path in (nested(lake), lake / "a"):
        for opened in (get_train_dataset, get_val_dataset, get_val_datasets):
            with pytest.raises(ConfigError, match="split_part is"):
                opened(path, batch_size=1, worker_config=ALONE, split_part=part)


def test_loader_objects_and_traversal(lake, tmp_path):
    path = nested(lake)
    assert type(load_dataset(path)) is MetadatasetV2
    assert type(load_dataset({"splits": {}})) is Metadataset
    assert type(load_dataset(lake / "a")) is DatasetLoader
    loaded = load_dataset(path).get_datasets(training=True, worker_config=ALONE)
    assert loaded.blend_mode is DatasetBlendMode.DATASET_WEIGHT
    assert [weight for _, weight in loaded.datasets] == pytest.approx([1 / 6, 1 / 2, 1 / 3])
    assert [entry.subflavors.get("of") for entry in loaded.datasets] == ["b", "c", None]
    single = load_dataset(lake / "c").get_datasets(training=False, split_part="test", worker_config=ALONE)
    assert (single.blend_mode, texts(single.datasets[0].dataset)) == (DatasetBlendMode.NONE, ["c18", "c19"])
    epochs = load_dataset(epochized(lake)).get_datasets(training=True, worker_config=ALONE)
    assert epochs.blend_mode is DatasetBlendMode.SAMPLE_REPETITIONS
    assert [(entry.repetitions, entry.weight) for entry in epochs.datasets] == [(2, 64), (1, 32), (0.5, 8)]
    for training in (False, True):
        energon = WorkerConfig(rank=0, world_size=1, num_workers=0, conventions="energon")
        epochs = load_dataset(epochized(lake)).get_datasets(
            training=training, split_part="train", worker_config=energon
        )
        assert [(entry.repetitions, entry.weight) for entry in epochs.datasets] == [
            (2, None),
            (1, None),
            (0.5, None),
        ]
    missing = write(
        tmp_path / "missing.yaml",
        v2(
            {
                "blend": [
                    {"path": "nowhere", "aux": {"x": "there"}},
                    {"path": str(path), "subflavors": {"z": 1}},
                ]
            }
        ),
    )
    refs = traverse_metadataset(missing, split_part="train")
    assert [(ref.path, ref.split_part, dict(ref.subflavors)) for ref in refs] == [
        (str(tmp_path / "nowhere"), "train", {}),
        (str(lake / "b"), "train", {"of": "b", "level": "outer", "z": 1}),
        (str(lake / "c"), "val", {"level": "outer", "z": 1}),
        (str(lake / "a"), "train", {"z": 1}),
    ]
    assert refs[0].aux["x"].spec.url == str(tmp_path / "there")


def test_errors_of_what_files_say_together(lake, tmp_path):
    text = str(lake / "a")
    write(tmp_path / "epochs.yaml", v2({"blend_epochized": [{"path": text}]}))
    write(tmp_path / "circle.yaml", v2({"path": "circle2.yaml"}))
    write(tmp_path / "circle2.yaml", v2({"blend": [{"path": "circle.yaml"}]}))
    cases = [
        ({"blend": [{"path": "epochs.yaml"}, {"path": text}]}, MetadataError, "epochs.yaml: splits.train"),
        ({"path": "circle.yaml"}, MetadataError, "circle.yaml .train. -> .*circle2.yaml"),
        ({"path": "gone.yaml"}, ObjectNotFoundError, "gone.yaml"),
        ({"path": "epochs.yaml", "split_part": "trian"}, ConfigError, "'trian'.*Did you mean 'train'"),
        ({"path": "nowhere"}, ObjectNotFoundError, "nowhere"),
        ({"path": text, "split_part": "dev"}, ConfigError, "no split part 'dev'"),
        ({"path": text, "subset": {"range": [30, 99]}}, ConfigError, r"the subset \[30, 99\] of 32 samples"),
        (
            {
                "blend": [
                    {"path": text, "subset": {"range": [0, 9]}},
                    {"path": text, "subset": {"range": [8, "end"]}},
                ]
            },
            ConfigError,
            r"\[0, 9\] and \[8, end\] overlap",
        ),
    ]
    for node, error, message in cases:
        with pytest.raises(error, match=message):
            train(write(tmp_path / "case.yaml", v2(node)))
    five = write(lake / "five.yaml", v2(FIVE_TO_TWO))
    for changes, message in [
        ({"repeat": False}, "repeat=False"),
        ({"subset": [0, 5]}, "single datasets"),
        ({"dataset_config": "other.yaml"}, "single datasets"),
        ({"split_part": "val"}, "no split 'val'"),
    ]:
        with pytest.raises(ConfigError, match=message):
            train(five, **changes)


def test_what_a_datasets_own_file_says_is_kept_in_a_mixture(tmp_path):
    text_dataset(tmp_path / "a", "a", per_shard=4, split_part="test", parallel_shard_iters=2)
    text_dataset(tmp_path / "b", "b", per_shard=4)
    both = {"blend": [{"path": "a"}, {"path": "b"}]}
    path = write(tmp_path / "m.yaml", v2(both, val=both))
    assert {text for text in texts(train(path), 200) if text[0] == "a"} == {f"a{i}" for i in range(36, 40)}
    assert texts(val(path))[:4] == [f"a{i}" for i in range(36, 40)]


@pytest.mark.every(5)
@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize(
    ("document", "options"),
    [
        (lambda lake: write(lake / "five.yaml", v2(FIVE_TO_TWO)), {}),
        (nested, {}),
        (nested, {"task_encoder": PageEncoder(), "batch_size": 2}),
        (epochized, {}),
        (epochized, {"repeat": False}),
        (epochized, {"task_encoder": PageEncoder(), "batch_size": 2, "virtual_epoch_length": 7}),
    ],
    ids=["blend", "nested", "nested-page", "epochized", "epochized-once", "epochized-page"],
)
def test_resume_is_exact(lake, document, options, streams):
    path, config = document(lake), WorkerConfig(0, 1, 0, num_streams=streams)

    def make():
        return train(path, worker_config=config, **options)

    steps = (120 if options.get("repeat") is False else 36) // (1 if is_nightly() else 3)
    assert_exact_resume(make, steps=steps, tail=6)
    if not options:
        assert_restores_by_key(make)


def test_tars_lines_and_joins_in_one_blend(lake, tmp_path):
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(f'{{"text": "l{number}"}}\n' for number in range(30)))
    prepare_jsonl(str(lines))
    joiner = {"__module__": "megatron.energon", "__class__": "TextSample"}
    members = [{"path": str(lake / "a")}, {"path": str(lake / "b")}]
    node = {
        "blend": [
            {"path": str(lake / "c"), "weight": 2},
            {"path": str(lines), "subflavors": {"of": "lines"}},
            {"join": members, "joiner": joiner, "subflavors": {"of": "join"}, "weight": 3},
        ]
    }
    path = write(tmp_path / "kinds.yaml", v2(node, val=node))
    prepare_metadataset(path)
    of = Counter(
        sample["__subflavors__"]["of"] if isinstance(sample, dict) else sample.__subflavors__["of"]
        for sample in islice(train(path), 1200)
    )
    assert [of[kind] / 200 for kind in ("c", "lines", "join")] == pytest.approx([2, 1, 3], abs=0.4)
    assert len(list(val(path))) == 2 + 30 + 4
    assert_exact_resume(lambda: train(path), steps=30 if is_nightly() else 10, tail=6)
    assert_restores_by_key(lambda: train(path))
    assert [ref.path for ref in traverse_metadataset(path, split_part="train")] == [
        str(lake / "c"),
        str(lines),
        *(member["path"] for member in members),
    ]


def test_validation_resumes_exactly(lake):
    document = write(lake / "vals.yaml", v2(FIVE_TO_TWO))
    options = {"split_part": "train", "batch_size": 5}  # a pass has 13 batches
    assert_exact_resume(lambda: val(document, **options), steps=30 if is_nightly() else 17, tail=5)


def test_the_page_s_epoch_is_exact_and_sources_are_disjoint_over_ranks(lake):
    path = nested(lake)
    found = [
        {
            (batch_text, tuple(flavors.items()))
            for batch in get_loader(
                train(
                    path,
                    batch_size=4,
                    virtual_epoch_length=6,
                    task_encoder=PageEncoder(),
                    worker_config=WorkerConfig(rank, 2, 0),
                )
            )
            for batch_text, flavors in zip(batch.text, batch.__subflavors__, strict=True)
        }
        for rank in range(2)
    ]
    assert not found[0] & found[1]


def test_states_of_many_sources_are_small(lake):
    entries = [{"path": "abc"[n % 3], "weight": 1 + n % 5, "subflavors": {"n": n}} for n in range(200)]
    dataset = train(
        {**V2, "splits": {"train": {"blend": [{**e, "path": str(lake / e["path"])} for e in entries]}}}
    )
    state = run_steps(dataset, 400)[-1].state
    assert len(dumps(state)) <= 200 * 12 + 100
