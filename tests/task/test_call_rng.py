"""``TaskEncoder.rng``: each call of a hook draws as new generators with its seed do."""

import hashlib
import random

import numpy as np
import pytest
import torch

from energon_stream import DefaultTaskEncoder, MapDataset, PackingDataset, WorkerConfig, stateless
from energon_stream.compat.placeholders import skip_safe
from energon_stream.loader import SavableDataLoader
from energon_stream.task import get_failure_tolerance, get_stateless
from energon_stream.task.call_rng import CallRng
from energon_stream.testing.operator_suite import NumbersDataset, assert_exact_resume, assert_restores_by_key


def sha(text):
    return hashlib.sha1(text.encode()).digest()


def expected(stream, call, offset=0):
    """What new generators draw first, with the seed that Megatron-Energon makes of stream and counter."""
    of_stream = int.from_bytes(sha(f"{stream},{offset}")[-4:], "big")
    seed = int.from_bytes(sha(f"{of_stream}|{call}")[:4], "big")
    own = torch.Generator().manual_seed(seed)
    return (
        torch.rand((), generator=own).item(),
        np.random.default_rng(seed).random(),
        random.Random(seed).random(),
    )


def drawn(rng):
    return torch.rand((), generator=rng.torch).item(), rng.numpy.random(), rng.random.random()


class Encoder(DefaultTaskEncoder):
    @stateless(restore_task_encoder_seeds=True)
    def encode_sample(self, sample):
        return sample, *drawn(self.rng)

    @stateless(restore_task_encoder_seeds=True, skip_safe=True)
    def several(self, sample):
        for place in range(3):
            yield sample, place, *drawn(self.rng)

    @stateless
    def pack(self, samples):
        for place in range(2):
            yield tuple(samples), place, *drawn(self.rng)


def config(rank=0, world=1, workers=0, streams=4):
    return WorkerConfig(rank, world, workers, num_streams=streams)


def mapped(hook="encode_sample", **options):
    return MapDataset(NumbersDataset(24, config(**options)), getattr(Encoder(), hook))


def packed():
    return PackingDataset(
        NumbersDataset(24), 4, lambda some: [some[:2], some[2:]], Encoder().pack, stateless=True
    )


@pytest.mark.energon("8: TaskEncoder.rng", "8: stateless(restore_task_encoder_seeds)")
@pytest.mark.parametrize("workers", [0, 2])
def test_each_call_has_the_generators_of_its_seed(workers):
    state = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    found = {value: draws for value, *draws in SavableDataLoader(mapped(workers=workers))}
    dataset = NumbersDataset(24, config())
    for stream in range(4):
        for call, number in enumerate(dataset.numbers(stream)):
            assert tuple(found[number]) == expected(stream, call)
    assert state == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())


@pytest.mark.parametrize("make", [mapped, lambda: mapped("several"), packed], ids=["one", "several", "packs"])
def test_draws_are_the_same_after_a_restore_and_by_key(make):
    assert_exact_resume(make, steps=30, tail=8)
    assert_restores_by_key(make, steps=12)


def test_a_generator_goes_on_where_it_was():
    found = list(mapped("several", streams=1))
    rng = CallRng(int.from_bytes(sha(f"{int.from_bytes(sha('0,0')[-4:], 'big')}|5")[:4], "big"))
    assert [draws for number, _, *draws in found if number == 5] == [list(drawn(rng)) for _ in range(3)]


def test_other_ranks_draw_the_same():
    alone = sorted(SavableDataLoader(mapped()))
    for world in (2, 4):
        apart = [each for rank in range(world) for each in SavableDataLoader(mapped(rank=rank, world=world))]
        assert sorted(apart) == alone


def test_states_of_generators_are_saved_and_restored():
    rng = CallRng(1)
    rng.seed_args("a", 2)
    again = CallRng(int.from_bytes(sha("a|2")[:4], "big"))
    assert drawn(rng) == drawn(again)
    saved = rng.save_state()
    wanted = drawn(rng)
    drawn(rng)
    rng.restore_state(saved)
    assert drawn(rng) == wanted


def test_an_encoder_may_have_an_attribute_of_this_name():
    class Own(Encoder):
        def __init__(self):
            self.rng = random.Random(1)

    assert Own().rng.random() == random.Random(1).random()


def test_outside_of_a_pipeline_generators_go_on():
    encoder = Encoder()
    assert encoder.encode_sample(1) != encoder.encode_sample(1)


@pytest.mark.energon("8: stateless(failure_tolerance)", "8: skip_safe")
def test_marks_go_together():
    marked = stateless(
        restore_seeds=True, restore_task_encoder_seeds=True, failure_tolerance=3, skip_safe=True
    )
    assert get_failure_tolerance(marked(lambda: 1)) == 3
    assert get_stateless(marked(lambda: 1))
    draw = stateless(restore_seeds=True)(lambda number: (number, random.random()))
    made = [MapDataset(NumbersDataset(24, config()), each) for each in (draw, skip_safe(draw))]
    first, second = (list(SavableDataLoader(each)) for each in made)
    assert first == second  # no call is left out, or draws other numbers
