"""accelerate and transformers.Trainer: each rank's own batches, and going on from checkpoints with exactly
the next one.
"""

import multiprocessing
from itertools import islice

import pytest
import torch

accelerate = pytest.importorskip("accelerate", reason="no accelerate (the extra 'accelerate')")

from framework_examples import TEN_KILLS, Example  # noqa: E402
from repetitions import is_nightly  # noqa: E402

from energon_stream import (  # noqa: E402
    DefaultTaskEncoder,
    ReadOptions,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
)
from energon_stream.errors import ConfigError, StateError  # noqa: E402
from energon_stream.integrations.huggingface import AcceleratedLoader, worker_config_of  # noqa: E402


class Encoder(DefaultTaskEncoder):
    """Batches as models take them: the number in each caption."""

    def encode_batch(self, batch):
        numbers = [float(caption.split()[1]) for caption in batch.caption]
        return {"numbers": torch.tensor(numbers)[:, None]}


def open_train(data, config=None, **options):
    settings = {"virtual_epoch_length": 5, "batch_size": 3, "task_encoder": Encoder(), **options}
    return get_train_dataset(
        data / "coco",
        shuffle_buffer_size=10,
        max_samples_per_sequence=4,
        read_options=ReadOptions(max_ahead=64),  # a tiny dataset would be planned for hundreds of passes
        worker_config=config or WorkerConfig(0, 1, 0, num_streams=2),
        **settings,
    )


def numbers(batches):
    return [tuple(batch["numbers"][:, 0].tolist()) for batch in batches]


def expected_batches(data, count, **options):
    loader = get_savable_loader(open_train(data, **options))
    found = []
    while len(found) < count:
        found += numbers(islice(loader, count - len(found)))
    return found


@pytest.fixture
def accelerator():
    """A new one; its classes keep what they know of the process."""
    from accelerate.state import AcceleratorState, GradientState, PartialState

    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()

    def make(**options):
        return accelerate.Accelerator(cpu=True, **options)

    return make


@pytest.mark.parametrize(
    "config", [{}, {"split_batches": True}, {"dispatch_batches": True}, {"use_stateful_dataloader": True}]
)
def test_preparing_leaves_the_loader_as_it_is(data, accelerator, config):
    """Whatever the accelerator would do with a torch DataLoader."""
    made = accelerator(dataloader_config=accelerate.DataLoaderConfiguration(**config))
    loader = AcceleratedLoader(get_savable_loader(open_train(data, worker_config_of(made, 0))), made)
    _model, prepared = made.prepare(torch.nn.Linear(1, 1), loader)
    assert prepared is loader
    assert len(loader) == 5
    expected = expected_batches(data, 5, config=WorkerConfig(0, 1, 0))
    assert numbers(prepared) == expected


@pytest.mark.every(3)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("depth", [1, 3])
def test_saving_and_loading_in_the_middle_of_an_epoch(data, accelerator, tmp_path, workers, depth):
    made = accelerator()
    config = worker_config_of(made, workers, num_streams=2)
    loader = AcceleratedLoader(get_savable_loader(open_train(data, config)), made, depth=depth)
    made.register_for_checkpointing(loader)
    seen = []
    for _ in range(2):
        for batch in loader:
            seen += numbers([batch])
            made.save_state(tmp_path / str(len(seen)))
        made.save_state(tmp_path / f"end{len(seen)}")
    loader.close()
    expected = expected_batches(data, 15)
    assert seen == expected[:10]

    made = accelerator()
    other = AcceleratedLoader(get_savable_loader(open_train(data)), made, depth=depth)
    made.register_for_checkpointing(other)
    for given in range(1, 11) if is_nightly() else (1, 4, 5, 6, 10):
        made.load_state(tmp_path / str(given))  # also while it is iterated
        batches = iter(other)
        left = -given % 5
        assert numbers(batches) == expected[given : given + left]
        assert numbers(islice(other, 2)) == expected[given + left : given + left + 2]
    for given in (5, 10):
        made.load_state(tmp_path / f"end{given}")
        assert numbers(other) == expected[given : given + 5]


