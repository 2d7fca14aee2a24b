"""The channel of a worker: values arrive as they were sent, and no slot is used again while someone looks
at it.
"""

import gc
import random
import resource
import signal
import threading

import numpy as np
import pytest
import torch

from energon_stream.errors import WorkerError
from energon_stream.loader.channel import ParentGoneError, Receiver, Sender, Wire
from energon_stream.pipeline.collate import batch_stack, generic_batch
from energon_stream.pipeline.failures import FailureGuard
from energon_stream.pipeline.node import Context
from energon_stream.samples.batch_memory import batch_tensor, batching, use_batch_memory
from energon_stream.worker import WorkerConfig

SLOT = 60 << 10


@pytest.fixture(params=[1, 3], ids=["depth 1", "depth 3"])
def wire(request):
    return Wire(SLOT * (request.param + 1), request.param, 0)


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


def test_batches_larger_than_their_share_of_memory_are_not_pickled():
    wire = Wire(1 << 20, 4)
    values = [torch.full((3 << 20,), number, dtype=torch.uint8) for number in range(5)]

    def send_all(sender):
        for value in values:
            sender.send(value)

    thread = threading.Thread(target=send_all, args=[Sender(wire)], daemon=True)
    thread.start()
    for number in range(5):
        if number > 1:
            assert not wire.parent.poll(0.01)  # three on their way would be too much memory
            wire.parent.send_bytes(b"")
        assert len(wire.parent.recv_bytes()) < 1000
    thread.join(60)


def test_fewer_addresses_are_enough():
    """As in a process with `ulimit -f`, which holds for this memory too."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SLOT * 100, before[1]))
    try:
        wire = Wire(SLOT * 3, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert wire.slot_bytes == SLOT
    assert sent((Sender(wire), Receiver(wire)), torch.ones(5000)).equal(torch.ones(5000))


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


def dtypes():
    found = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    quantized = {torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4}
    return sorted(found - quantized, key=str)


def with_dtype(data, dtype):
    made = torch.empty(0, dtype=dtype)
    return made.set_(torch.frombuffer(bytearray(data), dtype=torch.uint8).untyped_storage()) if data else made


def bytes_in(tensor):
    if tensor.layout is torch.sparse_coo:
        return bytes_in(tensor._indices()) + bytes_in(tensor._values())
    if tensor.is_nested:
        return b"".join(map(bytes_in, tensor.unbind()))
    plain = tensor.int_repr() if tensor.is_quantized else tensor.detach().resolve_conj().resolve_neg()
    plain, whole = plain.contiguous(), torch.empty(0, dtype=torch.uint8)
    start = plain.storage_offset() * plain.itemsize
    return bytes(whole.set_(plain.untyped_storage(), start, (plain.nbytes,), (1,)).numpy())


@pytest.mark.parametrize("shared", [0, SLOT * 3])
def test_tensors_of_every_dtype_arrive_small_or_large(shared):
    wire = Wire(shared, 2)
    ends = Sender(wire), Receiver(wire)
    for dtype in dtypes():
        for count in (0, 1, 37, 1500, 6000 // dtype.itemsize + 1):
            data = random.Random(count).randbytes(count * dtype.itemsize)
            tensor = with_dtype(data, dtype)
            value = {"flat": tensor, "scalar": tensor.view(()) if count == 1 else None}
            found = sent(ends, value)
            assert (found["flat"].dtype, found["flat"].shape) == (dtype, (count,))
            assert bytes_in(found["flat"]) == data
            if count == 1:
                assert (found["scalar"].shape, bytes_in(found["scalar"])) == ((), data)
    ends[1].close()


class Marked(torch.Tensor):
    """A class of a user."""


def odd_tensors():
    wide = torch.arange(6000).view(60, 100)
    ragged = [torch.rand(3), torch.rand(900)]
    noted = torch.ones(2000)
    noted.note = "kept"
    quantized = torch.quantize_per_tensor(torch.rand(2000), 0.1, 3, torch.quint8)
    return {
        "turned": wide.T,
        "every other": wide.to(torch.uint16)[:, ::2],
        "expanded": torch.ones(1, dtype=torch.float8_e5m2).expand(3000),
        "slice": wide[3, 5:9],
        "conjugate": torch.rand(700, dtype=torch.complex64).conj(),
        "negative": torch.rand(700, dtype=torch.complex64).conj().imag,
        "gradient": torch.ones(5, dtype=torch.float8_e4m3fn, requires_grad=True),
        "large gradient": torch.rand(3000, requires_grad=True),
        "parameter": torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16)),
        "subclass": torch.ones(3, dtype=torch.uint32).as_subclass(Marked),
        "sparse": torch.eye(9, dtype=torch.float64).to_sparse(),
        "rows": torch.eye(9).to_sparse_csr(),
        "nested": torch.nested.nested_tensor(ragged),
        "quantized": quantized,
        "noted": noted,
    }


@pytest.mark.parametrize("shared", [0, SLOT * 3])
@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, on kinds of tensors that it calls experimental
def test_odd_tensors_arrive_as_they_are(shared):
    wire = Wire(shared, 2)
    ends = Sender(wire), Receiver(wire)
    for name, tensor in odd_tensors().items():
        found = sent(ends, [tensor])[0]
        kept = ("dtype", "layout", "requires_grad", "is_quantized", "is_nested", "__class__")
        assert [getattr(found, each) for each in kept] == [getattr(tensor, each) for each in kept], name
        if tensor.layout is torch.sparse_csr:
            found, tensor = found.to_dense(), tensor.to_dense()
        assert bytes_in(found) == bytes_in(tensor), name
        assert getattr(found, "note", None) == getattr(tensor, "note", None)
        assert tensor.is_nested or found.shape == tensor.shape
    ends[1].close()


def test_arrays_arrive_as_they_are(ends):
    structured = np.zeros(3, dtype=[("größe", "<i4"), ("x", ">f8", 2)])
    structured["größe"] = [1, 2, 3]
    values = [np.float16(3), np.datetime64("2020-01-01"), structured, structured[1], np.arange(9000)[::2],
              np.array(["a", "größe"]), np.ma.array([1, 2], mask=[0, 1]), np.float64("nan")]  # fmt: skip
    for value in values:
        found = sent(ends, value)
        assert (type(found), found.dtype, found.shape) == (type(value), value.dtype, value.shape)
        assert found.tobytes() == value.tobytes()


def test_a_value_that_cannot_be_sent_is_named(ends):
    sender, _ = ends
    batch = {"image": torch.ones(5000), "meta": [{"path": "x"}, {"lock": threading.Lock()}]}
    with pytest.raises(WorkerError, match=r"cannot send a lock .* \[meta/1/lock\]"):
        sender.send(batch)
    del batch["meta"]
    assert sent(ends, batch)["image"].equal(torch.ones(5000))
