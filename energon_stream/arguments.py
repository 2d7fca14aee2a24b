"""Checks of the arguments of functions that users call."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import wraps
from inspect import signature
from numbers import Integral
from traceback import walk_tb
from types import FrameType
from typing import ParamSpec, TypeVar

from energon_stream.errors import (
    AccessDeniedError,
    ConfigError,
    EmptyDatasetError,
    MetadataError,
    NotPreparedError,
    ObjectNotFoundError,
    UnknownArgumentError,
)
from energon_stream.printable import nearest

P = ParamSpec("P")
T = TypeVar("T")

SHUFFLE_BUFFER_SIZE = MAX_SAMPLES_PER_SEQUENCE = 100
"""Defaults of training, for all data and all ranks; ``docs/concepts/order.md`` says why."""

SPLIT_CONFIG, DATASET_CONFIG = "split.yaml", "dataset.yaml"
"""Files in the folder of metadata: the split parts, and what samples are."""

_ELSEWHERE = {
    "num_workers": "it belongs to worker_config: WorkerConfig(rank=0, world_size=1, num_workers=4)",
    "seed": "it belongs to worker_config: WorkerConfig(…, seed_offset=1)",
    "shuffle": "pass shuffle_buffer_size=100, or 1 for none; get_val_dataset keeps the order",
    "shardshuffle": "pass shuffle_buffer_size=100: it shuffles shards, too",
    "resampled": "pass shuffle_over_epochs_multiplier=-1",
    "decoder": "set it in the task encoder: class Encoder(DefaultTaskEncoder): decoder = …",
    "cookers": "set them in the task encoder: class Encoder(DefaultTaskEncoder): cookers = [Cooker(…)]",
    "collate_fn": "override `batch` of a task encoder",
    "transform": "override `encode_sample` of a task encoder",
    **dict.fromkeys(
        ("batch_size", "batch_drop_last", "split_part", "task_encoder"),
        "pass it to the dataset: get_loader(get_train_dataset(path, batch_size=8))",
    ),
    "limit": "get_val_dataset has it; for training, set virtual_epoch_length, or leave the loop",
}
"""Names that other libraries use here, and what does the same."""


_OF_THE_CALL = (
    AccessDeniedError,
    ConfigError,
    EmptyDatasetError,
    MetadataError,
    NotPreparedError,
    ObjectNotFoundError,
)
"""Errors of a path or an option that was given, where the library's own frames tell nothing."""


def check_whole(name: str, value: object, least: float, hint: str) -> None:
    """Raise ConfigError for what is neither None nor a whole number from ``least`` on that has 64 bits."""
    whole = int(value) if type(value) is not bool and isinstance(value, Integral) else None
    if value is not None and (whole is None or not least <= whole < 2**63):
        kind = ", no whole number" if whole is None else ""
        raise ConfigError(f"{name} is {value!r:.80}{kind}", hint=hint)


def check_names(given: Iterable[str], known: Iterable[str], where: str | None = None) -> None:
    """Raise UnknownArgumentError for the first name that is not known."""
    names = set(known)
    for name in given:
        if name not in names:
            hint = _ELSEWHERE.get(name) or nearest(name, names)
            raise UnknownArgumentError(f"unknown argument {name!r}", where=where, hint=hint)


def _is_foreign(frame: FrameType) -> bool:
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    return package != "energon_stream" and package not in sys.stdlib_module_names


def names_checked(*more: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Let a function name unknown keywords before missing ones, arrays, and what is no flag where one is
    wanted. ``more`` is what its ``**options`` may be.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        parameters = signature(function).parameters
        known = {*parameters, *more}
        flags = {name for name, each in parameters.items() if isinstance(each.default, bool)}

        @wraps(function)
        def call(*args: P.args, **options: P.kwargs) -> T:
            check_names(options, known, f"{function.__name__}()")
            for name, value in options.items():
                is_array = bool(getattr(value, "ndim", 0))
                if is_array or (name in flags and value not in (False, True)):
                    hint = "pass True or False" if name in flags else "pass one value, such as int(array[0])"
                    raise ConfigError(f"{name} is {'an array' if is_array else repr(value)[:80]}", hint=hint)
            try:
                return function(*args, **options)
            except _OF_THE_CALL as error:
                if any(_is_foreign(frame) for frame, _ in walk_tb(error.__traceback__)):
                    raise  # from a class or function of the user's
                raise error.with_traceback(None) from error.__cause__  # without the library's frames

        return call

    return decorate