def test_a_loop_that_was_left_may_end_after_accelerate_was_reset(data, accelerator):
    """As where the garbage collector finds it late."""
    loader = AcceleratedLoader(get_savable_loader(open_train(data)), accelerator())
    batches = iter(loader)
    next(batches)
    accelerate.state.GradientState._reset_state()
    batches.close()
    loader.close()


def test_the_last_batch_of_a_pass_is_known(data, accelerator):
    """So gradients that are left are used, as with a DataLoader that was prepared."""
    made = accelerator(gradient_accumulation_steps=2)
    loader = AcceleratedLoader(get_savable_loader(open_train(data)), made)
    model, _optimizer = made.prepare(
        torch.nn.Linear(1, 1), torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    )
    for _ in range(2):
        synchronised = []
        for _batch in loader:
            with made.accumulate(model):
                synchronised.append((made.sync_gradients, made.gradient_state.end_of_dataloader))
        assert synchronised == [(False, False), (True, False), (False, False), (True, False), (True, True)]
        assert not made.gradient_state.in_dataloader


def test_batches_are_on_the_device(data, accelerator):
    made = accelerator()
    made.state.device = torch.device("meta")
    loader = AcceleratedLoader(get_savable_loader(open_train(data)), made)
    assert {batch["numbers"].device.type for batch in loader} == {"meta"}
    made.device_placement = False
    loader = AcceleratedLoader(get_savable_loader(open_train(data)), made)
    assert {batch["numbers"].device.type for batch in loader} == {"cpu"}


class Mesh:
    """Sizes of a device mesh's dimensions."""

    def __init__(self, **sizes):
        self.sizes = sizes
        self.mesh_dim_names = tuple(sizes)

    def __getitem__(self, name):
        return type("Dimension", (), {"size": lambda _: self.sizes[name]})()


class Process:
    """What is asked of an accelerator, for a process of a large job."""

    def __init__(self, index, count, mesh=None):
        self.process_index, self.num_processes, self.torch_device_mesh = index, count, mesh


def test_processes_of_a_tensor_or_context_parallel_group_are_one_rank():
    def ranks(count, mesh=None):
        configs = [worker_config_of(Process(index, count, mesh)) for index in range(count)]
        return [(config.rank, config.world_size) for config in configs]

    assert ranks(3) == [(0, 3), (1, 3), (2, 3)]
    assert ranks(4, Mesh(dp_replicate=2, tp=2)) == [(0, 2), (0, 2), (1, 2), (1, 2)]
    assert ranks(8, Mesh(dp_replicate=2, cp=2, tp=2)) == [(0, 2)] * 4 + [(1, 2)] * 4
    assert ranks(2, Mesh(dp_shard=2)) == [(0, 2), (1, 2)]
    config = worker_config_of(Process(1, 2), 3, num_streams=12, seed_offset=7)
    assert (config.num_workers, config.num_streams, config.seed_offset) == (3, 12, 7)


def test_a_loader_of_another_rank_is_refused(data, accelerator):
    loader = get_savable_loader(open_train(data, WorkerConfig(1, 2, 0)))
    with pytest.raises(ConfigError, match="rank 1 of 2, this process is 0 of 1"):
        AcceleratedLoader(loader, accelerator())
    with pytest.raises(ConfigError, match="depth is 0"):
        AcceleratedLoader(get_savable_loader(open_train(data)), accelerator(), depth=0)


transformers = pytest.importorskip("transformers", reason="no transformers (the extra 'transformers')")


