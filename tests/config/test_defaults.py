"""Programs that give no more than a path and a batch size, and misspelt arguments."""

import traceback
from itertools import islice

import children
import numpy as np
import pytest

from energon_stream import (
    DefaultTaskEncoder,
    WorkerConfig,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    get_val_datasets,
)
from energon_stream.errors import ConfigError, EnergonStreamError, StateMismatchError, UnknownArgumentError
from energon_stream.testing.datasets import prepared_text_dataset
from energon_stream.tools.simulate import StoreModel, forecast, simulate
from energon_stream.tools.simulate.explain import explain

CONFIG = WorkerConfig(rank=0, world_size=1, num_workers=0)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return prepared_text_dataset(tmp_path_factory.mktemp("texts"), split_ratio=(1, 1, 0))


FOUR_LINES = """
from energon_stream import get_loader, get_train_dataset
for step, batch in zip(range(3), get_loader(get_train_dataset({!r}, batch_size=4))):
    print(step, len(batch.text))
"""


def test_four_lines_run(texts):
    program = FOUR_LINES.format(str(texts))
    done = children.run("-c", program, check=True)
    assert done.stdout == "0 4\n1 4\n2 4\n"


@pytest.mark.parametrize(("rank", "ranks"), [(0, 1), (0, 2), (1, 2)])
def test_the_defaults_are_the_numbers_of_the_page_on_every_rank(texts, rank, ranks):
    config = WorkerConfig(rank, ranks, 0, num_streams=2)

    def keys(**order):
        dataset = get_train_dataset(texts, batch_size=None, worker_config=config, **order)
        return [sample.__key__ for sample in islice(get_loader(dataset), 30)]

    assert keys() == keys(shuffle_buffer_size=100, max_samples_per_sequence=100)
    assert keys() != sorted(keys())


def test_a_state_keeps_the_defaults_and_refuses_others_by_name(texts):
    def loader(**order):
        return get_savable_loader(get_train_dataset(texts, batch_size=4, worker_config=CONFIG, **order))

    begun = loader()
    batches = iter(begun)
    next(batches)
    state = begun.save_state_rank()
    resumed = loader(shuffle_buffer_size=100, max_samples_per_sequence=100)
    resumed.restore_state_rank(state)
    assert next(iter(resumed)).__key__ == next(batches).__key__
    with pytest.raises(StateMismatchError, match="shuffle_buffer_size was 100, is 1000"):
        loader(shuffle_buffer_size=1000).restore_state_rank(state)
    with pytest.raises(StateMismatchError, match="max_samples_per_sequence was 100, is 50"):
        loader(max_samples_per_sequence=50).restore_state_rank(state)


def test_tools_follow_the_same_defaults(texts):
    same = {"steps": 3, "batch_size": 4, "worker_config": CONFIG}
    given = forecast(texts, shuffle_buffer_size=100, max_samples_per_sequence=100, **same)
    assert np.array_equal(forecast(texts, **same).order.counts, given.order.counts)


@pytest.mark.parametrize(
    ("function", "wrong", "hint"),
    [
        (get_train_dataset, "bacth_size", "did you mean 'batch_size'"),
        (get_train_dataset, "batchsize", "did you mean 'batch_size'"),
        (get_train_dataset, "max_samples_per_sequences", "did you mean 'max_samples_per_sequence'"),
        (get_train_dataset, "taskencoder", "did you mean 'task_encoder'"),
        (get_train_dataset, "drop_last", "did you mean 'batch_drop_last'"),
        (get_train_dataset, "chache", "did you mean 'cache'"),
        (get_train_dataset, "num_workers", r"worker_config: WorkerConfig\("),
        (get_train_dataset, "seed", "seed_offset"),
        (get_train_dataset, "shuffle", "shuffle_buffer_size"),
        (get_train_dataset, "shardshuffle", "shuffle_buffer_size"),
        (get_train_dataset, "resampled", "shuffle_over_epochs_multiplier=-1"),
        (get_loader, "batch_size", "pass it to the dataset"),
        (get_train_dataset, "decoder", "in the task encoder"),
        (get_train_dataset, "collate_fn", "override `batch`"),
        (get_train_dataset, "limit", "get_val_dataset has it"),
        (get_train_dataset, "zzz", "known names: .*batch_size.*where"),
        (get_val_dataset, "worker_cofig", "did you mean 'worker_config'"),
        (get_val_datasets, "split", "did you mean 'split_part'"),
        (get_loader, "prefetch_facter", "did you mean 'prefetch_factor'"),
        (get_savable_loader, "chekpoint_every_sec", "did you mean 'checkpoint_every_sec'"),
    ],
)
def test_a_misspelt_argument_is_named_with_the_right_one(texts, function, wrong, hint):
    with pytest.raises(UnknownArgumentError, match=f"(?i)unknown argument '{wrong}' .*{hint}") as raised:
        function(texts, **{wrong: 4})
    assert isinstance(raised.value, TypeError)
    assert raised.value.where == f"{function.__name__}()"


WHOLE = ["batch_size", "shuffle_buffer_size", "max_samples_per_sequence", "parallel_shard_iters"]
WHOLE += ["packing_buffer_size", "virtual_epoch_length"]


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("value", ["8", 8.5, [8], -1], ids=repr)
def test_numbers_of_a_wrong_kind_are_named(texts, name, value):
    options = {"batch_size": 4, "worker_config": CONFIG, name: value}
    with pytest.raises(ConfigError, match=name):
        get_train_dataset(texts, **options)


