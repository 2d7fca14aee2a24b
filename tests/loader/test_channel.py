"""The channel of a worker: values arrive as they were sent, and no slot is used again while someone looks
at it.
"""

import gc
import random

import pytest
import torch

from energon_stream.loader.channel import ParentGoneError, Receiver, Sender, Wire
from energon_stream.pipeline.collate import batch_stack, generic_batch
from energon_stream.pipeline.failures import FailureGuard
from energon_stream.pipeline.node import Context
from energon_stream.samples.batch_memory import batch_tensor, batching, use_batch_memory
from energon_stream.worker import WorkerConfig

SLOT = 60 << 10


@pytest.fixture(params=[1, 3], ids=["depth 1", "depth 3"])
def wire(request):
    return Wire(SLOT * (request.param + 1), request.param)


@pytest.fixture
def ends(wire):
    sender, receiver = Sender(wire), Receiver(wire)
    yield sender, receiver
    receiver.close()
    use_batch_memory(None)


def sent(ends, value):
    sender, receiver = ends
    sender.send(value)
    found = receiver.receive()
    receiver.acknowledge()
    return found


def place_in(wire, tensor):
    return tensor.data_ptr() - torch.frombuffer(wire.shared, dtype=torch.uint8).data_ptr()


def lies_in_shared_memory(wire, tensor):
    return 0 <= place_in(wire, tensor) < len(wire.shared)


def values(seed):
    rng = torch.Generator().manual_seed(seed)
    return {
        "floats": torch.rand(50, 40, generator=rng),
        "bytes": bytes([seed]) * 10_000,
        "turned": torch.rand(70, 90, generator=rng).T,
        "small": torch.tensor([seed]),
        "none": torch.zeros(0, 5),
        "half": torch.ones(3000, dtype=torch.bfloat16),
        "graph": torch.ones(2000, requires_grad=True),
    }


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        same = found[name].equal(value) if isinstance(value, torch.Tensor) else found[name] == value
        assert same, name


def test_values_arrive_and_stay_whatever_comes_later(ends):
    def with_large(seed):
        return {
            **values(seed),
            "large": torch.full((SLOT + 1,), seed, dtype=torch.uint8),
        }  # larger than a slot

    kept = [sent(ends, with_large(seed)) for seed in range(12)]  # more than there are slots
    for seed, found in enumerate(kept):
        assert_same(found, with_large(seed))


def test_a_consumer_that_drops_messages_gets_views_and_one_that_keeps_many_gets_copies(wire, ends):
    for seed in range(8):
        found = sent(ends, values(seed))
        assert lies_in_shared_memory(wire, found["floats"])
        del found
    kept = [sent(ends, values(seed)) for seed in range(8)]
    assert [lies_in_shared_memory(wire, found["floats"]) for found in kept] == [True] * 3 + [False] * 5
    for seed, found in enumerate(kept):
        assert_same(found, values(seed))
    del found, kept
    assert lies_in_shared_memory(wire, sent(ends, values(1))["floats"])


def test_one_row_that_is_kept_keeps_its_slot_and_may_be_written_to(ends):
    row = sent(ends, values(5))["floats"][3]
    row += 1
    for seed in range(6):
        sent(ends, values(seed))
    assert row.equal(values(5)["floats"][3] + 1)


def test_random_consumers_see_what_was_sent(wire, ends):
    sender, receiver = ends
    dice, kept, on_the_way = random.Random(3), [], []
    for seed in range(150):
        while len(on_the_way) == wire.depth or (on_the_way and dice.random() < 0.5):
            kept.append((on_the_way.pop(0), receiver.receive()))
            receiver.acknowledge()
        while kept and dice.random() < 0.6:
            kept.pop(dice.randrange(len(kept)))
        sender.send(values(seed % 250))
        on_the_way.append(seed % 250)
        for old, found in kept:
            assert_same(found, values(old))


def test_batches_are_stacked_where_they_are_sent_from(wire, ends):
    sender, _ = ends
    use_batch_memory(sender)
    rows = [torch.full((40, 50), float(number)) for number in range(4)]
    for _ in range(10):
        with batching():
            batch = batch_stack(rows)
        where, _ = sender.place_of(batch)
        found = sent(ends, {"batch": batch, "again": batch, "text": ["a"]})
        assert found["batch"].equal(torch.stack(rows))
        assert found["again"].equal(found["batch"])
        assert place_in(wire, found["batch"]) == where  # no copy on either side
        del batch, found
    assert batch_tensor((100, 100), torch.uint8) is None  # outside of a block


def test_a_batch_that_the_worker_keeps_or_drops_is_not_overwritten(ends):
    sender, _ = ends
    use_batch_memory(sender)

    def batch(number):
        with batching():
            return generic_batch([{"x": torch.full((3000,), number)}] * 2)

    kept = [batch(number) for number in range(4)]  # as an operator does that joins batches later
    for number in range(10, 25):
        assert sent(ends, batch(number))["x"][1, 2].item() == number
        batch(99)  # dropped
    gc.collect()
    assert [int(each["x"].float().mean()) for each in kept] == [0, 1, 2, 3]
    assert [sent(ends, each)["x"][0, 0].item() for each in kept] == [0, 1, 2, 3]
    del kept
    for number in range(8):
        made = batch(number)
        assert sender.place_of(made["x"]) is not None  # there are free slots again
        assert sent(ends, made)["x"][0, 0].item() == number
        del made


def test_without_shared_memory_everything_is_pickled():
    wire = Wire(0, 2)
    ends = Sender(wire), Receiver(wire)
    use_batch_memory(ends[0])
    with batching():
        batch = batch_stack([torch.ones(5000)] * 2)
    use_batch_memory(None)
    assert sent(ends, {"x": batch})["x"].equal(torch.ones(2, 5000))
    ends[1].close()


def test_a_closed_channel_is_no_failure_of_a_sample(ends):
    """A worker stacks in the channel's memory within the user's ``batch``, and the loader may close then."""
    sender, receiver = ends
    handled = []
    config = WorkerConfig(0, 1, 0, global_error_handler=lambda *given: handled.append(given))
    guard = FailureGuard("batch", Context(config, 0), tolerance=0)
    receiver.close()

    def fill(value):
        while True:
            sender.send(value)

    with pytest.raises(ParentGoneError):
        guard.call(fill, 1, 0, of=())
    assert not handled
