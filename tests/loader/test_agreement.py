"""Ranks that restore, open and set weights together: one that fails is an error of all; none waits for it."""

import logging
import os
import sys
import time
from contextlib import contextmanager

import pytest
import torch.distributed as dist
from ranks import in_ranks
from repetitions import is_nightly

from energon_stream import DefaultTaskEncoder, WorkerConfig, get_savable_loader, get_train_dataset
from energon_stream.agreement import AGREE_VARIABLE
from energon_stream.errors import (
    ConfigError,
    EnergonStreamError,
    ObjectNotFoundError,
    StateError,
    StateMismatchError,
    StateVersionError,
)
from energon_stream.integrations.device import prefetch_to_device
from energon_stream.loader.agreements import code_digest
from energon_stream.state import split_streams

ODD = 1  # the rank with which something is wrong


class Encoder(DefaultTaskEncoder):
    def encode_sample(self, sample):
        return sample


class OtherCode(DefaultTaskEncoder):
    def encode_sample(self, sample):
        sample.caption = sample.caption + "."
        return sample


OtherCode.__name__ = OtherCode.__qualname__ = "Encoder"
OtherCode.encode_sample.__qualname__ = "Encoder.encode_sample"


def open_loader(data, name="captions", seed_offset=0, encoder=Encoder, batch_size=2, **options):
    config = WorkerConfig(dist.get_rank(), dist.get_world_size(), 0, seed_offset=seed_offset)
    options = {"worker_config": config, "task_encoder": encoder(), "batch_size": batch_size, **options}
    return get_savable_loader(get_train_dataset(data / name, **options))


def state_after(steps, data, **options):
    loader = open_loader(data, **options)
    for _ in zip(range(steps), loader, strict=False):
        pass
    return loader.save_state_rank()


def restored(data, state, **options):
    open_loader(data, **options).restore_state_rank(state)


def read(data, *arguments, **options):
    next(iter(open_loader(data, *arguments, **options)))


def with_state(change):
    """Restore after step 3, on the odd rank what ``change`` makes of it."""

    def run(data, is_odd):
        state = state_after(3, data)
        restored(data, change(state) if is_odd else state)

    return run


def with_options(**options):
    """Begin to read, on the odd rank with other options."""
    return lambda data, is_odd: read(data, **(options if is_odd else {}))


def of_another_dataset(data, is_odd):
    state = state_after(3, data, name="texts" if is_odd else "captions")
    restored(data, state)


def of_another_step(data, is_odd):
    restored(data, state_after(4 if is_odd else 3, data))


def damaged_stream(data, is_odd):
    """As ``torch.distributed.checkpoint`` restores: the entry of one rank's stream is cut short."""
    state, rank = state_after(3, data), dist.get_rank()
    saved = split_streams(state)
    if is_odd:
        saved["streams"][str(rank)] = saved["streams"][str(rank)][:-9]
    open_loader(data).load_state_dict(saved)


def lacking_a_rank(data, is_odd):
    states = [None] * dist.get_world_size()
    dist.all_gather_object(states, state_after(3, data))
    open_loader(data).restore_state_global(states[:-1] if is_odd else states)


def resumed_with(**options):
    """Restore a state that fits the options of this rank."""

    def run(data, is_odd):
        own = options if is_odd else {}
        restored(data, state_after(3, data, **own), **own)

    return run


KINDS = {
    "damaged": (
        with_state(lambda state: {**state, "streams": {}}),
        StateError,
        "cannot restore, so no rank does",
    ),
    "missing": (
        with_state(lambda state: None),
        StateMismatchError,
        "what it restores: nothing, and not a state",
    ),
    "format": (with_state(lambda state: {**state, "version": 99}), StateVersionError, "format version 99"),
    "damaged entry": (damaged_stream, StateError, "entry of stream 1"),
    "list without a rank": (lacking_a_rank, StateMismatchError, "cannot restore, so no rank does"),
    "other dataset": (of_another_dataset, StateMismatchError, "saved with another dataset"),
    "other step": (
        of_another_step,
        StateMismatchError,
        "rank 0 of {world} would go on at step 3, and rank 1 at step 4",
    ),
    "resumed with other code": (
        resumed_with(encoder=OtherCode),
        StateMismatchError,
        "the code of the task encoder",
    ),
    "resumed with another seed": (
        resumed_with(seed_offset=7),
        StateMismatchError,
        "seed_offset: 7, and not 0",
    ),
    "resumed with another batch size": (resumed_with(batch_size=3), StateMismatchError, "the pipeline"),
}
FROM_THE_START = {
    "data": (with_options(name="texts", encoder=DefaultTaskEncoder), ConfigError, "and the samples"),
    "batch size": (with_options(batch_size=3), ConfigError, "the pipeline"),
    "order": (with_options(shuffle_buffer_size=9), ConfigError, "the order"),
    "seed": (with_options(seed_offset=7), ConfigError, "seed_offset: 7, and not 0"),
    "code": (with_options(encoder=OtherCode), ConfigError, "the code of the task encoder"),
    "missing folder": (with_options(name="nothing"), ObjectNotFoundError, "cannot open the dataset"),
}
"""Where the environment says that all ranks open and read the same."""


