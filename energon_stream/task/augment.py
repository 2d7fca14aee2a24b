"""A task encoder that wraps another task encoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Generic

from energon_stream.decode import FileStoreDecoder
from energon_stream.errors import ConfigError
from energon_stream.task.cooking import Cooker
from energon_stream.task.encoder import T_batch, T_encoded_sample, T_raw_batch, T_sample, TaskEncoder
from energon_stream.task.packers import LengthPacker

_BUILDERS = (
    "build_train_datasets",
    "build_val_datasets",
    "build_packing_groups",
    "build_cook_crude_sample",
    "build_encode_sample",
    "build_batch",
)
_HOOKS = (
    *("cook_crude_sample", "encode_sample", "preencode_sample", "postencode_sample"),
    *("select_samples_to_pack", "select_next_pack", "pack_selected_samples"),
    *("batch_group_criterion", "batch", "encode_batch"),
)


class AugmentTaskEncoder(
    TaskEncoder[T_sample, T_encoded_sample, T_raw_batch, T_batch],
    Generic[T_sample, T_encoded_sample, T_raw_batch, T_batch],
):
    """Wraps another encoder. Derive, and override single hooks; ``super()`` calls the inner encoder's.

    Args:
        task_encoder: The inner encoder.

    Raises:
        ConfigError: The inner encoder composes its pipeline itself, so its hooks cannot be replaced.

    Example:
        >>> from energon_stream import AugmentTaskEncoder, DefaultTaskEncoder
        >>> class Louder(AugmentTaskEncoder):
        ...     def encode_sample(self, sample):
        ...         return super().encode_sample(sample).upper()
        >>> Louder(DefaultTaskEncoder()).encode_sample("quiet")
        'QUIET'
    """

    _has_library_hooks = True

    def __init__(self, task_encoder: TaskEncoder[T_sample, T_encoded_sample, T_raw_batch, T_batch]) -> None:
        own = [name for name in _BUILDERS if task_encoder._hook_overridden(name)]
        if own:
            raise ConfigError(
                f"{type(task_encoder).__qualname__} overrides {', '.join(own)} and cannot be augmented",
                hint=f"derive from {type(task_encoder).__qualname__} instead",
            )
        self._task_encoder = task_encoder

    @property
    def __default_failure_tolerance__(self) -> int:  # type: ignore[override]
        return self._task_encoder.__default_failure_tolerance__

    @property
    def decoder(self) -> FileStoreDecoder | None:  # type: ignore[override]
        return self._task_encoder.decoder

    @property
    def packer(self) -> LengthPacker | None:  # type: ignore[override]
        return self._task_encoder.packer

    @property
    def cookers(self) -> Sequence[Cooker[Any]]:  # type: ignore[override]
        return self._task_encoder.cookers

    def _hook_function(self, name: str) -> Callable[..., Any]:
        """Return the derived class's function, else the inner encoder's (with its marks)."""
        is_own = super()._hook_overridden(name)
        return super()._hook_function(name) if is_own else self._task_encoder._hook_function(name)

    def _hook_overridden(self, name: str) -> bool:
        return super()._hook_overridden(name) or self._task_encoder._hook_overridden(name)

    def _hook_does_nothing(self, hook: str) -> bool:
        return not super()._hook_overridden(hook) and self._task_encoder._hook_does_nothing(hook)


def _of_inner(name: str) -> Callable[..., Any]:
    """Return a method that calls the inner encoder's hook of a name."""

    @wraps(getattr(TaskEncoder, name))
    def call(self: AugmentTaskEncoder[Any, Any, Any, Any], /, *args: Any, **options: Any) -> Any:
        return getattr(self._task_encoder, name)(*args, **options)

    return call


for _name in _HOOKS:
    setattr(AugmentTaskEncoder, _name, _of_inner(_name))