class Model(torch.nn.Module):
    """Remembers what it is given."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []
        self.evaluated = []

    def forward(self, numbers):
        (self.seen if self.training else self.evaluated).append(tuple(numbers[:, 0].tolist()))
        predicted = self.layer(numbers / 100)
        return {"loss": (predicted - 1).square().mean(), "logits": predicted}


@pytest.fixture
def train(data, accelerator, tmp_path):
    """Train with a new trainer; returns trainer and model."""
    from energon_stream.integrations.huggingface import EnergonTrainer

    def train(dataset, resume=None, trainer_class=EnergonTrainer, evaluate=None, kind=None, **arguments):
        settings = {"save_strategy": "no", "logging_strategy": "no", "report_to": [], "disable_tqdm": True}
        args = (kind or transformers.TrainingArguments)(
            str(tmp_path / "out"), use_cpu=True, learning_rate=0.1, **{**settings, **arguments}
        )
        model = Model()
        trainer = trainer_class(model, args, train_dataset=dataset, eval_dataset=evaluate)
        trainer.train(resume_from_checkpoint=resume)
        return trainer, model

    return train


CASES = {
    # Options of the dataset, arguments, batches in all and in a step.
    "epochs": ({}, {"num_train_epochs": 3}, 15, 1),
    "steps": ({}, {"max_steps": 13}, 13, 1),
    "epochs of steps of two": (
        {"virtual_epoch_length": 6},
        {"num_train_epochs": 3, "gradient_accumulation_steps": 2},
        18,
        2,
    ),
    "endless": ({"virtual_epoch_length": 0}, {"max_steps": 8, "gradient_accumulation_steps": 2}, 16, 2),
    "passes": ({"virtual_epoch_length": 0, "repeat": False}, {"max_steps": 17}, 17, 1),
}


@pytest.mark.every(2)
@pytest.mark.parametrize("case", CASES)
def test_the_trainer_goes_on_with_the_next_batch_wherever_it_saved(data, train, tmp_path, case):
    options, arguments, count, per_step = CASES[case]
    trainer, model = train(open_train(data, **options), save_strategy="steps", save_steps=1, **arguments)
    expected = expected_batches(data, count, **options)
    assert model.seen == expected
    assert trainer.state.global_step == count // per_step
    epoch = {"virtual_epoch_length": 5, **options}["virtual_epoch_length"] // per_step or 14
    steps = {epoch - 1, epoch, epoch + 1, *((1, epoch + 2) if is_nightly() else ())}
    for step in sorted(steps & {*range(1, count // per_step)}):
        folder = tmp_path / "out" / f"checkpoint-{step}"
        trainer, again = train(open_train(data, **options), resume=str(folder), **arguments)
        assert again.seen == expected[step * per_step :], step
        assert trainer.state.global_step == count // per_step
        assert trainer.args.ignore_data_skip


def test_epochs_end_where_they_would_have(data, train, tmp_path):
    """Evaluation after each epoch, of a run that was resumed in the middle of one."""

    class Watch(transformers.TrainerCallback):
        def __init__(self):
            self.ends = []

        def on_epoch_end(self, args, state, control, **kwargs):
            self.ends.append(state.global_step)

    from energon_stream.integrations.huggingface import EnergonTrainer

    class Watched(EnergonTrainer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.watch = Watch()
            self.add_callback(self.watch)

    arguments = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 1, "trainer_class": Watched}
    trainer, _ = train(open_train(data), **arguments)
    assert trainer.watch.ends == [5, 10]
    for step, ends in {3: [5, 10], 5: [10], 7: [10]}.items():
        folder = str(tmp_path / "out" / f"checkpoint-{step}")
        trainer, _ = train(open_train(data), resume=folder, **arguments)
        assert trainer.watch.ends == ends


def test_nothing_is_read_to_be_skipped(data, train, tmp_path):
    class Counting(Encoder):
        count = 0

        def encode_batch(self, batch):
            type(self).count += 1
            return super().encode_batch(batch)

    train(open_train(data, task_encoder=Counting()), max_steps=11, save_strategy="steps", save_steps=11)
    Counting.count = 0
    _, model = train(open_train(data, task_encoder=Counting()), resume=True, max_steps=14)
    assert len(model.seen) == 3
    assert Counting.count == 4  # one is fetched ahead


def test_workers_and_the_last_checkpoint(data, train):
    config = WorkerConfig(0, 1, 2, num_streams=2)
    train(open_train(data, config), max_steps=6, save_strategy="steps", save_steps=6)
    _, model = train(open_train(data, config), resume=True, max_steps=12)
    assert not multiprocessing.active_children()
    assert model.seen == expected_batches(data, 12)[6:]


def test_evaluation_sees_the_whole_set_each_time(data, train, tmp_path):
    def open_val():
        return get_val_dataset(
            data / "coco", batch_size=2, worker_config=WorkerConfig(0, 1, 0), task_encoder=Encoder()
        )

    trainer, model = train(
        open_train(data), evaluate=open_val(), max_steps=6, eval_strategy="steps", eval_steps=3
    )
    whole = numbers(get_savable_loader(open_val()))
    assert [len(batch) for batch in whole] == [2, 2, 1]
    assert model.evaluated == whole * 2
    trainer.evaluate()
    trainer.predict(open_val())
    assert model.evaluated == whole * 4


def test_other_datasets_are_the_trainers(data, train):
    rows = [{"numbers": torch.tensor([float(row)])} for row in range(12)]
    _, model = train(rows, max_steps=2, per_device_train_batch_size=3, dataloader_drop_last=True)
    assert [len(batch) for batch in model.seen] == [3, 3]


def test_the_trainer_counts_the_samples_of_the_datasets_batches(data, train):
    trainer, model = train(open_train(data), max_steps=2)  # TrainingArguments have 8 by default
    assert {len(batch) for batch in model.seen} == {trainer.state.train_batch_size}


def test_the_hooks_mix_with_other_trainers(data, train):
    from energon_stream.integrations.huggingface import EnergonTrainerHooks

    class Own(EnergonTrainerHooks, transformers.Seq2SeqTrainer):
        pass

    arguments = transformers.Seq2SeqTrainingArguments
    _, model = train(open_train(data), trainer_class=Own, kind=arguments, max_steps=2)
    assert model.seen == expected_batches(data, 2)


@pytest.mark.parametrize(
    "argument",
    [{"dataloader_num_workers": 2}, {"dataloader_drop_last": True}, {"auto_find_batch_size": True}],
)
def test_arguments_that_the_dataset_has_to_have_instead_are_refused(data, train, argument):
    with pytest.raises(ConfigError, match=next(iter(argument))):
        train(open_train(data), max_steps=1, **argument)


def test_epochs_of_no_whole_number_of_steps_are_refused(data, train):
    """They could not be resumed exactly: the trainer begins its count of the epoch's batches anew."""
    with pytest.raises(ConfigError, match="an epoch of 5 batches"):
        train(open_train(data), max_steps=1, gradient_accumulation_steps=2)
    with pytest.raises(ValueError, match="max_steps"):
        train(open_train(data, virtual_epoch_length=0), num_train_epochs=1)


