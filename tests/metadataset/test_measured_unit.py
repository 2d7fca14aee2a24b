"""Weights that are shares of a size, which a method of the encoder measures; fractions count the batches."""

import logging
import math
from fractions import Fraction

import pytest
from mixtures import Texts, text_dataset, v2, write
from repetitions import is_nightly

from energon_stream import (
    PlannedPacking,
    ReadOptions,
    SkipSample,
    WorkerConfig,
    compute_costs,
    get_savable_loader,
    get_train_dataset,
    sample_size_metric,
    stateless,
)
from energon_stream.errors import ConfigError, CostsError, MetadataError, StateMismatchError
from energon_stream.pipeline.measured_blend import MeasuredBlendDataset
from energon_stream.state import dumps, loads, redistribute
from energon_stream.testing.operator_suite import NumbersDataset, assert_exact_resume

STREAMS, BATCH, WEIGHTS = 4, 2, {"a": 3, "b": 2, "c": 1}


def tokens_of(text):
    """Bimodal lengths; those of b are 50 times those of a."""
    return {"a": 1, "b": 50, "c": 7}[text[0]] * (40 if sum(text.encode()) % 5 == 0 else 3)


class Counted(Texts):
    @sample_size_metric("tokens")
    def count(self, sample):
        return tokens_of(sample.text)


