"""Methods of task encoders that measure samples, for weights that are shares of a size."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from energon_stream.errors import ConfigError
from energon_stream.pipeline.measured_blend import MeasuredBlendDataset
from energon_stream.pipeline.mixing import BlendDataset

F = TypeVar("F", bound=Callable[..., Any])
SAMPLES = "samples"


def sample_size_metric(unit: str) -> Callable[[F], F]:
    """Mark a method of a task encoder that returns the size of a sample, a number from 0 on.

    It gets the sample as it is read or cooked, before ``encode_sample``. ``blend_weight_unit: UNIT`` of a
    metadataset, or ``weight_unit=``, then makes weights shares of that size.

    Raises:
        ConfigError: The name is empty, or ``"samples"``.

    Example:
        >>> from energon_stream import DefaultTaskEncoder, get_train_dataset, sample_size_metric
        >>> class Counted(DefaultTaskEncoder):
        ...     @sample_size_metric("characters")
        ...     def characters(self, sample):
        ...         return len(getattr(sample, "caption", None) or sample.text)
        >>> options = {"weight_unit": "characters", "task_encoder": Counted()}
        >>> type(get_train_dataset("mix.yaml", batch_size=None, **options)).__name__
        'MeasuredBlendDataset'
    """
    if not isinstance(unit, str) or unit in ("", SAMPLES):
        raise ConfigError(
            f"{unit!r:.80} is no unit of a size", hint='name it, as @sample_size_metric("tokens")'
        )

    def mark(function: F) -> F:
        function.__sample_size_unit__ = unit  # type: ignore[attr-defined] # of a function of the user's
        return function

    return mark


def find_metric(encoder: Any, unit: str) -> Callable[[Any], float] | None:
    """Return the method that measures in a unit; None if there is none. Raises ConfigError for two."""
    kind = type(encoder)
    found = [
        name for name in dir(kind) if getattr(getattr(kind, name, None), "__sample_size_unit__", "") == unit
    ]
    if len(found) > 1:
        where, hint = kind.__qualname__, "leave the mark on one of them"
        raise ConfigError(f"{' and '.join(found)} both measure {unit!r}", where=where, hint=hint)
    return getattr(encoder, found[0]) if found else None


def blend_by(encoder: Any, unit: str) -> Callable[..., BlendDataset[Any]]:
    """Return what blends pairs of dataset and weight by a unit. Raises ConfigError if nothing measures it."""
    if unit == SAMPLES:
        return BlendDataset
    if (metric := find_metric(encoder, unit)) is None:
        raise ConfigError(
            f"{type(encoder).__qualname__} does not measure {unit!r}",
            hint=f'mark a method with @sample_size_metric("{unit}")',
        )
    alpha, epsilon = encoder.blend_sample_size_alpha, encoder.blend_sample_size_epsilon
    return partial(MeasuredBlendDataset, size_fn=metric, unit=unit, alpha=alpha, epsilon=epsilon)