@contextmanager
def collected_warnings():
    said, handler = [], logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("energon_stream").addHandler(handler)
    try:
        yield said
    finally:
        logging.getLogger("energon_stream").removeHandler(handler)


@contextmanager
def none_waits_in_vain():
    """No rank waits as long as the environment says, or 30 seconds."""
    with collected_warnings() as said:
        yield
    assert not [text for text in said if "others go on" in text or "does not answer" in text]


def expect(run, kind, text, data, world):
    """All ranks raise the same error, none waits in vain, and they are free for a collective after it."""
    told = None
    with none_waits_in_vain():
        try:
            run(data, dist.get_rank() == ODD)
        except EnergonStreamError as error:
            told = (type(error).__name__, str(error))
    found = [None] * world
    dist.all_gather_object(found, told)
    assert len({*found}) == 1
    name, message = found[0]
    assert name == kind.__name__, message
    assert text.format(world=world) in message
    assert f"rank {ODD} of {world}" in message or "rank 1 at" in message
    assert ". " in message  # what to do


def each_kind(rank, world, data):
    for run, kind, text in KINDS.values():
        expect(run, kind, text, data, world)
    state, loader = state_after(3, data), open_loader(data)
    after = next(iter(loader_at(state, data)))
    for _ in range(2):  # a restore that failed leaves the loader as it was
        with pytest.raises(StateMismatchError):
            loader.restore_state_rank(None if rank == ODD else state)
    loader.restore_state_rank(state)
    assert next(iter(loader)).__key__ == after.__key__
    os.environ[AGREE_VARIABLE] = "20s"
    for run, kind, text in FROM_THE_START.values():
        expect(run, kind, text, data, world)
    read(data)


def loader_at(state, data):
    loader = open_loader(data)
    loader.restore_state_rank(state)
    return loader


def test_what_is_wrong_on_one_rank_is_the_same_error_on_all(example_data):
    in_ranks(3 if is_nightly() else 2, each_kind, example_data)


@pytest.mark.slow
def test_the_same_on_eight_ranks(example_data):
    in_ranks(8, each_kind, example_data)


def other_version(rank, world, data, folder):
    if rank == ODD:
        sys.path.insert(0, str(folder))
    expect(
        lambda data, is_odd: restored(data, state_after(1, data)),
        StateMismatchError,
        "9.9, and not",
        data,
        world,
    )


def test_another_version_of_the_library_on_one_rank(example_data, tmp_path):
    info = tmp_path / "energon_stream-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: energon-stream\nVersion: 9.9\n")
    in_ranks(3, other_version, example_data, tmp_path)


def missing_bucket(rank, world, data, url):
    os.environ[AGREE_VARIABLE] = "20s"

    def run(data, is_odd):
        get_train_dataset(url if is_odd else data / "captions", batch_size=2)

    expect(run, ObjectNotFoundError, "cannot open the dataset", data, world)


def test_a_bucket_that_one_rank_does_not_find(example_data, tmp_path):
    in_ranks(2, missing_bucket, example_data, (tmp_path / "none").as_uri())


def not_in_vain(rank, world, job, data):
    with none_waits_in_vain():
        job(rank, world, data)


def alone(rank, world, data):
    """One rank reads what others do not; then all go on together."""
    if rank == 0:
        read(data)
        loader = get_savable_loader(
            get_train_dataset(data / "captions", batch_size=2, worker_config=WorkerConfig(0, 1, 0))
        )
        loader.restore_state_rank(loader.save_state_rank())
    dist.barrier()
    read(data)
    restored(data, state_after(2, data))


def leaving(rank, world, data):
    """Ranks leave their loops at other steps, and one restores alone: the others neither wait nor fail."""
    keys = [batch.__key__ for _, batch in zip(range(6), open_loader(data), strict=False)]
    loader = prefetch_to_device(open_loader(data), "cpu")
    for _ in zip(range(2 + rank), loader, strict=False):
        pass
    loader.close()
    if rank == ODD:  # goes on, and closes again
        assert next(iter(loader)).__key__ == keys[2 + rank]
        loader.close()
        checked = open_loader(data)
        with pytest.raises(StateError), checked.alone():
            checked.restore_state_rank({})
    restored(data, state_after(2, data))


def test_ranks_that_leave_their_loops_at_other_steps_do_not_meet(example_data):
    in_ranks(2, not_in_vain, leaving, example_data)