def test_whole_numbers_of_numpy_are_numbers(texts):
    dataset = get_train_dataset(texts, batch_size=np.int64(3), worker_config=CONFIG)
    assert len(next(iter(get_loader(dataset))).text) == 3


@pytest.mark.parametrize("value", ["x", 4, {"rank": 0}, WorkerConfig], ids=repr)
def test_a_worker_config_of_another_kind_is_named(texts, value):
    for function in (get_train_dataset, get_val_dataset):
        with pytest.raises(ConfigError, match=r"worker_config is .*WorkerConfig\("):
            function(texts, batch_size=4, worker_config=value)


def test_numbers_of_the_environment_are_text():
    with pytest.raises(ConfigError, match=r"rank is '0'.*int\(os\.environ\['RANK'\]\)"):
        WorkerConfig(rank="0", world_size=1, num_workers=0)
    with pytest.raises(ConfigError, match="num_workers is 2"):
        WorkerConfig(rank=0, world_size=1, num_workers=2.5)


@pytest.mark.parametrize("wrong", [{"path": "captoins"}, {"split_part": "trian"}, {"path": "mix.yaml"}])
def test_a_typo_takes_few_lines(texts, tmp_path, wrong):
    kind = "__module__: megatron.energon\n__class__: MetadatasetV2\n"
    blend = f"splits:\n  train:\n    blend:\n    - {{path: {texts}, wieght: 1}}\n"
    (tmp_path / "mix.yaml").write_text(kind + blend)
    wrong = {name: value.replace("mix", f"{tmp_path}/mix") for name, value in wrong.items()}
    with pytest.raises(EnergonStreamError) as raised:
        get_train_dataset(**{"path": texts, "batch_size": 1, "worker_config": CONFIG, **wrong})
    assert len("".join(traceback.format_exception(raised.value)).splitlines()) <= 20


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1.5, "x", [], {}, (1, 2), 0, -2, True, 10**30])
def test_a_number_of_passes_of_a_wrong_kind_is_named(texts, value):
    with pytest.raises(ConfigError, match="shuffle_over_epochs_multiplier is"):
        get_train_dataset(texts, batch_size=2, shuffle_over_epochs_multiplier=value)


def test_numbers_of_numpy_give_the_same_order_and_state(texts):
    """States were no JSON where shuffling had numbers of numpy."""
    found = []
    for kind in (int, np.int64):
        dataset = get_train_dataset(
            texts,
            batch_size=2,
            worker_config=WorkerConfig(0, 1, 0),
            shuffle_buffer_size=kind(4),
            max_samples_per_sequence=kind(3),
            parallel_shard_iters=kind(2),
            shuffle_over_epochs_multiplier=kind(2),
        )
        with get_savable_loader(dataset) as loader:
            batches = [batch.__key__ for batch in islice(loader, 5)]
            found.append((batches, loader.save_state_rank()))
    assert found[0] == found[1]


OPTIONS = (
    "batch_size shuffle_buffer_size max_samples_per_sequence virtual_epoch_length repeat draws ends handler "
    "shuffle_over_epochs_multiplier parallel_shard_iters packing_buffer_size batch_drop_last read_options "
    "task_encoder cache split_part worker_config"
)


@pytest.mark.parametrize("name", OPTIONS.split())
def test_options_name_values_of_a_wrong_kind(texts, name):
    for wrong in (np.array([1, 2]), object(), 10**30, float("nan")):
        with pytest.raises(ConfigError, match=name):
            get_train_dataset(texts, **{"batch_size": 2, "worker_config": CONFIG, name: wrong})


def test_values_of_a_wrong_kind_elsewhere(texts):
    for wrong in (np.array([1, 2]), object(), "x"):
        with pytest.raises(ConfigError, match="sample_timeout"):
            WorkerConfig(rank=0, world_size=1, num_workers=0, sample_timeout=wrong)
    with pytest.raises(ConfigError, match="the path is ''"):
        get_train_dataset("", batch_size=2)
    assert get_train_dataset(texts, batch_size=np.int64(2), repeat=np.True_, worker_config=CONFIG)


@pytest.mark.parametrize("wrong", [None, float("nan"), 0, -1, 1.5, "x", [], True])
def test_tools_name_numbers_of_a_wrong_kind(texts, wrong):
    for arguments in ({"steps": wrong, "batch_size": 2}, {"steps": (0, wrong), "batch_size": 2}):
        with pytest.raises(ConfigError, match="steps"):
            explain(texts, **arguments)
    with pytest.raises(ConfigError, match="batch_size is"):
        explain(texts, steps=(0, 1), batch_size=wrong)
    with pytest.raises(ConfigError, match="batch_size is"):
        simulate(texts, StoreModel(), batch_size=wrong)
    with pytest.raises(ConfigError, match="store is"):
        simulate(texts, wrong, batch_size=2)


def test_an_error_of_a_users_class_keeps_the_users_frames(texts):
    def where_it_fails():
        raise ConfigError("mine")

    class Encoder(DefaultTaskEncoder):
        cookers = property(lambda self: where_it_fails())

    with pytest.raises(ConfigError, match="mine") as caught:
        get_train_dataset(texts, batch_size=1, task_encoder=Encoder())
    assert "where_it_fails" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
