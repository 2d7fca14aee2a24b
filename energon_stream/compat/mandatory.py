"""Functions with the parameters that must be given in Megatron-Energon: programs inspect the signatures."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from inspect import unwrap
from types import FunctionType
from typing import Any

from energon_stream import config
from energon_stream.arguments import names_checked
from energon_stream.config.dataset_options import SharedOptions


def _without_defaults(function: Callable[..., Any], *names: str) -> Callable[..., Any]:
    """Return a function that does the same, without the defaults of some keyword-only parameters."""
    own: Any = unwrap(function)
    made: Any = FunctionType(own.__code__, own.__globals__, own.__name__, own.__defaults__, own.__closure__)
    update_wrapper(made, own)
    del made.__wrapped__
    made.__module__ = __name__  # by which it is pickled
    made.__kwdefaults__ = {name: value for name, value in own.__kwdefaults__.items() if name not in names}
    return names_checked(*SharedOptions.__optional_keys__)(made)


get_train_dataset = _without_defaults(
    config.get_train_dataset, "shuffle_buffer_size", "max_samples_per_sequence"
)