class CountedToo(Counted):
    @sample_size_metric("characters")
    def other(self, sample):
        return len(sample.text) / 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("measured")
    for name, size in (("a", 120), ("b", 80), ("c", 96)):
        text_dataset(made / name, name, per_shard=size // 2, shards=2, split_ratio=(1, 0, 0))
    blend = [{"weight": weight, "path": name} for name, weight in WEIGHTS.items()]
    write(made / "mix.yaml", v2({"blend": blend, "blend_weight_unit": "tokens"}))
    return made


def open_loader(path, rank=0, world=1, workers=0, encoder=Counted, run=None, **options):
    arguments = {"batch_size": BATCH, "shuffle_buffer_size": 20, "task_encoder": encoder(), **options}
    config = WorkerConfig(rank, world, workers, num_streams=STREAMS)
    arguments.setdefault("read_options", ReadOptions(max_ahead=32))
    dataset = get_train_dataset(path, worker_config=config, max_samples_per_sequence=10, **arguments)
    return get_savable_loader(dataset, **({} if run is None else {"run": run}))


def take(loaders, count):
    iterators = [iter(loader) for loader in loaders]
    return [batch for _ in range(count) for batch in [next(each) for each in iterators]]


def furthest(batches, size=tokens_of):
    """How far sources are from their shares of the size at any sample of a stream."""
    worst = 0
    for stream in range(STREAMS):
        behind = dict.fromkeys("abc", Fraction(0))
        for text in (text for batch in batches[stream::STREAMS] for text in batch):
            for name, weight in WEIGHTS.items():
                behind[name] += Fraction(weight, 6) * Fraction(size(text))
            behind[text[0]] -= Fraction(size(text))
            worst = max(worst, *map(abs, behind.values()))
    return worst


def test_sources_have_their_shares_of_what_is_measured(folder):
    batches = take([open_loader(folder / "mix.yaml")], 160)
    assert furthest(batches) <= 2 * 50 * 40
    again = take([open_loader(folder / "mix.yaml", workers=2)], 40)
    assert again == batches[:40]
    other = take([open_loader(folder / "mix.yaml", encoder=CountedToo, weight_unit="characters")], 100)
    assert furthest(other, lambda text: Fraction(len(text), 3)) <= 8
    assert take([open_loader(folder / "mix.yaml", weight_unit="samples")], 40) != batches[:40]


def test_states_go_on_exactly_on_other_topologies(folder):
    path = folder / "mix.yaml"
    expected = take([open_loader(path)], 100)
    got, states = [], None
    for world, until, workers in ((1, 17, 0), (1, 28, 2), (4, 68, 0), (2, 100, 0)):
        loaders = [open_loader(path, rank, world, workers) for rank in range(world)]
        for loader in loaders:
            if states is not None:
                loader.restore_state_global(redistribute(states, world))
        got += take(loaders, (until - len(got)) // world)
        states = [loads(dumps(loader.save_state_rank())) for loader in loaders]
    assert got == expected


def test_the_sample_of_a_key_is_made_again(folder):
    class Kept(Counted):
        @stateless
        def encode_sample(self, sample):
            return sample

        @stateless
        def batch(self, samples):
            return super(Texts, self).batch(samples)

    loader = open_loader(folder / "mix.yaml", encoder=Kept)
    for _, batch in zip(range(12), loader, strict=False):
        assert loader.restore_sample(batch.__restore_key__).text == batch.text


@pytest.mark.parametrize("alpha", [0.0, 1.0, 2.5])
def test_every_state_of_the_operator_goes_on(alpha):
    def make():
        pairs = [(NumbersDataset(7, offset=10 * each), each + 1) for each in range(3)]
        return MeasuredBlendDataset(*pairs, size_fn=lambda number: number % 7 / 3, unit="x", alpha=alpha)

    assert_exact_resume(make, steps=60 if is_nightly() else 26, tail=6)
    assert sorted(make()) == [*range(7), *range(10, 17), *range(20, 27)]


def test_alpha_and_epsilon(folder):
    class Loose(Counted):
        blend_sample_size_epsilon = 1e9  # so that what is behind does not count

    class Strict(Counted):
        blend_sample_size_alpha = 4.0

    found = {
        kind: furthest(take([open_loader(folder / "mix.yaml", encoder=kind)], 200))
        for kind in (Loose, Strict)
    }
    assert found[Strict] <= 2 * 50 * 40 < found[Loose]
    for name, value in (("alpha", -1), ("alpha", math.nan), ("epsilon", 0), ("epsilon", math.inf)):
        wrong = type("Wrong", (Counted,), {f"blend_sample_size_{name}": value})
        with pytest.raises(ConfigError, match="blend_sample_size_alpha is"):
            open_loader(folder / "mix.yaml", encoder=wrong)


def test_costs_that_were_computed_are_followed_exactly(tmp_path, caplog):
    for name in "abc":
        text_dataset(tmp_path / name, name, per_shard=40, shards=2, split_ratio=(1, 0, 0))
    blend = [{"weight": weight, "path": name} for name, weight in WEIGHTS.items()]
    path = write(tmp_path / "mix.yaml", v2({"blend": blend, "blend_weight_unit": "tokens"}))
    measured = open_loader(path)
    take([measured], 5)
    state = measured.save_state_rank()
    for name in "ab":
        compute_costs(str(tmp_path / name), "tokens", lambda sample: tokens_of(bytes(sample["txt"]).decode()))
    assert take([open_loader(path)], 30) == take([open_loader(path)], 30)  # c has none: all are measured
    compute_costs(str(tmp_path / "c"), "tokens", lambda sample: tokens_of(bytes(sample["txt"]).decode()))

    class Planned(Texts):
        @sample_size_metric("tokens")
        def count(self, sample):
            raise AssertionError

    with caplog.at_level(logging.INFO, "energon_stream"):
        assert furthest(take([open_loader(path, encoder=Planned)], 150)) <= 50 * 40
    assert "costs 'tokens' that were computed" in caplog.text
    with pytest.raises(StateMismatchError):
        open_loader(path).restore_state_rank(state)


def test_samples_that_are_skipped_or_fail_do_not_count(folder):
    class Some(Counted):
        @sample_size_metric("tokens")
        def count(self, sample):
            if sample.text.endswith("3"):
                raise SkipSample
            if sample.text.endswith("4"):
                raise ValueError("odd")
            return tokens_of(sample.text)

    batches = take([open_loader(folder / "mix.yaml", encoder=Some)], 160)
    assert not any(text[-1] in "34" for batch in batches for text in batch)
    assert furthest(batches) <= 2 * 50 * 40


def test_packs_and_groups_are_measured_too(folder):
    class Packs(Counted):
        @stateless
        def preencode_sample(self, sample):
            return sample

        @sample_size_metric("tokens")
        def count(self, sample):
            return sum(tokens_of(text) for text in sample.text.split("|"))

        encode_sample = Texts.__mro__[1].encode_sample

        def select_samples_to_pack(self, samples):
            return [samples[place : place + 3] for place in range(0, len(samples), 3)]

        @stateless
        def pack_selected_samples(self, samples):
            samples[0].text = "|".join(each.text for each in samples)
            return samples[0]

        def batch(self, samples):
            return [text for sample in samples for text in sample.text.split("|")]

    packed = take([open_loader(folder / "mix.yaml", encoder=Packs, packing_buffer_size=6)], 100)
    assert furthest(packed) <= 2 * 50 * 40

    class Grouped(Packs):
        def build_packing_groups(self, datasets, packing_buffer_size, shuffle_buffer_size):
            return [self.group(datasets[:1]), self.group(datasets[1:])]

        def group(self, datasets):
            (one,) = super().build_packing_groups(datasets, 6, None)
            return one

    grouped = take([open_loader(folder / "mix.yaml", encoder=Grouped, packing_buffer_size=6)], 160)
    assert all(
        len({text[0] == "a" for text in batch[place : place + 3]}) == 1
        for batch in grouped
        for place in (0, 3)
    )
    assert furthest(grouped) <= 6 * 50 * 40


@pytest.mark.parametrize("size", [-1, math.nan, math.inf, None, "7", 1j])
def test_sizes_that_are_none_end_the_run(folder, size):
    class Wrong(Texts):
        @sample_size_metric("tokens")
        def count(self, sample):
            return size

    with pytest.raises(ConfigError, match=r"size of a sample in 'tokens' is .*data-00000.*finite number"):
        take([open_loader(folder / "mix.yaml", encoder=Wrong)], 1)


def test_what_shares_of_sizes_need_is_named(folder, tmp_path):
    class Twice(Counted):
        @sample_size_metric("tokens")
        def again(self, sample):
            return 1

    mix = folder / "mix.yaml"
    with pytest.raises(ConfigError, match="again and count both measure 'tokens'"):
        open_loader(mix, encoder=Twice)
    with pytest.raises(
        CostsError, match=r'no costs \'bytes\'.*or mark a method .*sample_size_metric\("bytes"\)'
    ):
        open_loader(mix, weight_unit="bytes")
    for unit in ("", "samples", None, 3):
        with pytest.raises(ValueError, match="is no unit of a size"):
            sample_size_metric(unit)
    for options in (
        {"draws": "even"},
        {"draws": "random"},
        {"packing": PlannedPacking("tokens", capacity=99)},
    ):
        with pytest.raises(ConfigError, match="which is measured when samples are read"):
            open_loader(mix, **options)

    class Older(Counted):
        def build_train_datasets(self, *, datasets, worker_config, batch_size):
            return super().build_train_datasets(
                datasets=datasets, worker_config=worker_config, batch_size=batch_size
            )

    with pytest.raises(ConfigError, match="which an override does not take"):
        open_loader(mix, encoder=Older)
    with pytest.raises(ConfigError, match="does not measure 'words'"):
        Counted().build_train_datasets(
            datasets=[1], worker_config=WorkerConfig(0, 1, 0), batch_size=1, blend_weight_unit="words"
        )
    changing = v2(
        {"blend": [{"weight": {0: 1, 9: 2}, "path": str(folder / "a")}, {"path": str(folder / "b")}]}
    )
    with pytest.raises(ConfigError, match="energon-stream cost"):
        open_loader(changing, weight_unit="tokens")
    inner = v2({"blend": [{"path": str(folder / name)} for name in "bc"], "blend_weight_unit": "characters"})
    nested = [{"path": str(folder / "a")}, {"path": str(write(tmp_path / "inner.yaml", inner))}]
    with pytest.raises(MetadataError, match="'blend_weight_unit' is 'tokens' here, and 'characters' at"):
        open_loader(v2({"blend": nested, "blend_weight_unit": "tokens"}), encoder=CountedToo)


def test_runs_are_recorded_where_costs_are_computed(folder, tmp_path):
    with pytest.raises(ConfigError, match="by computed costs, where sizes are measured"):
        open_loader(folder / "mix.yaml", run=tmp_path / "run")