def test_checkpoints_without_a_position_are_refused(data, train, tmp_path):
    train(open_train(data), max_steps=2, save_strategy="steps", save_steps=2)
    file = tmp_path / "out" / "checkpoint-2" / "energon_stream.pt"
    torch.save({}, file)
    with pytest.raises(StateError, match="no 'dataloader_state_dict'"):
        train(open_train(data), resume=True, max_steps=4)
    file.unlink()
    with pytest.raises(StateError, match="no loader's state"):
        train(open_train(data), resume=True, max_steps=4)


def cut(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@pytest.mark.every(2)
@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "trainer_state.json").unlink(),
        lambda folder: cut(folder / "trainer_state.json"),
        lambda folder: cut(folder / "energon_stream.pt"),
        lambda folder: (folder / "energon_stream.pt").unlink(),
        lambda folder: [file.unlink() for file in folder.iterdir()],
    ],
)
def test_a_half_written_checkpoint_is_passed_over(data, train, tmp_path, caplog, damage):
    """A kill during a checkpoint leaves such a folder; the one before it is whole."""
    train(open_train(data), max_steps=6, save_strategy="steps", save_steps=2)
    damage(tmp_path / "out" / "checkpoint-6")
    (tmp_path / "out" / "checkpoint-best").mkdir()
    trainer, model = train(open_train(data), resume=True, max_steps=8)
    assert model.seen == expected_batches(data, 8)[4:]
    assert trainer.state.global_step == 8
    assert "passing over the checkpoint" in caplog.text
    assert str(tmp_path / "out" / "checkpoint-6") in caplog.text


