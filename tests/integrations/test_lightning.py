"""PyTorch Lightning: the data module's batches, and going on from checkpoints of any moment with exactly the
next one.
"""

import multiprocessing
from itertools import chain, islice

import pytest
import torch

L = pytest.importorskip("lightning.pytorch", reason="no Lightning (the extra 'lightning')")

from framework_examples import TEN_KILLS, Example  # noqa: E402
from repetitions import is_nightly  # noqa: E402

from energon_stream import (  # noqa: E402
    DefaultTaskEncoder,
    ReadOptions,
    SkipSample,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
)
from energon_stream.errors import ConfigError, StateInUseError  # noqa: E402
from energon_stream.integrations.lightning import EnergonDataModule  # noqa: E402
from energon_stream.integrations.lightning.loaders import TrainLoader  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")

TRAIN = {
    "batch_size": 3,
    "shuffle_buffer_size": 10,
    "max_samples_per_sequence": 4,
    "read_options": ReadOptions(max_ahead=64),  # a tiny dataset would be planned for hundreds of passes
}
"""Of 40 samples: 14 batches of one stream, 2 x 7 of two."""


class TrainOnly(L.LightningModule):
    """Remembers the batches it sees."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
        self.seen = []
        self.epochs = []
        self.validated = []
        self.tested = []

    def training_step(self, batch, batch_idx):
        self.seen.append(tuple(batch.__key__))
        self.epochs.append(self.current_epoch)
        return self.layer(batch.image.mean((2, 3))).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Model(TrainOnly):
    """Validates and tests, too."""

    def validation_step(self, batch, batch_idx):
        self.validated.append((self.trainer.sanity_checking, tuple(batch.__key__)))

    def test_step(self, batch, batch_idx):
        self.tested.append(tuple(batch.__key__))


class OwnIterator(TrainOnly):
    """Fetches what it trains on itself, two batches a step."""

    def training_step(self, dataloader_iter):
        for _ in range(2):
            batch, *_ = next(dataloader_iter)
            self.seen.append(tuple(batch.__key__))
        return self.layer(batch.image.mean((2, 3))).mean()


HOOKS = ("on_train_batch_start", "on_train_batch_end", "on_validation_end", "on_train_epoch_end")


class SaveAlways(L.Callback):
    """Saves a checkpoint whenever a hook is called, with the number of batches trained on by then; or only
    after these numbers of them.
    """

    def __init__(self, folder, after=None):
        self.folder, self.after = folder, after
        self.saved = []

    def save(self, hook, trainer, model):
        trained = len(model.seen)
        if trainer.sanity_checking or (self.after is not None and trained not in self.after):
            return
        path = self.folder / f"{len(self.saved):03d}.ckpt"
        trainer.save_checkpoint(path)
        self.saved.append((hook, trained, path))

    def on_train_batch_start(self, trainer, model, *_):
        self.save("on_train_batch_start", trainer, model)

    def on_train_batch_end(self, trainer, model, *_):
        self.save("on_train_batch_end", trainer, model)

    def on_validation_end(self, trainer, model):
        self.save("on_validation_end", trainer, model)

    def on_train_epoch_end(self, trainer, model):
        self.save("on_train_epoch_end", trainer, model)


@pytest.fixture
def fit(tmp_path):
    """Train with a new trainer; returns the model."""

    def fit(data, checkpoint=None, model=None, callbacks=(), **options):
        model = Model() if model is None else model
        settings = {"enable_checkpointing": False, "num_sanity_val_steps": 0, **options}
        trainer = L.Trainer(
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
            callbacks=list(callbacks),
            **settings,
        )
        trainer.fit(model, data, ckpt_path=checkpoint)
        return model

    return fit


def open_train(data, config, **options):
    return get_train_dataset(data / "coco", worker_config=config, **{**TRAIN, **options})


def expected_batches(data, count, **options):
    """The batches that a loader gives, pass after pass."""
    loader = get_savable_loader(open_train(data, WorkerConfig(0, 1, 0, num_streams=2), **options))
    passes = chain.from_iterable(loader for _ in range(count))
    return [tuple(batch.__key__) for batch in islice(passes, count)]


class SkipSome(DefaultTaskEncoder):
    """Skips samples, so that a pass has fewer batches than could be known."""

    def encode_sample(self, sample):
        if int(sample.caption.split()[1]) % 3 == 0:
            raise SkipSample
        return sample


CASES = {
    # Of Lightning's epochs: what ends them, whether their length is known, batches of one, and of all.
    "endless": ({}, {}, 14, 28),
    "endless, limited": ({}, {"limit_train_batches": 4}, 4, 8),
    "virtual epochs": ({"virtual_epoch_length": 5}, {}, 5, 10),
    "virtual epochs, limited": ({"virtual_epoch_length": 5}, {"limit_train_batches": 5}, 5, 10),
    "passes": ({"repeat": False}, {}, 14, 28),
    "passes, limited": ({"repeat": False}, {"limit_train_batches": 14}, 14, 28),
    "steps": ({}, {"max_steps": 9, "max_epochs": -1, "val_check_interval": 4}, 9, 9),
    "steps in virtual epochs": ({"virtual_epoch_length": 4}, {"max_steps": 9, "max_epochs": -1}, 4, 9),
    "steps in passes": ({"repeat": False}, {"max_steps": 17, "max_epochs": -1}, 14, 17),
}


def module(data, workers=0, val=False, **options):
    return EnergonDataModule(
        data / "coco",
        data / "coco" if val else None,
        num_workers=workers,
        num_streams=2,
        train_options={**TRAIN, **options},
        val_options={"batch_size": 2},
    )


@pytest.mark.every(4)
@pytest.mark.parametrize("case", CASES)
def test_resuming_goes_on_with_the_next_batch_wherever_it_was_saved(data, fit, tmp_path, case):
    options, settings, epoch, count = CASES[case]
    settings = {"max_epochs": 2, **settings}
    looked_at = {epoch - 1, epoch, *((1, 2, epoch + 1) if is_nightly() else ())}
    saver = SaveAlways(tmp_path, None if is_nightly() else looked_at)
    model = fit(module(data, val=True, **options), callbacks=[saver], **settings)
    expected = expected_batches(data, count, **options)
    assert model.seen == expected
    assert {hook for hook, *_ in saver.saved} == set(HOOKS)
    assert model.epochs.count(0) == epoch
    tried = 0
    for hook, trained, path in saver.saved:
        if trained == count or trained not in looked_at:
            continue  # there is nothing left to train on, or enough of them
        tried += 1
        again = fit(module(data, val=True, **options), checkpoint=path, **settings)
        assert again.seen == expected[trained:], (hook, trained)
    assert tried >= 3


@pytest.mark.parametrize("case", ["passes", "virtual epochs"])
def test_it_is_not_the_loaders_own_position_where_lightning_fetches_ahead(data, fit, tmp_path, case):
    """So that the test above shows what it should."""
    options, settings, *_ = CASES[case]
    given = []

    class Look(L.Callback):
        def on_train_batch_end(self, trainer, model, *_):
            loader = trainer.datamodule.train_dataloader().loader
            given.append(loader.save_state_rank()["rotation"][2] - len(model.seen))

    fit(module(data, **options), callbacks=[Look()], max_epochs=1, **settings)
    assert set(given[:-2]) == ({1} if case == "passes" else {0})


@pytest.mark.every(2)
@pytest.mark.parametrize("options", [{"virtual_epoch_length": 5}, {"repeat": False}])
def test_workers(data, fit, tmp_path, options):
    saver = SaveAlways(tmp_path)
    model = fit(module(data, workers=2, **options), callbacks=[saver], max_epochs=1)
    assert not multiprocessing.active_children()
    expected = expected_batches(data, len(model.seen), **options)
    assert model.seen == expected
    path = next(path for _, trained, path in saver.saved if trained == 3)
    assert fit(module(data, workers=1, **options), checkpoint=path, max_epochs=1).seen == expected[3:]


def test_a_pass_of_unknown_length_ends_with_its_last_batch(data, fit):
    """Samples are skipped, so the length is an estimate; by that, Lightning would not validate."""
    options = {"repeat": False, "task_encoder": SkipSome()}
    model = fit(module(data, val=True, **options), max_epochs=2)
    assert model.epochs.count(0) < 14
    assert len(model.validated) == 2 * 3
    assert len({key for batch in model.seen[: model.epochs.count(0)] for key in batch}) == 26


def test_validation_begins_at_the_start_each_time(data, fit):
    model = fit(module(data, val=True, virtual_epoch_length=5), max_epochs=2, num_sanity_val_steps=1)
    first, second, third = (keys for _, keys in model.validated[1:4])
    assert model.validated == [
        (True, first),
        *[(False, keys) for keys in (first, second, third)] * 2,
    ]
    assert len({*first, *second, *third}) == 5

    model = fit(
        module(data, val=True, virtual_epoch_length=5),
        max_epochs=2,
        limit_val_batches=2,
        val_check_interval=2,
    )
    assert model.validated == [(False, first), (False, second)] * 4


def test_several_validation_sets_and_a_test_set(data, tmp_path):
    class Several(Model):
        def validation_step(self, batch, batch_idx, dataloader_idx):
            self.validated.append((dataloader_idx, len(batch.__key__)))

    sets = EnergonDataModule(
        val=[data / "coco", data / "coyo"],
        test=data / "coco",
        num_workers=0,
        val_options={"batch_size": 3},
    )
    trainer = L.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, default_root_dir=tmp_path)
    model = Several()
    trainer.validate(model, sets, verbose=False)
    assert model.validated == [(0, 3), (0, 2), (1, 3), (1, 2)]
    trainer.test(model, sets, verbose=False)
    assert [len(keys) for keys in model.tested] == [3, 2]
    assert not {key for keys in model.tested for key in keys} & {
        key for batch in expected_batches(data, 14) for key in batch
    }


def test_without_validation_data_lightning_is_not_told_of_any(data, fit, recwarn):
    fit(module(data), model=TrainOnly(), max_steps=2)
    fit(module(data), model=TrainOnly(), max_steps=2)
    texts = [str(warning.message) for warning in recwarn]
    assert not [text for text in texts if "val_dataloader" in text or "num_workers" in text]


def test_resuming_does_not_warn_of_a_loader_that_cannot_resume(data, fit, tmp_path, recwarn):
    saver = SaveAlways(tmp_path)
    fit(module(data, virtual_epoch_length=5), callbacks=[saver], max_epochs=1)
    recwarn.clear()
    fit(module(data, virtual_epoch_length=5), checkpoint=saver.saved[3][2], max_epochs=1)
    assert not [warning for warning in recwarn if "resum" in str(warning.message)]


def test_the_same_batches_in_each_epoch_where_overfitting_is_wanted(data, fit):
    model = fit(module(data), max_epochs=3, overfit_batches=2)
    assert model.seen == expected_batches(data, 2) * 3


@pytest.mark.parametrize("options", [{}, {"repeat": False}])
def test_used_again_it_goes_on(data, fit, options):
    """By the same trainer and by others; what was fetched ahead of a stop is not lost."""
    sets = module(data, **options)
    model = fit(sets, max_steps=3)
    trainer = model.trainer
    trainer.fit_loop.epoch_loop.max_steps = 5
    trainer.fit(model, sets)
    fit(sets, model=model, max_steps=4)
    assert model.seen == expected_batches(data, 9, **options)


def test_a_step_that_fetches_its_batches_itself(data, fit, tmp_path):
    saver = SaveAlways(tmp_path)
    model = fit(module(data), model=OwnIterator(), callbacks=[saver], max_steps=4)
    expected = expected_batches(data, 8)
    assert model.seen == expected
    hook, trained, path = saver.saved[3]
    assert (hook, trained) == ("on_train_batch_end", 4)
    assert fit(module(data), model=OwnIterator(), checkpoint=path, max_steps=4).seen == expected[4:]


def test_functions_open_datasets_with_the_ranks_of_the_trainer(data, fit):
    configs = []

    def train(config):
        configs.append(config)
        return open_train(data, config, virtual_epoch_length=2)

    model = fit(EnergonDataModule(train, num_workers=0, num_streams=6, seed_offset=3), max_epochs=1)
    assert [(c.rank, c.world_size, c.num_streams, c.seed_offset) for c in configs] == [(0, 1, 6, 3)]
    assert len(model.seen) == 2
    with pytest.raises(ConfigError, match="a worker_config other than its argument"):
        fit(EnergonDataModule(lambda config: open_train(data, WorkerConfig(1, 2, 0)), num_workers=0))


def test_ranks_are_those_among_which_the_trainer_deals_data(data):
    sets = EnergonDataModule(lambda config: open_train(data, config), num_workers=0)

    class Parallel:
        distributed_sampler_kwargs = {"num_replicas": 3, "rank": 2}

    sets.trainer = Parallel()
    assert (sets.worker_config().rank, sets.worker_config().world_size) == (2, 3)


def test_a_loop_that_does_not_count_is_found_out(data):
    counted = [100]
    loader = TrainLoader(get_savable_loader(open_train(data, WorkerConfig(0, 1, 0))), lambda: counted[0])
    batches = iter(loader)
    next(batches)
    counted[0] += 2
    with pytest.raises(StateInUseError, match="counts 2 batches more, but 1 were fetched"):
        loader.state_dict()


PROGRAM = """
import {first}
from energon_stream.integrations.lightning import EnergonDataHooks, EnergonDataModule
base = EnergonDataModule.__mro__[2]
class Mixed(EnergonDataHooks, base):
    pass
