"""Weights that are shares of tokens, counted by fractions from the batches that loaders give."""

import random
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from calls import counted
from mixtures import Texts, text_dataset, v2, write

from energon_stream import (
    ReadOptions,
    WorkerConfig,
    compute_costs,
    get_savable_loader,
    get_train_dataset,
    open_run,
)
from energon_stream.errors import ConfigError, CostsError, MetadataError
from energon_stream.pipeline.reader_dataset import find_readers
from energon_stream.schedule import (
    BlendPlan,
    CursorCodec,
    LeafPlan,
    OrderSpec,
    RepeatPlan,
    WeightChange,
    build_schedule,
    check_cursor,
)
from energon_stream.state import dumps, loads, redistribute

STREAMS, BATCH = 8, 2
SIZES = {"a": 120, "b": 80, "c": 96}
WEIGHTS = {"a": 3, "b": 2, "c": 1}


def tokens_of(text):
    """Bimodal lengths; those of b are 50 times those of a."""
    return {"a": 1, "b": 50, "c": 7}[text[0]] * (40 if hash_of(text) % 5 == 0 else 3)


def hash_of(text):
    return sum(text.encode()) * 7919


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("units")
    for name, size in SIZES.items():
        text_dataset(made / name, name, per_shard=size // 2, shards=2, split_ratio=(1, 0, 0))
        compute_costs(str(made / name), "tokens", lambda sample: tokens_of(bytes(sample["txt"]).decode()))
    write(made / "mix.yaml", document())
    return made


def document(unit="tokens", names="abc", **weights):
    weights = {**WEIGHTS, **weights}
    blend = [{"weight": weights[name], "path": name} for name in names]
    return v2({"blend": blend, **({"blend_weight_unit": unit} if unit else {})})


def open_loader(path, rank=0, world=1, run=None, **options):
    arguments = {"batch_size": BATCH, "shuffle_buffer_size": None, "task_encoder": Texts(), **options}
    arguments.setdefault("read_options", ReadOptions(max_ahead=32))
    config = WorkerConfig(rank, world, 0, num_streams=STREAMS)
    dataset = get_train_dataset(path, worker_config=config, max_samples_per_sequence=10, **arguments)
    return get_savable_loader(dataset, **({} if run is None else {"run": run}))


def take(loaders, count):
    iterators = [iter(loader) for loader in loaders]
    return [batch for _ in range(count) for batch in [next(each) for each in iterators]]


PARTS = 10**30


def furthest(batches, weights_at):
    """How far sources are from their shares of the tokens: of each stream, and of the job."""
    behind = {stream: dict.fromkeys("abc", 0) for stream in [None, *range(STREAMS)]}  # in whole PARTS
    worst = Counter()
    for number, batch in enumerate(batches):
        weights, had = weights_at(number), Counter()
        for text in batch:
            assert weights[text[0]]
            had[text[0]] += tokens_of(text)
        total = sum(map(Fraction, weights.values()))
        for name, weight in weights.items():
            missing = int(weight * PARTS / total) * had.total() - PARTS * had[name]
            behind[None][name] += missing
            behind[number % STREAMS][name] += missing
        worst["stream"] = max(worst["stream"], *map(abs, behind[number % STREAMS].values()))
        worst["job"] = max(worst["job"], *map(abs, behind[None].values()))
    return Counter({which: parts / PARTS for which, parts in worst.items()})


def test_sources_have_their_shares_of_tokens(folder):
    batches = take([open_loader(folder / "mix.yaml")], 320)
    worst, largest = furthest(batches, lambda _: WEIGHTS), 50 * 40
    assert worst["stream"] <= largest
    assert worst["job"] <= largest * STREAMS**0.5
    assert (
        take([open_loader(write(folder / "plain.yaml", document(None)), weight_unit="tokens")], 40)
        == batches[:40]
    )


def test_shares_of_tokens_follow_changes_and_other_topologies(folder):
    path = write(folder / "steps.yaml", document(a={0: 3, 21: 0}, b={0: 2, 50: 1}))
    alone = open_loader(path)
    alone.set_weights({"a": 1, "b": 1, "c": 2}, at_step=120)
    expected = take([alone], 160)
    report = {source.name: source.share for source in alone.mixture().sources}
    assert sum(report.values()) == pytest.approx(1)

    def weights_at(number):
        if number >= 120:
            return {"a": 1, "b": 1, "c": 2}
        return {"a": 0 if number >= 21 else 3, "b": 1 if number >= 50 else 2, "c": 1}

    assert furthest(expected, weights_at)["stream"] <= 2 * 50 * 40
    got, states = [], None
    for world, until in ((1, 40), (4, 80), (2, 128), (8, 160)):
        loaders = [open_loader(path, rank, world) for rank in range(world)]
        for loader in loaders:
            if states is not None:
                loader.restore_state_global(redistribute(states, world))
            if until == 80:
                loader.set_weights(
                    {"a": 1, "b": 1, "c": 2}, at_step=loader.mixture().step + (120 - 40) // world
                )
        got += take(loaders, (until - len(got)) // world)
        states = [loads(dumps(loader.save_state_rank())) for loader in loaders]
    assert got == expected


def test_shares_of_tokens_follow_a_long_ramp(folder):
    """Of one stream, so that no other adds to its distance."""
    path = write(folder / "ramp.yaml", document(a={0: 0, 800: {"to": 9, "ramp": "linear"}}))
    config, order = WorkerConfig(0, 1, 0), {"max_samples_per_sequence": 10, "shuffle_buffer_size": None}
    dataset = get_train_dataset(path, worker_config=config, batch_size=BATCH, task_encoder=Texts(), **order)
    batches = take([get_savable_loader(dataset)], 800)
    line = furthest(batches, lambda at: {**WEIGHTS, "a": Fraction(9 * (2 * at + 1), 1600)})
    assert line["job"] <= 50 * 40


def test_a_record_of_a_run_tells_the_batches(folder, tmp_path):
    batches = take([loader := open_loader(folder / "mix.yaml", run=tmp_path / "run")], 10)
    loader.close()
    for step, batch in enumerate(batches):
        (answer,) = open_run(str(tmp_path / "run")).which(step)
        assert [sample.dataset[-1] for sample in answer.samples] == [text[0] for text in batch]


@pytest.mark.parametrize(("spread", "most"), [("log-normal", 1), ("even", 1), ("rare", 1), ("bimodal", 3)])
def test_all_streams_together_are_near_their_shares_after_each_step(spread, most):
    """Tokens of each source are added up over 8 streams by numpy; distances are in longest samples."""
    draw, streams, batch, steps, shares = np.random.default_rng(1), 8, 4, 400, np.array([0.5, 0.3, 0.2])
    lengths = {
        "log-normal": lambda mean: draw.lognormal(0, 1, 6400) * mean,
        "even": lambda mean: np.full(6400, mean),
        "rare": lambda mean: np.where(draw.random(6400) < 0.02, 20 * mean, mean),
        "bimodal": lambda mean: np.where(draw.random(6400) < 0.8, mean / 5, mean * 4),
    }[spread]
    costs = np.stack([np.maximum(1, lengths(mean).astype(np.int32)) for mean in (40, 300, 2000)])
    children = tuple(
        RepeatPlan(LeafPlan(leaf, np.array([0, 6400]), OrderSpec(4, 8, 2, 1), costs=values))
        for leaf, values in enumerate(costs)
    )
    plan = BlendPlan(children, tuple(shares), (), batch, True, ("tokens", ""))
    tokens = np.zeros((steps, 3))
    for stream in range(streams):
        schedule = build_schedule(plan, num_streams=streams, stream=stream, key=stream)
        refs, _ = schedule.take(schedule.begin(), steps * batch)
        np.add.at(tokens, (np.arange(steps * batch) // batch, refs.leaf), costs[refs.leaf, refs.index])
    given = tokens.cumsum(axis=0)
    behind = np.abs(shares * given.sum(axis=1, keepdims=True) - given)
    assert behind.max() <= most * costs.max()


@pytest.mark.parametrize("spread", ["log-normal", "bimodal", "even"])
def test_each_stream_is_within_one_sample_of_its_share_however_it_is_resumed(spread):
    """64 streams, lengths whose means differ 50-fold, cursors saved and read at random places."""
    random_numbers, choose = np.random.default_rng(5), random.Random(5)
    lengths = {
        "log-normal": lambda mean: random_numbers.lognormal(0, 1, 6400) * mean,
        "bimodal": lambda mean: np.where(random_numbers.random(6400) < 0.8, mean / 5, mean * 4),
        "even": lambda mean: np.full(6400, mean),
    }[spread]
    costs = [np.maximum(1, lengths(mean).astype(np.int32)) for mean in (40, 300, 2000)]
    children = tuple(
        RepeatPlan(LeafPlan(leaf, np.array([0, 6400]), OrderSpec(4, 8, 2, 1), costs=values))
        for leaf, values in enumerate(costs)
    )
    later = [WeightChange(64 * 30, (0.2, 0.3, 0.5))]
    plan = BlendPlan(children, (0.5, 0.3, 0.2), tuple(later), 3, True, ("tokens", ""))
    largest = max(int(values.max()) for values in costs)
    for stream in (0, 1, 37, 63):
        schedule = build_schedule(plan, num_streams=64, stream=stream, key=stream)
        refs, end = schedule.take(schedule.begin(), 300)
        cursor, got, codec = schedule.begin(), [], CursorCodec(schedule)
        while len(got) < 300:
            count = min(choose.randint(1, 12), 300 - len(got))
            found, cursor = schedule.take(cursor, count)
            got += zip(found.leaf.tolist(), found.index.tolist(), strict=True)
            cursor = codec.unpack(loads(dumps(codec.pack(cursor))))
            check_cursor(schedule, cursor, 0)
        assert got == list(zip(refs.leaf.tolist(), refs.index.tolist(), strict=True))
        assert cursor == end
        behind = [Fraction(0)] * 3
        for place, (leaf, index) in enumerate(got):
            weights = plan.weights if place < 90 else later[0].weights
            for each, weight in enumerate(map(Fraction, weights)):
                behind[each] += weight / sum(map(Fraction, weights)) * int(costs[leaf][index])
            behind[leaf] -= int(costs[leaf][index])
            assert max(map(abs, behind)) <= largest


def test_what_shares_of_tokens_need_is_named(folder, tmp_path):
    text_dataset(tmp_path / "a", "a", per_shard=20, shards=1, split_ratio=(1, 0, 0))
    blend = [{"weight": 1, "path": str(tmp_path / "a")}, {"weight": 1, "path": str(folder / "b")}]
    path = write(tmp_path / "mix.yaml", v2({"blend": blend, "blend_weight_unit": "tokens"}))
    with pytest.raises(CostsError, match=r"no costs 'tokens'.*energon-stream cost .*/a --name tokens"):
        open_loader(path)
    compute_costs(str(tmp_path / "a"), "tokens", values=[0.5] * 20)
    with pytest.raises(CostsError, match="whole numbers"):
        open_loader(path)
    compute_costs(str(tmp_path / "a"), "tokens", values=[3] * 20)
    assert take([open_loader(path)], 4)
    with pytest.raises(ConfigError, match='draws="random", but weights are shares of tokens'):
        open_loader(path, draws="random")
    with pytest.raises(ConfigError, match="no blend by weights"):
        open_loader(folder / "a", weight_unit="tokens")
    inner = v2({"blend": blend, "blend_weight_unit": "samples"})
    write(tmp_path / "inner.yaml", inner)
    outer = {"blend": [{"weight": 1, "path": "inner.yaml"}, *blend], "blend_weight_unit": "tokens"}
    with pytest.raises(MetadataError, match="'blend_weight_unit' is 'tokens' here, and 'samples' at"):
        open_loader(write(tmp_path / "outer.yaml", v2(outer)))


def test_costs_are_looked_up_for_the_source_that_is_drawn_alone(folder):
    """Each batch that was consumed looked up 64 samples of each source."""
    options = {"batch_size": None, "task_encoder": Texts(), "shuffle_buffer_size": None}
    dataset = get_train_dataset(folder / "mix.yaml", worker_config=WorkerConfig(0, 1, 0), **options)
    ((_, reader),) = find_readers(dataset)
    schedule = reader.schedule(0)
    _, end = schedule.take(schedule.begin(), 100)
    at = schedule.begin()
    with counted("energon_stream.schedule", "combine.take") as taken:
        for _ in range(100):
            at = schedule.advance(at, 1)
    assert at == end
    assert 0 < taken.total() <= 100 + 3


def test_a_mixture_whose_weights_change_is_opened_without_a_schedule_for_each_stream(folder):
    """Each of 64 streams had one, of which none was used, and each change weighed all sources for each."""
    weights = {name: {0: 1, 10: {"to": weight, "ramp": "linear"}} for name, weight in WEIGHTS.items()}
    write(folder / "ramp.yaml", document(None, **weights))
    options = {"batch_size": 1, "draws": "even", "task_encoder": Texts()}
    config = WorkerConfig(0, 1, 0, num_streams=64)
    with counted(
        "energon_stream", "schedule.plan.build_schedule", "config.weight_schedule.weight_at"
    ) as calls:
        get_train_dataset(folder / "ramp.yaml", worker_config=config, **options)
    assert [*calls] == ["config.weight_schedule.weight_at"]
    assert calls.total() <= 3 * 13  # of 3 sources, at 11 changes
