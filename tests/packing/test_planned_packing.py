"""Planned packs end to end: the same steps on any ranks, exact resume, and bad input by name."""

import random

import numpy as np
import pytest
from packed import CAPACITY, SAMPLES, STREAMS, Packs, opened, taken, tokens, with_states, write
from repetitions import is_nightly

from energon_stream import DefaultTaskEncoder, compute_costs, get_savable_loader, read_costs, stateless
from energon_stream.errors import ConfigError, CostsError
from energon_stream.pipeline.stream_runner import StreamRunner


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    lengths = np.clip(np.random.default_rng(0).lognormal(2.5, 1.1, SAMPLES), 1, 260).astype(int)
    path = write(tmp_path_factory.mktemp("packing") / "texts", lengths)
    compute_costs(path, "tokens", tokens)
    return path


@pytest.mark.parametrize("workers", [0, 2])
def test_global_steps_are_the_same_on_any_ranks(folder, workers):
    count = 48
    expected = taken(opened(folder), count)
    is_short = workers and not is_nightly()  # one rank of two has workers by day
    for world in (2,) if is_short else (1, 2, 4) if is_nightly() else (2, 4):
        if workers and STREAMS // world < workers:
            continue
        for rank in (1,) if is_short else range(world):
            assert taken(opened(folder, rank, world, workers), count // world) == expected[rank::world]


def test_each_sample_comes_once_in_a_pass(folder):
    packs = [pack for batch in opened(folder, repeat=False) for pack in batch]
    costs = read_costs(folder, "tokens")
    pieces = sorted(piece for pack in packs for piece in pack)
    assert sum(stop - start for _, start, stop in pieces) == costs.sum()
    assert len({(key, start) for key, start, _ in pieces}) == len(pieces)
    assert any(start for _, start, _ in pieces)
    assert all(sum(stop - start for _, start, stop in pack) <= CAPACITY for pack in packs)


def test_a_dataset_without_repetition_knows_its_packs(folder):
    dataset = opened(folder, repeat=False)
    assert len(dataset) == len(list(dataset))


def test_resume_is_exact_at_random_places(folder):
    dataset = opened(folder)
    values, states = with_states(dataset, 160 if is_nightly() else 90)
    carried = []  # places between the parts of a sample
    for at in range(len(values) - 10):
        seen = {key for pack in values[: at + 1] for key, _, _ in pack}
        if any(start and key in seen for pack in values[at + 1 : at + 5] for key, start, _ in pack):
            carried.append(at)
    draw = random.Random(1)
    drawn = draw.sample(range(len(values) - 10), 40 if is_nightly() else 5)
    for at in [*drawn, *draw.sample(carried, 3)]:
        saved, rotation = states[at]
        resumed = StreamRunner(dataset, range(STREAMS), saved, rotation.copy())
        assert [resumed.step().value[0] for _ in range(8)] == values[at + 1 : at + 9]
        resumed.close()


def test_samples_that_a_hook_drops_leave_the_other_packs_as_they_are(folder):
    from energon_stream import SkipSample

    class Fewer(Packs):
        @stateless
        def encode_sample(self, sample):
            if int(sample.__key__[-1]) % 3 == 0:
                raise SkipSample
            return sample

    every, fewer = opened(folder), opened(folder, encoder=Fewer)
    expected = [[p for p in pack if int(p[0][-1]) % 3] for pack in taken(every, 40)]
    found = taken(fewer, 40)
    before = {
        s: next((n for n, pack in enumerate(expected[s::STREAMS]) if not pack), 10) for s in range(STREAMS)
    }
    assert max(before.values()) > 1
    for stream, count in before.items():  # an emptied pack borrows a sample of the next ones
        assert found[stream::STREAMS][:count] == expected[stream::STREAMS][:count]
    equal = sum(one == other for one, other in zip(found, expected, strict=True))
    assert equal >= 30


def test_drop_leaves_long_samples_out_unread(folder):
    costs = read_costs(folder, "tokens")
    packs = [pack for batch in opened(folder, repeat=False, overlong="drop") for pack in batch]
    assert sum(len(pack) for pack in packs) == (costs <= CAPACITY).sum()


def test_costs_extend_by_new_and_changed_shards_only(tmp_path):
    path = write(tmp_path / "d", [5] * 40, shard=10)
    assert compute_costs(path, "tokens", tokens).computed == 4
    assert compute_costs(path, "tokens", tokens).computed == 0
    tar = sorted((tmp_path / "d").rglob("*.tar"))[1]
    data = tar.read_bytes()
    tar.write_bytes(data)
    with pytest.raises(CostsError, match="cost"):
        read_costs(path, "tokens")
    assert compute_costs(path, "tokens", tokens).computed == 1
    assert read_costs(path, "tokens").tolist() == [5] * 40


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0, 2.0**63, 2**53])
def test_bad_costs_are_refused(folder, tmp_path, bad):
    path = write(tmp_path / "d", [5] * 10)
    with pytest.raises(CostsError, match="sample 3"):
        compute_costs(path, "tokens", values=[1, 1, 1, bad, 1, 1, 1, 1, 1, 1])
    with pytest.raises(CostsError, match="9 costs for 10 samples"):
        compute_costs(path, "tokens", values=[1] * 9)
    with pytest.raises(CostsError):
        opened(path, cost=[1, bad] + [1] * 8)
    with pytest.raises(CostsError, match="number for each sample"):
        opened(path, cost=[[1], [2, 3]])
    with pytest.raises(CostsError, match="energon-stream cost"):
        opened(path)


