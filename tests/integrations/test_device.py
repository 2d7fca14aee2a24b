"""Batches on a device: the same ones, and the position of the last one given out."""

from collections import namedtuple
from dataclasses import dataclass
from itertools import islice

import pytest
import torch
import torch.distributed.checkpoint
from repetitions import is_nightly

from energon_stream import (
    Batch,
    CaptioningSample,
    DefaultTaskEncoder,
    ReadOptions,
    WorkerConfig,
    edataclass,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
)
from energon_stream.errors import ConfigError, StateMismatchError
from energon_stream.integrations.device import prefetch_to_device

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def make_loader(data, workers=0, *, length=5, encoder=None, make=get_savable_loader, **options):
    """Epochs of ``length`` batches of three."""
    dataset = get_train_dataset(
        data / "coco",
        batch_size=3,
        shuffle_buffer_size=10,
        max_samples_per_sequence=4,
        read_options=ReadOptions(max_ahead=64),  # a tiny dataset would be planned for hundreds of passes
        virtual_epoch_length=length,
        worker_config=WorkerConfig(0, 1, workers, num_streams=2),
        task_encoder=encoder,
    )
    return make(dataset, **options)


def keys(batches):
    return [tuple(batch.__key__) for batch in batches]


def epochs(loader, count):
    return [key for _ in range(count) for key in keys(loader)]


@pytest.fixture(scope="module")
def expected(data):
    """Batches of three epochs."""
    found = epochs(make_loader(data), 3)
    assert len(found) == 15
    assert len({key for batch in found[:10] for key in batch}) >= 25  # so that a mistake would be seen
    return found


@pytest.mark.every(3)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("depth", [0, 1, 3, 20])
def test_it_gives_the_same_batches_and_ends_with_the_epochs(data, expected, workers, depth):
    loader = prefetch_to_device(make_loader(data, workers), "cpu", depth=depth)
    assert len(loader) == 5
    assert [keys(loader) for _ in range(3)] == [expected[:5], expected[5:10], expected[10:]]
    loader.close()


@pytest.mark.every(5)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_its_state_is_that_of_the_last_batch_given_out(data, expected, workers, depth):
    plain, prefetched = make_loader(data), prefetch_to_device(make_loader(data, workers), "cpu", depth=depth)
    assert prefetched.save_state_rank() == plain.save_state_rank()
    given = 0
    for _ in range(2):
        for one, _ in zip(plain, prefetched, strict=True):
            given += 1
            state = prefetched.state_dict()
            assert state == plain.state_dict()
            assert keys([one]) == expected[given - 1 : given]
            if not is_nightly() and given not in (1, 4, 5, 6):
                continue
            again = prefetch_to_device(make_loader(data), "cpu", depth=depth)
            again.load_state_dict(state)
            # The rest of this epoch and all of the next ones: no batch twice, none missing.
            assert epochs(again, 3)[: 15 - given] == expected[given:]
        assert prefetched.state_dict() == plain.state_dict()  # after the end
    prefetched.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_that_was_left_goes_on_also_after_closing(data, expected, workers):
    loader = prefetch_to_device(make_loader(data, workers), "cpu", depth=2)
    found = keys(islice(loader, 2))
    found += keys(islice(loader, 1))
    loader.close()
    found += keys(loader)
    assert found == expected[:5]
    loader.close()
    assert keys(loader) == expected[5:10]
    loader.close()


def test_it_can_be_restored_while_it_is_iterated(data, expected):
    loader = prefetch_to_device(make_loader(data), "cpu", depth=2)
    batches = iter(loader)
    assert keys(islice(batches, 2)) == expected[:2]
    state = loader.save_state_rank()
    assert keys(islice(batches, 2)) == expected[2:4]
    loader.restore_state_rank(state)
    assert keys(batches) == expected[2:5]
    loader.restore_state_global([state])
    assert keys(loader) == expected[2:5]
    assert loader.save_state_global() == [loader.save_state_rank()]
    loader.restore_state_rank(None)
    assert keys(loader) == expected[:5]


def test_a_state_that_was_loaded_into_the_loader_counts(data, expected):
    inner = make_loader(data)
    loader = prefetch_to_device(inner, "cpu")
    other = make_loader(data)
    assert keys(islice(other, 3)) == expected[:3]
    inner.restore_state_rank(other.save_state_rank())
    assert loader.state_dict() == other.state_dict()
    assert keys(loader) == expected[3:5]


def test_torch_saves_it_as_it_does_a_loader(data, expected, tmp_path):
    loader = prefetch_to_device(make_loader(data), "cpu", depth=2)
    assert keys(islice(loader, 3)) == expected[:3]
    torch.distributed.checkpoint.save({"loader": loader}, checkpoint_id=tmp_path)
    again = prefetch_to_device(make_loader(data), "cpu", depth=2)
    torch.distributed.checkpoint.load({"loader": again}, checkpoint_id=tmp_path)
    assert keys(again) == expected[3:5]


