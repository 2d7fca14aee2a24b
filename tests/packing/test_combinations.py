"""Planned packing together with what else chooses samples and batches."""

from collections import Counter

import numpy as np
import pytest
from packed import SAMPLES, Packs, opened, taken, tokens, write
from repetitions import is_nightly

from energon_stream import compute_costs, get_savable_loader
from energon_stream.errors import StateMismatchError
from energon_stream.prepare.add_tables import add_table

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

CLIP = np.random.default_rng(1).random(SAMPLES)
WEIGHT = np.arange(SAMPLES) % 4 + 0.5


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("views")
    lengths = np.clip(np.random.default_rng(0).lognormal(2.5, 1.1, SAMPLES), 1, 260).astype(int)
    path = write(root / "texts", lengths)
    compute_costs(path, "tokens", tokens)
    pq.write_table(pa.table({"clip": CLIP, "weight": WEIGHT}), root / "values.parquet")
    add_table(path, root / "values.parquet")
    (root / "keys.txt").write_text("data-000001.tar/00040\n00007\n")
    return path


def counted(dataset):
    """How often each sample of a pass begins."""
    pieces = (piece for batch in dataset for pack in batch for piece in pack)
    return Counter(int(key.rpartition("/")[2]) for key, start, _ in pieces if start == 0)


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        ({"where": "clip > 0.5"}, np.flatnonzero(CLIP > 0.5)),
        ({"exclude": "keys.txt"}, np.delete(np.arange(SAMPLES), [7, 40])),
        ({"where": "clip > 0.9", "exclude": "keys.txt"}, np.flatnonzero(CLIP > 0.9)),
    ],
    ids=["where", "exclude", "both"],
)
def test_packs_of_a_view_have_its_samples(folder, view, expected):
    if "exclude" in view:
        view = {**view, "exclude": folder.replace("texts", "keys.txt")}
    found = counted(opened(folder, repeat=False, view=view))
    assert sorted(found) == expected.tolist()
    assert set(found.values()) == {1}


def test_weights_of_a_view_hold_in_packs(folder):
    found = counted(opened(folder, repeat=False, view={"weight_by": "weight"}))
    assert found.total() == SAMPLES
    assert all(abs(found[n] - WEIGHT[n] / WEIGHT.mean()) < 1 for n in range(SAMPLES))


def test_packs_in_groups_resume(folder):
    class Groups(Packs):
        def batch_group_criterion(self, pack):
            return len(pack) % 2, None

    expected = [batch for batch, _ in zip(opened(folder, encoder=Groups), range(30), strict=False)]
    loader = get_savable_loader(opened(folder, encoder=Groups))
    batches = iter(loader)
    for _ in range(9):
        next(batches)
    again = get_savable_loader(opened(folder, encoder=Groups))
    again.restore_state_rank(loader.save_state_rank())
    resumed = iter(again)
    assert [next(resumed) for _ in range(21)] == expected[9:]


def test_a_view_with_packs_resumes_on_any_ranks_and_no_other_view_does(folder):
    view = {"where": "clip > 0.3", "share": 0.8}
    expected = taken(opened(folder, view=view), 40)
    loader = get_savable_loader(opened(folder, view=view))
    batches = iter(loader)
    for _ in range(12):
        next(batches)
    state = loader.save_state_global(0)
    for world in (1, 2, 4) if is_nightly() else (2, 4):
        found = [None] * 28
        for rank in range(world):
            resumed = get_savable_loader(opened(folder, rank, world, view=view))
            resumed.restore_state_global(state)
            again = iter(resumed)
            found[rank::world] = [next(again)[0] for _ in range(28 // world)]
            resumed.close()
        assert found == expected[12:]
    other = get_savable_loader(opened(folder, view={"where": "clip > 0.4", "share": 0.8}))
    with pytest.raises(StateMismatchError):
        other.restore_state_global(state, on_change="continue")


BLEND = """__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    blend:
      - {path: a, weight: 2}
      - {path: b, weight: 1}
"""


@pytest.mark.parametrize("options", [{"draws": "even"}, {"weight_unit": "tokens"}], ids=["even", "tokens"])
def test_each_window_has_its_shares_of_even_draws_and_of_tokens(tmp_path, options):
    """After each window of 32 packs, sources of other lengths are within a sample of their shares."""
    for number, name in enumerate("ab"):
        draw = np.random.default_rng(number).lognormal(2.5 + number, 1.1, 120)
        lengths = np.clip(draw, 2, 90).astype(int) // 2 * 2 + number  # those of b are odd
        compute_costs(write(tmp_path / name, lengths), "tokens", tokens)
    (tmp_path / "mix.yaml").write_text(BLEND)
    read = {"overlong": "error", "view": options}
    loader = get_savable_loader(opened(tmp_path / "mix.yaml", **read))
    packs, state, batches = [], None, iter(loader)
    for number in range(96):
        if number == 32:
            state = loader.save_state_rank()
        packs.append(next(batches)[0])
    counted, longest = np.zeros(2), 1 if "draws" in options else 91
    for number, pack in enumerate(packs, 1):
        for _, _, length in pack:
            counted[length % 2] += 1 if "draws" in options else length
        if number % 32 == 0:
            assert abs(counted[0] - 2 * counted[1]) / 3 <= longest
    world = 4 if is_nightly() else 2
    ranks = [get_savable_loader(opened(tmp_path / "mix.yaml", rank, world, **read)) for rank in range(world)]
    for rank in ranks:
        rank.restore_state_global([state])
    resumed = [iter(rank) for rank in ranks]
    assert [next(rank)[0] for _ in range(32 // world) for rank in resumed] == packs[32:64]
