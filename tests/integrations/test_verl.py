"""verl: rows by number and in the dataset's own order, in the loaders that its trainers make."""

import random
from functools import partial
from itertools import islice

import pytest
import torch

StatefulDataLoader = pytest.importorskip(
    "torchdata.stateful_dataloader", reason="no torchdata (the extra 'torchdata')"
).StatefulDataLoader

from framework_examples import Example  # noqa: E402
from torchdata.stateful_dataloader.sampler import RandomSampler  # noqa: E402

from energon_stream import (  # noqa: E402
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    open_dataset,
)
from energon_stream.errors import ConfigError, StateError, StateMismatchError  # noqa: E402
from energon_stream.integrations.verl import ShuffledRows, VerlRows, deal_states  # noqa: E402


def open_train(path, workers=0, **options):
    config = WorkerConfig(0, 1, workers, num_streams=4)
    return get_train_dataset(path, batch_size=None, worker_config=config, **options)


class Rows(VerlRows):
    """``files`` is a function that opens the rows, or what ``of`` opens."""

    of = staticmethod(lambda files: files())

    def open(self, files):
        return self.of(files)


def make_loader(opened, batch_size=3, seed=None, **options):
    """As RayPPOTrainer makes it."""
    rows = Rows(data_files=opened, tokenizer=None, processor=None, config={}, max_samples=-1)
    if seed is not None:
        options["sampler"] = RandomSampler(rows, generator=torch.Generator().manual_seed(seed))
    return StatefulDataLoader(rows, batch_size, drop_last=True, collate_fn=keys, **options)


def keys(rows):
    return [row.__key__ for row in rows]


@pytest.mark.parametrize("workers", [0, 2])
def test_streamed_rows_go_on_wherever_the_loader_was_saved(data, workers):
    opened = partial(open_train, data / "coco", workers)
    expected = keys(islice(get_savable_loader(opened()), 30))
    loader = make_loader(opened)
    states = []
    for batch in islice(loader, 6):
        assert batch == expected[len(states) * 3 : len(states) * 3 + 3]
        states.append(loader.state_dict())
    for given in (1, 4, 6):
        again = make_loader(opened)
        again.load_state_dict(states[given - 1])
        assert list(islice(again, 3)) == [expected[at : at + 3] for at in range(given * 3, given * 3 + 9, 3)]


def test_a_dataset_that_ends_is_the_same_in_each_epoch(data):
    loader = make_loader(partial(open_train, data / "coco", repeat=False))
    whole = list(loader)
    assert len(whole) == 13  # of 40 rows
    assert list(loader) == whole
    state = loader.state_dict()
    for _ in zip(range(5), loader, strict=False):
        middle = loader.state_dict()
    assert list(loader) == whole
    loader.load_state_dict(middle)
    assert list(loader) == whole[5:]
    assert list(loader) == whole
    loader.load_state_dict(state)
    assert list(loader) == whole


def test_options_that_do_not_fit_are_refused(data):
    opened = partial(open_train, data / "coco")
    with pytest.raises(ConfigError, match=r"row \d+ is wanted.*data.shuffle=False"):
        next(iter(make_loader(opened, sampler=[7, 3, 5])))
    with pytest.raises(ConfigError, match="max_samples"):
        Rows(opened, max_samples=10)
    with pytest.raises(ConfigError, match="sft_trainer"):
        Rows(parquet_files=opened)
    with pytest.raises(ConfigError, match="validation on an endless dataset"):
        Rows(opened, config={"val_files": opened})
    with pytest.raises(NotImplementedError):
        VerlRows("here")


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_by_number(data, workers):
    opened = partial(open_dataset, data / "coco")
    whole = list(make_loader(opened, seed=3, num_workers=workers))
    assert len({key for batch in whole for key in batch}) == 39
    loader = make_loader(opened, seed=3, num_workers=workers)
    for given, batch in zip(range(1, 5), loader, strict=False):
        assert batch == whole[given - 1]
        state = loader.state_dict()
    again = make_loader(opened, seed=3, num_workers=workers)
    again.load_state_dict(state)
    assert list(again) == whole[4:]
    assert len(Rows(opened, max_samples=10)) == 10
    with pytest.raises(StateMismatchError, match="of 40 rows, here 5"):
        Rows(partial(opened, split_part="val")).load_state_dict({"rows": 40})


