"""Values that the loaders of all ranks must have in common, and the calls that compare them."""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from importlib.metadata import PackageNotFoundError, version
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

from energon_stream.agreement import Occasion, Range
from energon_stream.errors import ConfigError, StateMismatchError, WeightsError
from energon_stream.loader.loader_position import with_inputs
from energon_stream.pipeline.dataset import SavableDataset
from energon_stream.pipeline.epochs import EvenDataset
from energon_stream.pipeline.stream_runner import Rotation
from energon_stream.state.description import PARTS
from energon_stream.state.rotation import next_index
from energon_stream.worker import WorkerConfig

_log = logging.getLogger(__name__)

_STATE, _CODE, _VERSION = "what it restores", "the code of the task encoder", "the version of energon_stream"
_ONE_PROGRAM = "run the same program, with the same arguments and packages, on all nodes"
_ONE_DATASET = (
    "let all nodes see the same dataset: its files differ, or the path leads elsewhere on some node"
)
_CURES = {
    _STATE: "restore an earlier checkpoint, of which each rank has its state, or give no rank a state",
    _VERSION: "install the same version on all nodes",
    PARTS["data"]: _ONE_DATASET,
    PARTS["content"]: _ONE_DATASET,
}
RESTORE = Occasion("restore", StateMismatchError, _ONE_PROGRAM, _CURES)
START = Occasion("begin to read", ConfigError, _ONE_PROGRAM, _CURES)
WEIGH = Occasion(
    "set the weights",
    WeightsError,
    "call set_weights on all ranks, each time with the same weights and the same at_step",
    seconds=600,
)


def common(dataset: SavableDataset[Any], has_begun: bool | None, prints: Mapping[str, str]) -> dict[str, str]:
    """Return what must be equal on all ranks, by name, with hashes of the dataset's parts.

    ``has_begun`` is None for a rank that agrees with all others, whether they have begun or not.
    """
    config = dataset.worker_config
    return {
        **({} if has_begun is None else {_STATE: "a state" if has_begun else "nothing"}),
        _VERSION: _version(),
        "seed_offset": str(config.seed_offset),
        "num_streams": str(config.num_streams),
        **{PARTS[part]: f"#{print}" for part, print in prints.items()},
        _CODE: f"#{code_digest(dataset)}",
    }


@functools.cache
def _version() -> str:
    try:
        return version("energon-stream")
    except PackageNotFoundError:  # its sources in PYTHONPATH
        return "of sources"


def job_pass(dataset: SavableDataset[Any]) -> int:
    """Return the batches of a pass that all ranks end together; 0 if they may not."""
    length = dataset.pass_length
    for each in with_inputs(dataset):
        if isinstance(each, EvenDataset):
            lengths = map(dataset.len_stream, range(dataset.worker_config.num_streams))
            return each.total if sum(one or 0 for one in lengths) == each.total else length
    return length


def global_index(rotation: Rotation, config: WorkerConfig, pass_length: int) -> int | None:
    """Return the number of a rank's next batch in the job: those of all ranks lie within one step.

    None where passes may have ended at different steps.
    """
    if rotation.ended or (rotation.passes and not pass_length):
        return None
    begun = rotation.passes * pass_length
    return begun - rotation.first_stream + next_index(rotation, config.rank, config.world_size)


def check_step(indices: Range | None, config: WorkerConfig) -> None:
    """Raise StateMismatchError on all ranks unless their next batches are of one step."""
    (first, low), (last, high) = indices or ((0, 0), (0, 0))
    if last - first >= (ranks := config.world_size):
        raise StateMismatchError(
            f"rank {low} of {ranks} would go on at step {first // ranks}, and rank {high} at step {last // ranks}",
            hint="restore the states of one checkpoint on all ranks",
        )


def even_out(index: int, dataset: SavableDataset[Any], rotation: Rotation) -> tuple[int, int]:
    """Return the pass under way and the index of the job's next batch in it, if ranks begin amid a step.

    An :class:`EvenDataset` then drops or repeats batches at its end; the end of a virtual epoch is fixed, and
    a warning tells. Raises ConfigError if batches would have to be repeated, and cannot be made again.
    """
    config, ranks, length = dataset.worker_config, dataset.worker_config.world_size, job_pass(dataset)
    before = index - rotation.first_stream
    if before % ranks == 0 or not length:
        return 0, 0
    first = rotation.passes * length + before
    for each in with_inputs(dataset):
        if isinstance(each, EvenDataset) and each.total == length:
            if each.ends == "pad":
                each.dataset.assert_can_restore()
            return rotation.passes, before
    if config.rank == 0:
        _log.warning(
            "the state is of %d batches, which is no multiple of %d ranks: %d of them get one batch more than the others "
            "in the epoch under way. If ranks wait for each other at its end, restore the state of %d batches, or the "
            "end of the epoch, or use torch's Join",
            first,
            ranks,
            ranks - before % ranks,
            first + ranks - first % ranks,
        )
    return 0, 0


def code_digest(dataset: SavableDataset[Any]) -> str:
    """Return a hash of the compiled code of a pipeline's functions, and of the classes of methods among them.

    It covers all methods of these classes, and functions in their attributes, such as those of cookers, but
    neither values that are no code nor the library's own classes.
    """
    found, seen = hashlib.blake2b(digest_size=8), set[int]()
    for each in with_inputs(dataset):
        for value in vars(each).values():
            if callable(value):
                for text in _texts(value, seen):
                    found.update(text)
    return found.hexdigest()


def _texts(value: Any, seen: set[int]) -> Iterator[bytes]:
    """Yield what tells code from other code; equal in all processes, whatever their hash seeds and paths."""
    inner: Any = ()
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, CodeType):
        yield _text(value)
    elif isinstance(value, FunctionType):
        inner = (value.__code__, *(_content(cell) for cell in value.__closure__ or ()))
    elif isinstance(value, MethodType):
        inner = (value.__func__, type(value.__self__))
    elif isinstance(value, (staticmethod, classmethod)):
        inner = (value.__func__,)
    elif isinstance(value, functools.partial):
        inner = (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, property):
        inner = (value.fget,)
    elif isinstance(value, type):
        if value.__module__.partition(".")[0] not in ("builtins", "energon_stream"):
            inner = (*vars(value).values(), *value.__bases__)
    elif isinstance(value, dict):
        inner = value.values()
    elif isinstance(value, (list, tuple)):
        inner = value
    elif is_dataclass(value) and hasattr(value, "__dict__"):
        inner = vars(value).values()
    for part in inner:
        yield from _texts(part, seen)


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # its function has not come to the assignment
        return None


def _text(constant: Any) -> bytes:
    """Return a constant of compiled code as bytes."""
    if isinstance(constant, CodeType):
        return b"".join([constant.co_code, *map(_text, (*constant.co_names, *constant.co_consts))])
    if isinstance(constant, tuple):
        return b"(" + b",".join(map(_text, constant)) + b")"
    if isinstance(constant, frozenset):  # in any order
        return b"{" + b",".join(sorted(map(_text, constant))) + b"}"
    return repr(constant).encode()
