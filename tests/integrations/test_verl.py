"""verl: rows by number and in the dataset's own order, in the loaders that its trainers make."""

import random
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

StatefulDataLoader = pytest.importorskip(
    "torchdata.stateful_dataloader", reason="no torchdata (the extra 'torchdata')"
).StatefulDataLoader

from framework_examples import Example  # noqa: E402
from repetitions import is_nightly  # noqa: E402
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
    for given in (9, 10, 11, 20) if is_nightly() else (9, 10):
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
    for _ in range(5 if is_nightly() else 3):
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
    assert found == whole[: len(found)]
    with pytest.raises(StateError, match="cannot be dealt to 7"):
        deal_states(tmp_path, 7)
    with pytest.raises(StateError, match="0 ranks"):
        deal_states(tmp_path / "nothing", 2)


class Tuned(VerlRows):
    """What SFTTrainer imports from this file: numbers of the dataset's rows."""

    def open(self, files):
        rows = open_dataset(files)
        return [{"input_ids": torch.tensor([number])} for number in range(len(rows))]


class Replica:
    """In the place of the engine with the model: one of some data-parallel ranks."""

    def __init__(self, rank, ranks):
        self.get_data_parallel_rank, self.get_data_parallel_size = lambda: rank, lambda: ranks
        self.is_mp_src_rank_with_outputs = lambda: True

    def save_checkpoint(self, local_path, **options):
        Path(local_path).mkdir(parents=True, exist_ok=True)

    def load_checkpoint(self, path):
        pass


@pytest.fixture
def one_process():
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_ten_resizes_in_verls_own_fine_tuning_over_ends_of_epochs(data, tmp_path, workers, one_process):
    """SFTTrainer's functions make the loaders, and its handler saves and loads them; fit's loop is below."""
    pytest.importorskip("verl", reason="no verl (`make frameworks` has it)")
    from omegaconf import OmegaConf
    from verl.trainer.sft_trainer import SFTTrainer

    section = {
        "train_files": str(data / "coco"),
        "val_files": None,
        "train_batch_size": 6,
        "pad_mode": "right",
    }
    section |= {"num_workers": workers, "custom_cls": {"path": __file__, "name": "Tuned"}}

    def open_ranks(ranks, folder):
        trainers = []
        for rank in range(ranks):
            trainer = SFTTrainer.__new__(SFTTrainer)
            trainer.config = OmegaConf.create(
                {"data": section, "model": {}, "trainer": {"default_local_dir": str(folder)}}
            )
            trainer.model_config = SimpleNamespace(tokenizer=None, processor=None)
            trainer.engine = Replica(rank, ranks)
            trainer._build_dataset()
            trainer._build_dataloader()
            trainer._build_ckpt_handler()
            trainer.resume_global_step = trainer.ckpt_handler.load_checkpoint()
            trainers.append(trainer)
        return trainers

    def fit(trainers, end):
        """Yield the step, and the rows of all ranks, as SFTTrainer.fit gets them."""
        (step,) = {trainer.resume_global_step for trainer in trainers}
        for epoch in range(step // len(trainers[0].train_dataloader), 1000):
            for trainer in trainers:
                trainer.train_sampler.set_epoch(epoch=epoch)
            for parts in zip(*[trainer.train_dataloader for trainer in trainers], strict=True):
                step += 1
                yield step, sorted(int(row) for part in parts for row in part["input_ids"])
                if step == end:
                    return

    whole = dict(fit(open_ranks(1, tmp_path / "whole"), 60))
    passes = [[row for step in range(begin, begin + 6) for row in whole[step]] for begin in (1, 7)]
    assert [len({*rows}) for rows in passes] == [36, 36]  # of 40 rows
    assert passes[0] != passes[1]
    draw, folder, ranks, saved, found = random.Random(workers), tmp_path / "killed", 0, 0, {}
    for _ in range(11):
        ranks = draw.choice([number for number in (1, 2, 3, 6) if number != ranks])
        if saved:
            deal_states(folder / f"global_step_{saved}", ranks)
        trainers = open_ranks(ranks, folder)
        saved += draw.randint(2, 4)
        saved += saved % 6 == 0  # verl leaves out the epoch after a checkpoint at the end of one
        for step, rows in fit(trainers, saved + draw.randint(0, 2)):
            assert rows == whole[step], step
            found[step] = rows
            if step == saved:
                for trainer in trainers:
                    trainer.ckpt_handler.save_checkpoint(step)
    assert [*found] == [*range(1, len(found) + 1)]
    assert len(found) > 24


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--mapped",)])
def test_the_example_goes_on_after_ten_kills_in_verls_own_trainer(run, data, tmp_path, options):
    pytest.importorskip("verl", reason="no verl (`make frameworks` has it)")
    example = Example(run, "verl_rows.py", "--checkpoint", data / "coco", tmp_path, alone=())
    run.preload = ()
    # By number, a pass over the rows has ten steps.
    whole = example.whole(40, *options)
    # Kills are in the pause: verl writes the name of the newest checkpoint in place, and a kill can empty it.
    example.check_kills(whole, (1,) * 11, *options, "--step-seconds", 0.3)