@pytest.mark.parametrize("workers", [0, 2])
def test_shuffled_rows_go_on_over_the_ends_of_passes(data, workers):
    """verl restores no position at the end of an epoch, so the passes are one epoch to it."""
    opened = partial(open_dataset, data / "coco")
    plain = keys(opened()[:])

    def make():
        return make_loader(lambda: ShuffledRows(opened(), seed=3), 4, num_workers=workers)

    whole, states, loader = [], [], make()
    for batch in islice(loader, 30):
        whole.append(batch)
        states.append(loader.state_dict())
    passes = [[key for batch in whole[begin : begin + 10] for key in batch] for begin in (0, 10, 20)]
    assert [sorted(each) for each in passes] == [sorted(plain)] * 3
    assert len({tuple(each) for each in (plain, *passes)}) == 4
    for given in (9, 10, 11, 20):
        again = make()
        again.load_state_dict(states[given - 1])
        assert list(islice(again, 5)) == whole[given : given + 5]
    rows = ShuffledRows(opened())
    with pytest.raises(IndexError):
        rows[len(rows)]
    for mistake in (
        {"config": {"val_files": opened}},
        {"config": {"shuffle": True}},
        {"parquet_files": opened},
    ):
        with pytest.raises(ConfigError, match="end"):
            Rows(**{"data_files": opened, **mistake}, of=lambda files: ShuffledRows(files()))
    with pytest.raises(StateMismatchError, match="a state of"):
        Rows(lambda: ShuffledRows(opened()[:39])).load_state_dict(Rows(lambda: rows).state_dict())


@pytest.mark.parametrize("workers", [0, 2])
def test_fine_tuning_goes_on_with_other_ranks(data, tmp_path, workers):
    """As SFTTrainer makes its loaders: the steps have the rows of an undisturbed run on one rank."""

    def open_ranks(ranks):
        rows = Rows(parquet_files=partial(open_dataset, data / "coco"))
        make = partial(torch.utils.data.DistributedSampler, rows, ranks, shuffle=True, drop_last=True)
        samplers = [make(rank) for rank in range(ranks)]
        options = {"batch_size": 6 // ranks, "drop_last": True, "collate_fn": keys, "num_workers": workers}
        return [StatefulDataLoader(rows, sampler=sampler, **options) for sampler in samplers]

    whole = [sorted(batch) for batch in open_ranks(1)[0]]
    draw, found, ranks = random.Random(workers), [], 0
    for _ in range(5):
        other = draw.choice([number for number in (1, 2, 3, 6) if number != ranks])
        loaders = open_ranks(other)
        if ranks:
            deal_states(tmp_path, other)
            assert len(list(tmp_path.iterdir())) == other
            for rank, loader in enumerate(loaders):
                loader.load_state_dict(torch.load(tmp_path / f"data_{rank}.pt", weights_only=False))
        parts = zip(*map(iter, loaders), strict=True)
        found.append(sorted(key for part in next(parts) for key in part))
        for rank, loader in enumerate(loaders):
            torch.save(loader.state_dict(), tmp_path / f"data_{rank}.pt")
        ranks = other
    assert found == whole[:5]
    with pytest.raises(StateError, match="cannot be dealt to 7"):
        deal_states(tmp_path, 7)
    with pytest.raises(StateError, match="0 ranks"):
        deal_states(tmp_path / "nothing", 2)


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--mapped",)])
def test_the_example_goes_on_after_ten_kills_in_verls_own_trainer(run, data, tmp_path, options):
    pytest.importorskip("verl", reason="no verl (`make frameworks` has it)")
    example = Example(run, "verl_rows.py", "--checkpoint", data / "coco", tmp_path)
    run.preload = ()
    # By number, a pass over the rows has ten steps.
    whole = example.whole(40, *options)
    # Kills are in the pause: verl writes the name of the newest checkpoint in place, and a kill can empty it.
    example.check_kills(whole, (1,) * 11, *options, "--step-seconds", 0.3)
