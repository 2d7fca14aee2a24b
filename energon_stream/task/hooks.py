"""Checks a task encoder before it gets samples: names that are nearly a hook's, hooks that cannot work."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from difflib import SequenceMatcher
from inspect import iscoroutinefunction, isfunction, signature, unwrap
from types import CodeType
from typing import Any

from energon_stream.errors import ConfigError
from energon_stream.task.augment import AugmentTaskEncoder
from energon_stream.task.cooking import Cooker
from energon_stream.task.encoder import TaskEncoder

_log = logging.getLogger(__name__)

_OF_ONE = {
    "encode_sample": "sample",
    "preencode_sample": "sample",
    "postencode_sample": "sample",
    "select_samples_to_pack": "samples",
    "pack_selected_samples": "samples",
    "batch_group_criterion": "sample",
    "batch": "samples",
    "encode_batch": "batch",
}
"""Hooks that are called with one argument, and its name."""

_OTHERS = ("cook_crude_sample", "build_train_datasets", "build_val_datasets", "build_cook_crude_sample",
           "build_encode_sample", "build_batch", "cookers", "decoder")  # fmt: skip


def check_encoder(encoder: Any) -> None:
    """Raise ConfigError for what is no task encoder, a misspelt hook, or one that cannot be called.

    Methods that others of the class use are not suspected, nor are those beside a hook of the right name.
    Names that only go on after a hook's, such as ``encode_samples``, are a warning.
    """
    if not isinstance(encoder, TaskEncoder):
        hint = (
            f"pass an object: {encoder.__name__}()"
            if isinstance(encoder, type)
            else "derive from TaskEncoder"
        )
        raise ConfigError(f"task_encoder is {encoder!r:.80}", hint=hint)
    if isinstance(encoder, AugmentTaskEncoder):
        check_encoder(encoder._task_encoder)
    kind = type(encoder).__qualname__
    for name, argument in _OF_ONE.items():
        _check_hook(getattr(encoder, name), f"{kind}.{name}", f"def {name}(self, {argument})")
    decoder = encoder.decoder
    if isinstance(decoder, type) or not (decoder is None or hasattr(decoder, "decode")):
        hint = "set a decoder such as SampleDecoder(image_decode='pil'), or None for bytes"
        raise ConfigError(f"{kind}.decoder is {decoder!r:.80}", hint=hint)
    cookers: Any = encoder.cookers
    if not isinstance(cookers, list | tuple) or not all(isinstance(each, Cooker) for each in cookers):
        hint = "write a list of Cooker objects: cookers = [Cooker(cook)], or Cooker(cook, has_subflavors={…})"
        raise ConfigError(f"{kind}.cookers is {cookers!r:.80}", hint=hint)
    own = {name: value for cls in type(encoder).__mro__ if "_has_library_hooks" not in vars(cls)
           for name, value in vars(cls).items()}  # fmt: skip
    used = {name for value in own.values() for name in _names(_code(value))}
    for name, value in own.items():
        hook = None if name.startswith("_") or name in used or hasattr(TaskEncoder, name) else _meant(name)
        if hook is None or hook in own or isfunction(value) == (hook in _OTHERS[-2:]):
            continue
        what, hint = f"{kind}.{name} is no hook, and nothing calls it", f"did you mean {hook!r}?"
        if name.startswith(hook):
            _log.warning("%s: %s", what, hint)
        else:
            raise ConfigError(what, hint=f"{hint} Begin the name with _ if it is a function of your own")


def _check_hook(hook: Any, name: str, form: str) -> None:
    if iscoroutinefunction(hook):
        raise ConfigError(f"{name} is an async function", hint=f"write {form}, without async")
    try:
        parameters = signature(hook)
    except ValueError:  # built-in functions may have none
        return
    try:
        parameters.bind(None)
    except TypeError as error:
        raise ConfigError(f"{name}{parameters} cannot be called: {error}", hint=f"write {form}") from None


def _code(member: Any) -> CodeType | None:
    function = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
    return getattr(unwrap(function), "__code__", None)


def _names(code: CodeType | None) -> Iterator[str]:
    """Yield the names that a function uses, with those of functions inside it."""
    if code is None:
        return
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _meant(name: str) -> str | None:
    """Return the hook of which a name is a slip of the pen: all its words begin alike."""
    for hook in (*_OF_ONE, *_OTHERS):
        if name.replace("_", "").lower() == hook.replace("_", ""):
            return hook
        begins = [[word[:1] for word in each.split("_")] for each in (name, hook)]
        if begins[0] == begins[1] and SequenceMatcher(None, name, hook).ratio() >= 0.8:
            return hook
    return None