class Counting(DefaultTaskEncoder):
    """Counts the samples it encodes."""

    count = 0

    def encode_sample(self, sample):
        self.count += 1
        return sample


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_the_first_batch_does_not_wait_for_those_ahead(data, depth):
    encoder = Counting()
    counts = [
        encoder.count // 3 for _ in prefetch_to_device(make_loader(data, encoder=encoder), "cpu", depth=depth)
    ]
    assert counts == [1, *(min(5, given + depth) for given in range(2, 6))]


class Failing(DefaultTaskEncoder):
    """Fails at a batch."""

    def __init__(self, at):
        super().__init__()
        self.left = at

    def encode_batch(self, batch):
        self.left -= 1
        if self.left == 0:
            raise MemoryError("of the user")
        return batch


def test_an_error_leaves_the_position_where_it_was(data, expected):
    loader = prefetch_to_device(make_loader(data, encoder=Failing(at=4)), "cpu")
    found = []
    with pytest.raises(MemoryError, match="of the user"):
        found.extend(tuple(batch.__key__) for batch in loader)
    again = make_loader(data, encoder=Failing(at=100))
    again.load_state_dict(loader.state_dict())
    assert found + keys(again) == expected[:5]


def test_loaders_without_a_state_are_moved_but_not_saved(data):
    dataset = get_val_dataset(data / "coco", batch_size=2, worker_config=WorkerConfig(0, 1, 0))
    loader = prefetch_to_device(get_loader(dataset), "cpu")
    assert keys(loader) == keys(get_loader(dataset))
    with pytest.raises(ConfigError, match="get_savable_loader"):
        loader.state_dict()
    with pytest.raises(ConfigError, match="get_savable_loader"):
        loader.restore_state_rank(None)
    loader.close()


def test_options_and_states_that_cannot_be(data):
    with pytest.raises(ConfigError, match="depth is -1"):
        prefetch_to_device(make_loader(data), "cpu", depth=-1)
    loader = prefetch_to_device(make_loader(data), "cpu")
    with pytest.raises(StateMismatchError):
        loader.load_state_dict(make_loader(data, length=4).state_dict())


Pair = namedtuple("Pair", "left right")


@dataclass(frozen=True)
class Inner:
    tensor: torch.Tensor
    name: str


@edataclass
class Tokens(Batch):
    tokens: torch.Tensor
    rest: dict
    inner: Inner


class OwnWay(Tokens):
    def to_device(self, device, non_blocking=True):
        return type(self).extend(self, tokens=self.tokens.to(device), rest={"own": self.rest["list"][0]})


class Nested(DefaultTaskEncoder):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def batch(self, samples):
        return self.kind.from_samples(
            samples,
            tokens=torch.arange(3),
            rest={"list": [torch.ones(1), "text"], "pair": Pair(torch.ones(1), (torch.ones(1), 7))},
            inner=Inner(torch.ones(2), "name"),
        )


def test_tensors_are_moved_wherever_they_are(data):
    loader = prefetch_to_device(make_loader(data, encoder=Nested(Tokens)), "meta")
    for batch in loader:
        assert type(batch) is Tokens
        assert len(batch.__key__) == 3
        left, (right, seven) = batch.rest["pair"]
        for tensor in (batch.tokens, batch.rest["list"][0], left, right, batch.inner.tensor):
            assert tensor.device.type == "meta"
        assert (type(batch.rest["pair"]), seven, batch.inner.name) == (Pair, 7, "name")
        assert batch.rest["list"][1] == "text"


def test_batches_that_move_themselves_do(data):
    batch = next(iter(prefetch_to_device(make_loader(data, encoder=Nested(OwnWay)), "meta")))
    assert batch.tokens.device.type == "meta"
    assert batch.rest["own"].device.type == "cpu"


def test_samples_are_moved(data):
    batch = next(iter(prefetch_to_device(make_loader(data), "meta")))
    assert isinstance(batch, CaptioningSample)
    assert batch.image.device.type == "meta"


@CUDA
@pytest.mark.parametrize("non_blocking", [True, False])
@pytest.mark.parametrize("pin_memory", [True, False])
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_on_cuda_batches_are_whole_while_the_device_is_busy(data, non_blocking, pin_memory, depth):
    """Each batch is used only after a long kernel, when the memory of those before it was freed long ago on
    the host.
    """
    wanted = [batch.image.sum().item() for batch in make_loader(data, length=13)]
    loader = prefetch_to_device(
        make_loader(data, length=13, pin_memory=pin_memory), "cuda", non_blocking, depth=depth
    )
    sums = []
    for batch in loader:
        assert batch.image.is_cuda
        torch.cuda._sleep(20_000_000)
        sums.append(batch.image.sum())
        del batch
    assert [total.item() for total in sums] == pytest.approx(wanted)


@CUDA
def test_on_cuda_the_thread_does_not_wait_for_the_copy(data):
    """The current stream is busy; taking the next batches must not wait until it is done."""
    loader = prefetch_to_device(make_loader(data, pin_memory=True), "cuda")
    for _ in loader:
        pass  # so that memory has been allocated, which may wait
    batches = iter(loader)
    next(batches)
    torch.cuda.synchronize()
    busy = torch.cuda.Event()
    torch.cuda._sleep(2_000_000_000)
    busy.record()
    assert next(batches).image.is_cuda
    assert not busy.query()
    torch.cuda.synchronize()