def test_options_that_cannot_be_honoured_raise(folder):
    with pytest.raises(ConfigError, match="longer than 100"):
        opened(folder, overlong="error")
    with pytest.raises(ConfigError, match="no sample"):
        opened(folder, capacity=1, cost=[2] * SAMPLES, overlong="drop")
    with pytest.raises(CostsError, match="200 samples"):
        opened(folder, cost=[2, 3])
    with pytest.raises(CostsError, match="whole"):
        opened(folder, cost=[2.5] * SAMPLES)
    with pytest.raises(ConfigError, match="multiple"):
        opened(folder, global_batch_size=6)
    with pytest.raises(ConfigError, match="how to pack"):
        opened(folder, encoder=DefaultTaskEncoder)
    with pytest.raises(ConfigError, match="load"):
        opened(folder, load="cubic")
    for option in ("capacity", "window", "global_batch_size"):
        for wrong in (0, 100.0, "100"):
            with pytest.raises(ConfigError, match=f"{option} of the packing is {wrong!r}"):
                opened(folder, **{option: wrong})
    for option in ("capacity", "window"):
        with pytest.raises(ConfigError, match=f"{option} of the packing is None"):
            opened(folder, **{option: None})
    with pytest.raises(ConfigError, match="cost has no names"):
        opened(folder, cost={}, capacity={})


def test_the_command(folder):
    from click.testing import CliRunner

    from energon_stream.cli.main import main

    ran = CliRunner().invoke(
        main, ["cost", folder, "--name", "parts", "--function", "builtins:len", "--json"]
    )
    assert ran.exit_code == 0, ran.output
    assert set(read_costs(folder, "parts").tolist()) == {2}


def test_what_has_no_planned_packs_is_refused(folder, tmp_path):
    loader = get_savable_loader(opened(folder))
    with pytest.raises(ConfigError, match="planned packing"):
        loader.set_weights({"data": 1})
    with pytest.raises(ConfigError, match="planned packing"):
        loader.mixture()
    loader.close()
    lines = ["__module__: megatron.energon", "__class__: MetadatasetV2", "splits:", "  train:", "    blend:"]
    weights = ("2", "{0: 1, 5: 2}")
    paths = [f"      - {{path: {folder}, weight: {weight}}}" for weight in weights]
    (tmp_path / "mix.yaml").write_text("\n".join([*lines, *paths]))
    with pytest.raises(ConfigError, match="one weight for each dataset"):
        opened(str(tmp_path / "mix.yaml"))
