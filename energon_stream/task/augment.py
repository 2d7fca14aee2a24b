"""A task encoder that wraps another task encoder."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Generic

from energon_stream.decode import FileStoreDecoder
from energon_stream.errors import ConfigError
from energon_stream.pipeline.pack_members import PackedSamplesOutput
from energon_stream.samples import CrudeSample
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

    def cook_crude_sample(self, sample: CrudeSample, cooker: Cooker[Any], aux: Mapping[str, Any]) -> Any:
        return self._task_encoder.cook_crude_sample(sample, cooker, aux)

    def encode_sample(self, sample: T_sample) -> T_encoded_sample | Iterator[T_encoded_sample]:
        return self._task_encoder.encode_sample(sample)

    def preencode_sample(self, sample: Any) -> Any:
        return self._task_encoder.preencode_sample(sample)

    def postencode_sample(self, sample: Any) -> Any:
        return self._task_encoder.postencode_sample(sample)

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]] | PackedSamplesOutput[Any]:
        return self._task_encoder.select_samples_to_pack(samples)

    def select_next_pack(self, samples: Iterator[Any]) -> list[list[Any]] | PackedSamplesOutput[Any]:
        return self._task_encoder.select_next_pack(samples)

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return self._task_encoder.pack_selected_samples(samples)

    def batch_group_criterion(self, sample: Any) -> tuple[Hashable, int | None]:
        return self._task_encoder.batch_group_criterion(sample)

    def batch(self, samples: list[Any]) -> T_raw_batch:
        return self._task_encoder.batch(samples)

    def encode_batch(self, batch_data: T_raw_batch) -> T_batch | Iterator[T_batch]:
        return self._task_encoder.encode_batch(batch_data)