def test_only_half_written_checkpoints_are_an_error(data, train, tmp_path):
    train(open_train(data), max_steps=2, save_strategy="steps", save_steps=2)
    cut(tmp_path / "out" / "checkpoint-2" / "trainer_state.json")
    with pytest.raises(StateError, match="not written to its end"):
        train(open_train(data), resume=True, max_steps=4)
    cut(tmp_path / "out" / "checkpoint-2" / "energon_stream.pt")
    with pytest.raises(StateError, match="the file is damaged"):
        train(open_train(data), resume=str(tmp_path / "out" / "checkpoint-2"), max_steps=4)


def test_a_kill_while_saving_leaves_a_checkpoint_to_resume_from(data, train, tmp_path):
    """Also where the trainer keeps one checkpoint only, and has deleted the one before."""
    from energon_stream.integrations.huggingface import EnergonTrainer

    class Killed(BaseException):
        pass

    class Dies(EnergonTrainer):
        def _save_checkpoint(self, *args, **kwargs):
            super()._save_checkpoint(*args, **kwargs)
            if self.state.global_step == 6:
                raise Killed

    arguments = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 1}
    with pytest.raises(Killed):
        train(open_train(data), trainer_class=Dies, max_steps=8, **arguments)
    assert [path.name for path in (tmp_path / "out").glob("checkpoint-*")] == ["checkpoint-6"]
    _, model = train(open_train(data), resume=True, max_steps=8)
    assert model.seen == expected_batches(data, 8)[6:]


MISSING = """
import sys
sys.modules.update({{name: None for name in {names}}})
from energon_stream.errors import MissingPackageError
import energon_stream.integrations.huggingface as huggingface
for name in {tried}:
    try:
        getattr(huggingface, name)
    except MissingPackageError as error:
        print(error.hint)
    else:
        print("found")
"""


def test_without_the_packages_the_error_names_the_extra(run):
    tried = ["AcceleratedLoader", "EnergonTrainer"]
    printed = run("-c", MISSING.format(names=["transformers"], tried=tried))
    assert printed == "found\nrun `pip install 'energon-stream[transformers]'`\n"
    printed = run("-c", MISSING.format(names=["accelerate"], tried=tried))
    assert printed == "run `pip install 'energon-stream[accelerate]'`\n" * 2


def test_the_accelerate_example_goes_on_after_kills_with_other_ranks(run, data, tmp_path):
    example = Example(run, "accelerate_train.py", "--checkpoint", data / "coco", tmp_path)
    whole = example.whole()
    if is_nightly():  # by day, torchdata's example shows it
        example.check_resuming(whole)
    example.check_kills(whole, (2, 1))


@pytest.mark.slow  # as the example before
def test_the_trainer_example_goes_on_after_kills_with_other_ranks(run, data, tmp_path):
    example = Example(run, "trainer_train.py", "--output", data / "coco", tmp_path)
    example.check_kills(example.whole(), (2, 3, 1))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "option"), [("accelerate", "--checkpoint"), ("trainer", "--output")])
def test_ten_kills_with_resizes(run, data, tmp_path, name, option):
    example = Example(run, f"{name}_train.py", option, data / "coco", tmp_path)
    example.check_kills(example.whole(40), TEN_KILLS)
