"""Checks a task encoder before it gets samples: names that are nearly a hook's, hooks that cannot work."""

from __future__ import annotations

import logging
from difflib import SequenceMatcher
from inspect import iscode, iscoroutinefunction, isfunction, signature, unwrap
from typing import Any

from energon_stream.errors import ConfigError
from energon_stream.task.augment import _BUILDERS, AugmentTaskEncoder
from energon_stream.task.cooking import Cooker
from energon_stream.task.encoder import TaskEncoder

_log = logging.getLogger(__name__)

_OF_ONE = ("encode_sample", "preencode_sample", "postencode_sample", "batch_group_criterion")
_OF_MANY = ("select_samples_to_pack", "select_next_pack", "pack_selected_samples", "batch")
_CALLED = {**dict.fromkeys(_OF_ONE, "sample"), **dict.fromkeys(_OF_MANY, "samples"), "encode_batch": "batch"}
"""Hooks that are called with one argument, and its name."""
_VALUES = ("cookers", "decoder")


def check_encoder(encoder: Any) -> None:
    """Raise ConfigError for what is no task encoder, a misspelt hook, or one that cannot be called.

    Members that other members use are not suspected, and neither are members beside a hook of the right name.
    A name that continues a hook's, such as ``encode_samples``, gets a warning.
    """
    if not isinstance(encoder, TaskEncoder):
        hint = f"pass {encoder.__name__}()" if isinstance(encoder, type) else "derive from TaskEncoder"
        raise ConfigError(f"task_encoder is {encoder!r:.80}", hint=hint)
    if isinstance(encoder, AugmentTaskEncoder):
        check_encoder(encoder._task_encoder)
    kind, decoder, cookers = type(encoder).__qualname__, encoder.decoder, encoder.cookers
    if isinstance(decoder, type) or not (decoder is None or hasattr(decoder, "decode")):
        hint = "set a decoder such as SampleDecoder(image_decode='pil'), or None for bytes"
        raise ConfigError(f"{kind}.decoder is {decoder!r:.80}", hint=hint)
    if not isinstance(cookers, (list, tuple)) or not all(isinstance(each, Cooker) for each in cookers):
        hint = "write a list of Cooker objects: cookers = [Cooker(cook)], or Cooker(cook, has_subflavors={…})"
        raise ConfigError(f"{kind}.cookers is {cookers!r:.80}", hint=hint)
    for name, argument in _CALLED.items():
        hook = getattr(encoder, name)
        is_own = getattr(hook, "__func__", None) is getattr(TaskEncoder, name)
        problem = None if is_own else _problem(hook)
        if problem is not None:
            hint = f"write def {name}(self, {argument})"
            raise ConfigError(f"{kind}.{name} cannot be called with one argument: {problem}", hint=hint)
    bases = [cls for cls in type(encoder).__mro__ if "_has_library_hooks" not in vars(cls)]
    own = {name: value for cls in bases for name, value in vars(cls).items() if not hasattr(object, name)}
    codes = [unwrap(value).__code__ for value in own.values() if isfunction(value)]
    codes += [inner for code in codes for inner in code.co_consts if iscode(inner)]
    used = {name for code in codes for name in code.co_names}
    for name, value in own.items():
        hook = None if name.startswith("_") or name in used or hasattr(TaskEncoder, name) else _meant(name)
        if hook is None or hook in own or isfunction(value) == (hook in _VALUES):
            continue
        what, hint = f"{kind}.{name} is no hook, and nothing calls it", f"did you mean {hook!r}?"
        if not name.startswith(hook):
            raise ConfigError(what, hint=f"{hint} Begin the name with _ if it is a function of your own")
        _log.warning("%s: %s", what, hint)


def _problem(hook: Any) -> str | None:
    try:
        signature(hook).bind(None)
    except TypeError as error:
        return str(error)
    except ValueError:  # built-in functions may have no signature
        return None
    return "it is async" if iscoroutinefunction(hook) else None


def _meant(name: str) -> str | None:
    """Return the hook of which a name is a slip of the pen: all its words begin alike."""
    for hook in (*_CALLED, "cook_crude_sample", *_BUILDERS, *_VALUES):
        near = _begins(name) == _begins(hook) and SequenceMatcher(None, name, hook).ratio() >= 0.8
        if near or name.replace("_", "").lower() == hook.replace("_", ""):
            return hook
    return None


def _begins(name: str) -> list[str]:
    return [word[:1] for word in name.split("_")]