def restarted(rank, world, data):
    """One rank restores, the other one dies before; torchrun starts both again, with the same store."""
    state, loader = state_after(2, data), open_loader(data)
    if rank == 0:
        os.environ[AGREE_VARIABLE] = "200ms"
        with pytest.raises(StateMismatchError, match="did not restore"):
            loader.restore_state_rank(state)
        del os.environ[AGREE_VARIABLE]
    os.environ["TORCHELASTIC_RESTART_COUNT"] = "1"
    with none_waits_in_vain():
        for _ in range(2):
            restored(data, state)


def test_words_of_a_former_start_are_not_read(example_data):
    in_ranks(2, restarted, example_data)


def between_steps(rank, world, data):
    """Where an epoch has a fixed end, and a state no whole steps of the ranks, the log says who waits."""
    for options in ({"virtual_epoch_length": 8}, {"repeat": False, "ends": "drop"}):
        for taken in (3, 4):
            state = state_of_one(taken, data, options)
            mine = {
                name: value // world if name == "virtual_epoch_length" else value
                for name, value in options.items()
            }
            config = WorkerConfig(rank, world, 0, num_streams=2)
            loader = get_savable_loader(
                get_train_dataset(data / "captions", worker_config=config, batch_size=2, **mine)
            )
            with collected_warnings() as said:
                loader.restore_state_global([state])
            lengths = [None] * world
            dist.all_gather_object(lengths, (len(list(loader)), said))
            counts = [count for count, _ in lengths]
            differs = taken % world if "virtual_epoch_length" in options else 0
            assert max(counts) - min(counts) == len(lengths[0][1]) == differs
            assert not differs or "restore the state of 4 batches" in lengths[0][1][0]


def test_a_warning_tells_of_ranks_that_will_not_end_together(example_data):
    in_ranks(2, between_steps, example_data)


def early(rank, world, data):
    """A state of so few batches that a rank gets no stream which has begun is no state that others lack."""
    config = WorkerConfig(0, 1, 0, num_streams=6)
    alone = get_savable_loader(get_train_dataset(data / "captions", worker_config=config, batch_size=2))
    keys = [batch.__key__ for _, batch in zip(range(9), alone, strict=False)]
    for taken in (0, 1, 2, 3) if is_nightly() else (0, 2):
        state = state_of_one(taken, data, {}, num_streams=6)
        config = WorkerConfig(rank, world, 0, num_streams=6)
        loader = get_savable_loader(get_train_dataset(data / "captions", worker_config=config, batch_size=2))
        loader.restore_state_global([state])
        # The rank's first batch from there on: batches go around the ranks.
        assert next(iter(loader)).__key__ == keys[taken + (rank - taken) % world]


def test_more_ranks_go_on_from_few_batches(example_data):
    in_ranks(3, early, example_data)


def state_of_one(taken, data, options, num_streams=2):
    config = WorkerConfig(0, 1, 0, num_streams=num_streams)
    loader = get_savable_loader(
        get_train_dataset(data / "captions", worker_config=config, batch_size=2, **options)
    )
    for _ in zip(range(taken), loader, strict=False):
        pass
    return loader.save_state_rank()


def test_a_function_whose_closure_has_no_value_yet_is_compared(example_data):
    class Late(DefaultTaskEncoder):
        def encode_sample(self, sample):
            return later(sample) if sample is None else sample

    dataset = get_train_dataset(
        example_data / "captions", worker_config=WorkerConfig(0, 1, 0), batch_size=2, task_encoder=Late()
    )
    before = code_digest(dataset)

    def later(sample):
        return sample

    assert before != code_digest(dataset)


def test_ranks_that_read_alone_do_not_wait(example_data):
    in_ranks(2, not_in_vain, alone, example_data)


def absent(rank, world, data):
    """A rank that does not come is named, after as long as the environment says; also the first one."""
    state, loaders = state_after(2, data), [open_loader(data) for _ in range(2)]
    os.environ[AGREE_VARIABLE] = "500ms"
    for missing, loader in enumerate(loaders):
        if rank != missing:
            with pytest.raises(StateMismatchError, match=f"rank {missing} of {world} did not restore"):
                loader.restore_state_rank(state)
        dist.barrier()
        if rank == missing:  # comes late, and is told the same
            with pytest.raises(StateMismatchError, match=f"rank {missing} of {world} did not restore"):
                loader.restore_state_rank(state)
        dist.barrier()
    os.environ[AGREE_VARIABLE] = "0"
    loaders[0].restore_state_rank(state if rank else None)  # as they please


def test_a_rank_that_does_not_come_is_named(example_data):
    in_ranks(3, absent, example_data)


def slow_rank(rank, world, data):
    state, loader = state_after(2, data), open_loader(data)
    begun = time.monotonic()
    if rank == ODD:
        time.sleep(40)
    loader.restore_state_rank(state)  # the others went on after 30 s
    assert time.monotonic() - begun < 45


@pytest.mark.slow
def test_a_rank_that_is_only_slow_fails_no_job(example_data):
    in_ranks(2, slow_rank, example_data)
