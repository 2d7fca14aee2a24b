"""A run recorded while batches depend on data, on three topologies; and what its records cannot answer."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from repetitions import examples

from energon_stream import (
    DefaultTaskEncoder,
    PlannedPacking,
    SkipSample,
    WorkerConfig,
    build_filter_index,
    compute_costs,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    open_run,
    stateless,
)
from energon_stream.cli.main import main
from energon_stream.errors import (
    NotInRunError,
    RunDamagedError,
    RunError,
    RunMismatchError,
    RunNotFoundError,
)
from energon_stream.lineage.log import pack_refs, unpack_refs
from energon_stream.lineage.segments import Turns
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.schedule import BlendPlan, LeafPlan, OrderSpec, RepeatPlan, build_schedule, skip
from energon_stream.state import redistribute
from energon_stream.testing.datasets import (
    CAPTIONING_YAML,
    TEXT_YAML,
    prepared_captioning_dataset,
    write_shards,
)

OPTIONS = {"batch_size": 3, "shuffle_buffer_size": 16, "max_samples_per_sequence": 8}


class Skipping(DefaultTaskEncoder):
    """Leaves out every seventh sample, and fails on some others."""

    @stateless
    def encode_sample(self, sample):
        number = int(sample.__key__.rpartition("/")[2])
        if number % 7 == 0:
            raise SkipSample
        if number % 11 == 0:
            raise ValueError("a fault")
        return sample


class Packing(Skipping):
    """Packs two or three samples, not in the order in which they came."""

    @stateless
    def select_samples_to_pack(self, samples):
        turned = samples[::-1]
        return [turned[:2], turned[2:5]] if len(turned) > 2 else [turned]

    @stateless
    def pack_selected_samples(self, samples):
        return replace(samples[0], __key__="|".join(sample.__key__ for sample in samples))


@pytest.fixture(scope="module")
def captions(tmp_path_factory):
    folder = prepared_captioning_dataset(
        tmp_path_factory.mktemp("lineage") / "captions", shards=6, samples_per_shard=20, split_ratio=(6, 0, 0)
    )
    build_filter_index(folder, "some", range(1, 120, 3))
    return folder


def train(path, run, world, states, steps, *, encoder=None, **options):
    """Train some steps on all ranks; return the keys by step and rank, and the states."""
    loaders = []
    for rank in range(world):
        config = WorkerConfig(rank, world, 0, num_streams=4)
        encoder_options = {} if encoder is None else {"task_encoder": encoder()}
        dataset = get_train_dataset(
            str(path), worker_config=config, **{**OPTIONS, **encoder_options, **options}
        )
        loader = get_savable_loader(dataset, run=run)
        if states is not None:
            loader.restore_state_global(states)
        loaders.append(loader)
    batches = [iter(loader) for loader in loaders]
    seen = [[keys_of(next(each)) for each in batches] for _ in range(steps)]
    states = [loader.save_state_rank() for loader in loaders]
    for loader in loaders:
        loader.close()
    return seen, states


def keys_of(batch):
    return [key for packed in batch.__key__ for key in packed.split("|")]


def named(step):
    return [f"{sample.shard}/{sample.key}" for sample in step.samples]


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("encoder", "options"),
    [
        (None, {}),
        (Skipping, {}),
        (Packing, {"packing_buffer_size": 5}),
        (Skipping, {"virtual_epoch_length": 8}),
        (Skipping, {"filter_name": "some"}),
    ],
    ids=["plain", "skips", "packs", "epochs", "filter"],
)
def test_each_step_and_sample_of_a_run_on_three_topologies_is_found(captions, tmp_path, encoder, options):
    run, states, seen = tmp_path / "run", None, []
    length = options.pop("virtual_epoch_length", 0)
    for world, steps in ((2, 7), (4, 6), (1, 20)):
        if length:
            options = {**options, "virtual_epoch_length": length // world}
        if states is not None:
            states = redistribute(states, world)
        found, states = train_passes(captions, run, world, states, steps, encoder, options)
        seen += found
    opened = open_run(str(run))
    where: dict[str, list[tuple[int, int]]] = {}
    for step, of_ranks in enumerate(seen):
        answer = opened.which(step)
        assert [named(each) for each in answer] == of_ranks, step
        assert all(each.recorded for each in answer)
        for rank, keys in enumerate(of_ranks):
            for key in keys:
                where.setdefault(key, []).append((step, rank))
    for key in sorted(where)[::9]:
        assert [(each.step, each.rank) for each in opened.when(key)] == where[key]
    assert opened.end == len(seen)
    assert [each.step for each in opened.description.segments] == [0, 7, 13]


def train_passes(path, run, world, states, steps, encoder, options):
    """As :func:`train`, over the ends of virtual epochs."""
    if "virtual_epoch_length" not in options:
        return train(path, run, world, states, steps, encoder=encoder, **options)
    loaders = []
    for rank in range(world):
        config = WorkerConfig(rank, world, 0, num_streams=4)
        given = {**OPTIONS, "task_encoder": encoder(), **options}
        loaders.append(
            get_savable_loader(get_train_dataset(str(path), worker_config=config, **given), run=run)
        )
        if states is not None:
            loaders[-1].restore_state_global(states)

    def endless(loader):
        while True:
            yield from loader

    batches = [endless(loader) for loader in loaders]
    seen = [[keys_of(next(each)) for each in batches] for _ in range(steps)]
    saved = [loader.save_state_rank() for loader in loaders]
    for loader in loaders:
        loader.close()
    return seen, saved


def test_passes_that_end_are_recorded(captions, tmp_path):
    config = WorkerConfig(0, 1, 0, num_streams=4)
    dataset = get_val_dataset(
        str(captions), split_part="train", batch_size=7, worker_config=config, task_encoder=Skipping()
    )
    with get_savable_loader(dataset, run=tmp_path / "run") as loader:
        seen = [keys_of(batch) for _ in range(3) for batch in loader]
    opened = open_run(str(tmp_path / "run"))
    assert [named(opened.which(step)[0]) for step in range(len(seen))] == seen
    assert [each.step for each in opened.when(seen[0][0])] == [
        step for step, keys in enumerate(seen) if seen[0][0] in keys
    ]


def test_workers_take_notes(captions, tmp_path):
    config = WorkerConfig(0, 1, 2)
    dataset = get_train_dataset(str(captions), worker_config=config, task_encoder=Skipping(), **OPTIONS)
    with get_savable_loader(dataset, run=tmp_path / "run") as loader:
        seen = [keys_of(batch) for _, batch in zip(range(12), loader, strict=False)]
    opened = open_run(str(tmp_path / "run"))
    assert [named(opened.which(step)[0]) for step in range(12)] == seen


def test_a_loader_that_is_closed_and_iterated_again_goes_on(captions, tmp_path):
    dataset = get_train_dataset(
        str(captions), worker_config=WorkerConfig(0, 1, 0), task_encoder=Skipping(), **OPTIONS
    )
    loader = get_savable_loader(dataset, run=tmp_path / "run")
    seen = [keys_of(batch) for _, batch in zip(range(5), loader, strict=False)]
    loader.close()
    seen += [keys_of(batch) for _, batch in zip(range(5), loader, strict=False)]
    loader.close()
    opened = open_run(str(tmp_path / "run"))
    found = [named(opened.which(step)[0]) for step in range(len(seen))]
    assert found == seen


def test_a_dataset_that_grows_under_way_has_segments_of_its_own(tmp_path):
    path, run = tmp_path / "data", str(tmp_path / "run")
    write_shards(path, shards=3, samples_per_shard=20, parts=lambda i: {"txt": b"x"})
    prepare_dataset(str(path), split_ratio=(1, 0, 0), dataset_yaml=TEXT_YAML)
    seen, (state,) = train(path, run, 1, None, 6)
    write_shards(path, shards=5, samples_per_shard=20, parts=lambda i: {"txt": b"x"})
    prepare_dataset(str(path), split_ratio=(1, 0, 0), dataset_yaml=TEXT_YAML, force=True)
    dataset = get_train_dataset(str(path), worker_config=WorkerConfig(0, 1, 0, num_streams=4), **OPTIONS)
    loader = get_savable_loader(dataset, run=run)
    loader.restore_state_rank(state, on_change="continue")
    seen += [[keys_of(batch)] for _, batch in zip(range(36), loader, strict=False)]
    loader.close()
    opened = open_run(run)
    assert [[named(opened.which(step)[0])] for step in range(len(seen))] == seen
    key = seen[40][0][0]
    assert [each.step for each in opened.when(key)] == [
        step for step, (keys,) in enumerate(seen) if key in keys
    ]


def test_steps_to_come_are_planned(captions, tmp_path):
    train(captions, tmp_path / "a", 1, None, 2)
    seen, _ = train(captions, tmp_path / "b", 1, None, 30)
    opened = open_run(str(tmp_path / "a"))
    answers = [opened.which(step)[0] for step in range(30)]
    assert [[named(answer)] for answer in answers] == seen
    assert [answer.recorded for answer in answers] == [True] * 2 + [False] * 28
    assert [each.step for each in opened.when(seen[20][0][0], until=30)] == [
        step for step, (keys,) in enumerate(seen) if seen[20][0][0] in keys
    ]


def test_a_crash_loses_no_step_after_the_checkpoint(captions, tmp_path):
    run = tmp_path / "run"
    first, states = train(captions, run, 2, None, 4, encoder=Skipping)
    train(captions, run, 2, states, 9, encoder=Skipping)  # given up
    again, _ = train(captions, run, 2, states, 5, encoder=Skipping)
    opened = open_run(str(run))
    assert [[named(each) for each in opened.which(step)] for step in range(9)] == first + again


def test_what_the_records_cannot_answer_is_a_named_error(captions, tmp_path):
    run = tmp_path / "run"
    with pytest.raises(RunNotFoundError, match="run="):
        open_run(str(run))
    train(captions, run, 2, None, 3, encoder=Packing, packing_buffer_size=5)
    opened = open_run(str(run))
    with pytest.raises(NotInRunError, match="steps before 3"):
        opened.which(3)
    with pytest.raises(NotInRunError, match="0 to 1"):
        opened.which(0, rank=2)
    with pytest.raises(NotInRunError, match="before the first"):
        opened.which(-1)
    with pytest.raises(NotInRunError, match="whole key"):
        opened.when("nothing")
    (log,) = (run / "steps-000000000000/rank-00001").iterdir()
    log.write_bytes(log.read_bytes()[:-1])
    with pytest.raises(RunDamagedError, match="rank-00001"):
        opened.which(0)
    (run / "run.json").write_text(
        (run / "run.json").read_text().replace('"seed_offset": 0', '"seed_offset": 1')
    )
    with pytest.raises(RunDamagedError, match="digest"):
        open_run(str(run))


def test_the_end_of_the_data_is_a_named_error(captions, tmp_path):
    config = WorkerConfig(0, 1, 0)
    dataset = get_val_dataset(str(captions), split_part="train", batch_size=50, worker_config=config)
    with get_savable_loader(dataset, run=tmp_path / "run") as loader:
        next(iter(loader))
    with pytest.raises(NotInRunError, match="ends before"):
        open_run(str(tmp_path / "run")).which(3)


def test_another_run_and_a_changed_dataset_are_refused(tmp_path):
    path = prepared_captioning_dataset(
        tmp_path / "data", shards=3, samples_per_shard=20, split_ratio=(3, 0, 0)
    )
    train(path, tmp_path / "run", 1, None, 2)
    with pytest.raises(RunMismatchError, match="other data or options"):
        train(path, tmp_path / "run", 1, None, 2, batch_size=5)
    write_shards(path, shards=3, samples_per_shard=19, parts=lambda i: {"jpg": b"x", "txt": b"x"})
    prepare_dataset(str(path), split_ratio=(3, 0, 0), dataset_yaml=CAPTIONING_YAML, force=True)
    with pytest.raises(RunMismatchError, match="as it was"):
        open_run(str(tmp_path / "run")).which(0)


def test_another_dataset_of_equal_names_and_counts_is_refused(tmp_path):
    def write(word):
        parts = lambda number: {"txt": f"{word} {number:03d}".encode()}  # noqa: E731
        write_shards(tmp_path / "data", shards=2, samples_per_shard=20, parts=parts)
        prepare_dataset(str(tmp_path / "data"), split_ratio=(1, 0, 0), dataset_yaml=TEXT_YAML, force=True)
        return tmp_path / "data"

    run = tmp_path / "run"
    train(write("this"), run, 1, None, 2)
    write("this")  # again: the same
    open_run(str(run)).which(0)
    described = json.loads((run / "run.json").read_text())
    write("that")
    with pytest.raises(RunMismatchError, match="as it was"):
        open_run(str(run)).which(0)
    with pytest.raises(RunMismatchError, match="other data or options"):
        train(tmp_path / "data", run, 1, None, 2)
    # A run of an earlier version knows names and counts only.
    del described["digest"]
    described["version"] = 2
    for leaf in described["datasets"][0]["leaves"]:
        del leaf["content"]
    digest = hashlib.blake2b(json.dumps(described, sort_keys=True).encode(), digest_size=16).hexdigest()
    (run / "run.json").write_text(json.dumps({**described, "digest": digest}))
    open_run(str(run)).which(0)
    train(tmp_path / "data", run, 1, None, 2)


def test_the_commands_print_steps(captions, tmp_path):
    run = str(tmp_path / "run")
    seen, _ = train(captions, run, 1, None, 3)
    answer = CliRunner().invoke(main, ["which", run, "--step", "1", "--show"])
    assert answer.exit_code == 0, answer.output
    assert "Step 1, rank 0" in answer.output
    assert "caption" in answer.output
    answer = CliRunner().invoke(main, ["which", run, "--step", "1", "--rank", "0", "--json"])
    (found,) = json.loads(answer.output)["ranks"]
    assert [f"{each['shard']}/{each['key']}" for each in found["samples"]] == seen[1][0]
    answer = CliRunner().invoke(main, ["when", run, "--sample", seen[2][0][0]])
    assert "Step 2, rank 0" in answer.output, answer.output


@examples(60)
@given(st.data())
def test_skipping_is_advancing(data):
    def leaf(number):
        counts = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=6))
        starts = [sum(counts[:place]) for place in range(len(counts) + 1)]
        order = OrderSpec(
            data.draw(st.sampled_from([None, 4, 10])),
            data.draw(st.sampled_from([0, 12])),
            *data.draw(st.sampled_from([(1, None), (1, 1), (4, 2), (3, -1)])),
        )
        return LeafPlan(number, np.array(starts), order)

    leaves = (leaf(0), leaf(1))
    plan = data.draw(
        st.sampled_from(
            [
                leaves[0],
                RepeatPlan(leaves[0]),
                RepeatPlan(leaves[1], 2.5),
                BlendPlan((RepeatPlan(leaves[0]), RepeatPlan(leaves[1])), (1.0, 2.0)),
                RepeatPlan(BlendPlan(leaves, (1.0, 1.0))),
            ]
        )
    )
    schedule = build_schedule(plan, num_streams=1, stream=0, key=3)
    cursor = schedule.advance(schedule.begin(), data.draw(st.integers(0, 50)))
    count = data.draw(st.integers(0, 3000))
    module = sys.modules[skip.__module__]
    with patch.object(module, "NEAR", 1):
        assert skip(schedule, cursor, count) == schedule.advance(cursor, count)


@given(st.lists(st.tuples(st.integers(0, 1 << 18), st.integers(0, 1 << 40))))
def test_references_are_packed(refs):
    assert unpack_refs(pack_refs(refs)) == refs


@given(st.integers(1, 4), st.lists(st.integers(0, 3), max_size=12))
def test_turns_are_those_of_a_rotation(streams, lengths):
    from energon_stream.pipeline.stream_runner import Rotation

    rotation = Rotation(tuple(range(streams)), streams)
    left = dict(zip(range(streams), [*lengths, 1, 2, 3, 4], strict=False))
    batches, ends, seen = dict.fromkeys(range(streams), 0), [], []
    while rotation.passes < 1:
        stream = rotation.current()
        if not left[stream]:
            ends.append((len(seen), stream))
            rotation.end_stream()
            continue
        left[stream] -= 1
        seen.append((stream, batches[stream]))
        batches[stream] += 1
        rotation.advance()
    turns = Turns(0, tuple(range(streams)), (0,) * streams, 0, frozenset(), ends)
    for step, (stream, batch) in enumerate(seen):
        found, before = turns.before(step)
        assert (found, before[found]) == (stream, batch)
        assert turns.step_of(stream, batch, len(seen)) == step


@pytest.mark.every(2)
@pytest.mark.parametrize("draws", ["random", "even"])
def test_runs_of_mixtures_that_change_are_found(captions, tmp_path, draws):
    """By a schedule, and by the program; the answers are those of the loaders, on three topologies."""
    others = prepared_captioning_dataset(
        tmp_path / "others", shards=7, samples_per_shard=9, split_ratio=(7, 0, 0)
    )
    blend = [{"path": str(captions), "weight": {0: 3, 12: 1}}, {"path": str(others), "weight": 1}]
    blend.append({"path": str(captions), "weight": 0, "subset": {"range": ["0%", "50%"]}})
    document = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
    document["splits"] = {"train": {"blend": blend, "draws": draws}}
    path, run = tmp_path / "mix.yaml", tmp_path / "run"
    path.write_text(yaml.safe_dump(document))
    seen, states = [], None
    for world, steps, weights in ((2, 7, None), (4, 6, {"others": 3, "captions": 1}), (1, 12, {"others": 1})):
        loaders = []
        for rank in range(world):
            config = WorkerConfig(rank, world, 0, num_streams=4)
            dataset = get_train_dataset(str(path), worker_config=config, **OPTIONS)
            loaders.append(get_savable_loader(dataset, run=run))
            if states is not None:
                loaders[-1].restore_state_global(redistribute(states, world))
        if weights is not None:
            sources = [source.name for source in loaders[0].mixture().sources]
            named_by = {name: weights.get(name.partition(" ")[0], 0) for name in sources}
            for loader in loaders:
                loader.set_weights(named_by, at_step=len(seen) + 2)
        batches = [iter(loader) for loader in loaders]
        seen += [[keys_of(next(each)) for each in batches] for _ in range(steps)]
        states = [loader.save_state_rank() for loader in loaders]
        for loader in loaders:
            loader.close()
    opened = open_run(str(run))
    for step, of_ranks in enumerate(seen):
        assert [named(each) for each in opened.which(step)] == of_ranks, step
    later = open_run(str(run)).which(len(seen) + 5)
    assert all(sample.dataset.startswith(str(others)) for each in later for sample in each.samples)
    if draws == "even":  # an earlier version drew otherwise, and wrote no per_batch
        description = json.loads((run / "run.json").read_text())
        del description["digest"]
        for data in description["datasets"]:
            data["per_batch"] = 0
        text = json.dumps(description, sort_keys=True).encode()
        description["digest"] = hashlib.blake2b(text, digest_size=16).hexdigest()
        (run / "run.json").write_text(json.dumps(description))
        with pytest.raises(RunError, match="even draws of an earlier version"):
            open_run(str(run)).which(0)


@pytest.mark.every(2)
@pytest.mark.parametrize("view", [{"share": 0.4}, {"exclude": "twice.txt"}], ids=["share", "exclude"])
def test_runs_of_views_are_found(captions, tmp_path, monkeypatch, view):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "twice.txt").write_text("\n".join(f"{number:08}" for number in range(20)))
    run, seen, states = tmp_path / "run", [], None
    for world, steps in ((2, 5), (4, 4), (1, 10)):
        states = None if states is None else redistribute(states, world)
        found, states = train(captions, run, world, states, steps, encoder=Skipping, **view)
        seen += found
    monkeypatch.chdir("/")
    opened = open_run(str(run))
    for step, of_ranks in enumerate(seen):
        assert [named(each) for each in opened.which(step)] == of_ranks, step
    key = seen[3][0][0].rpartition("/")[2]
    assert 3 in [place.step for place in opened.when(key)]


def test_runs_of_planned_packs_are_found(captions, tmp_path):
    """Also of packs with a part of a sample; steps to come are refused."""

    class Packs(DefaultTaskEncoder):
        @stateless
        def pack_selected_samples(self, samples):
            return replace(samples[0], __key__="|".join(sample.__key__ for sample in samples))

    compute_costs(str(captions), "tokens", values=1 + np.arange(120) % 37)
    packing = PlannedPacking(cost="tokens", capacity=30, window=2, overlong="split")
    options = {"packing": packing, "batch_size": 1}
    run, seen, states = tmp_path / "run", [], None
    for world, steps in ((2, 5), (4, 4), (1, 10)):
        states = None if states is None else redistribute(states, world)
        found, states = train(captions, run, world, states, steps, encoder=Packs, **options)
        seen += found
    opened = open_run(str(run))
    for step, of_ranks in enumerate(seen):
        assert [named(each) for each in opened.which(step)] == of_ranks, step
    with pytest.raises(NotInRunError):
        opened.which(len(seen) + 3)


def begun(path, run, skipping=False, states=None, world=1):
    """Begin a job; return its loaders, and the keys of the first steps."""
    loaders, seen = [], []
    for rank in range(world):
        config = WorkerConfig(rank, world, 0, num_streams=4)
        options = {"task_encoder": Skipping()} if skipping else {}
        loader = get_savable_loader(
            get_train_dataset(str(path), worker_config=config, **OPTIONS, **options), run=run
        )
        if states is not None:
            loader.restore_state_global(states)
        loaders.append(loader)
        batches = iter(loader)
        seen.append([keys_of(next(batches)) for _ in range(6)])
    return loaders, seen


def test_a_second_job_in_the_folder_is_refused_and_the_first_ones_record_stays(captions, tmp_path):
    run = str(tmp_path / "run")
    (first,), (seen,) = begun(captions, run)
    for world in (1, 2):
        with pytest.raises(
            RunMismatchError, match=r"process \d+ on .* records another job.*folder of its own"
        ):
            begun(captions, run, skipping=True, world=world)
    first.save_state_rank()
    assert [named(open_run(run).which(step)[0]) for step in range(6)] == seen
    first.close()
    (again,), (other,) = begun(captions, run, skipping=True)  # from the start, in place of the first
    again.close()
    assert other != seen
    assert [named(open_run(run).which(step)[0]) for step in range(6)] == other


def test_a_job_that_resumes_takes_over_with_any_number_of_ranks(captions, tmp_path, caplog):
    run = str(tmp_path / "run")
    (first,), (seen,) = begun(captions, run)
    states = redistribute([first.save_state_rank()], 2)
    later, after = begun(captions, run, states=states, world=2)  # while the first still runs
    batches = iter(first)
    for _ in range(6):
        next(batches)
    first.save_state_rank()
    assert "the steps of this one are no longer recorded" in caplog.text
    first.close()
    for loader in later:
        loader.close()
    opened = open_run(run)
    assert [named(opened.which(step)[0]) for step in range(6)] == seen
    for step in range(6):
        answers = opened.which(6 + step)
        assert [named(answer) for answer in answers] == [keys[step] for keys in after]
        assert all(answer.recorded for answer in answers)