data = Mixed("here")
print(base.__module__, data.train_dataloader.__func__.__qualname__, data.val_dataloader.__func__.__qualname__)
"""


@pytest.mark.parametrize(
    ("first", "of"),
    [
        pytest.param("torch", "lightning.pytorch", marks=pytest.mark.slow),  # as all tests before
        ("pytorch_lightning", "pytorch_lightning"),
    ],
)
def test_it_is_of_the_package_that_the_program_uses(run, first, of):
    pytest.importorskip(of.partition(".")[0])
    printed = run("-c", PROGRAM.format(first=first))
    names = "EnergonDataHooks.train_dataloader DataHooks.val_dataloader"
    assert printed == f"{of}.core.datamodule {names}\n"


MISSING = """
import sys
sys.modules.update({"lightning": None, "lightning.pytorch": None, "pytorch_lightning": None})
from energon_stream.errors import MissingPackageError
try:
    import energon_stream.integrations.lightning
except MissingPackageError as error:
    print(isinstance(error, ImportError), error.hint)
"""


def test_without_lightning_the_error_names_the_extra(run):
    assert run("-c", MISSING) == "True run `pip install 'energon-stream[lightning]'`\n"


@pytest.mark.every(2)
@pytest.mark.parametrize("options", [(), ("--sharded",)])
def test_the_example_goes_on_after_kills_with_other_ranks(run, data, tmp_path, options):
    """Also from checkpoints of torch.distributed.checkpoint."""
    example = Example(run, "lightning_train.py", "--checkpoints", data / "coco", tmp_path)
    whole = example.whole()
    if not options and is_nightly():  # by day, torchdata's example shows it
        example.check_resuming(whole)
    example.check_kills(whole, (2, 1), *options, devices="--devices")


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--sharded",)])
def test_ten_kills_with_resizes(run, data, tmp_path, options):
    example = Example(run, "lightning_train.py", "--checkpoints", data / "coco", tmp_path)
    example.check_kills(example.whole(40), TEN_KILLS, *options, devices="--devices")
