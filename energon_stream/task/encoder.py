"""Task encoders: the hooks that turn samples into batches."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic

from energon_stream.active_call import active_config
from energon_stream.decode import FileStoreDecoder, SampleDecoder
from energon_stream.errors import ConfigError
from energon_stream.media import CachePool, active_pool
from energon_stream.pipeline.failures import DEFAULT_TOLERANCE
from energon_stream.task.build import PipelineBuilder
from energon_stream.task.call_rng import RngOfCall
from energon_stream.task.cooking import Cooker, check_parameters, parameter_problem
from energon_stream.task.field_mapping import batch_samples, convert
from energon_stream.task.stateless import stateless
from energon_stream.worker import WorkerConfig

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from energon_stream.pipeline.pack_members import PackedSamplesOutput
    from energon_stream.samples import CrudeSample
    from energon_stream.task.packers import LengthPacker

    # The defaults, which Python has from 3.13 on, give ``DefaultTaskEncoder(batch_type=B)`` a type.
    T_sample = TypeVar("T_sample", default=Any)
    T_encoded_sample = TypeVar("T_encoded_sample", default=Any)
    T_raw_batch = TypeVar("T_raw_batch", default=Any)
    T_batch = TypeVar("T_batch", default=Any)
else:
    from typing import TypeVar

    T_sample, T_encoded_sample = TypeVar("T_sample"), TypeVar("T_encoded_sample")
    T_raw_batch, T_batch = TypeVar("T_raw_batch"), TypeVar("T_batch")


_NO_NAMES: frozenset[str] = frozenset()


class TaskEncoder(PipelineBuilder, ABC, Generic[T_sample, T_encoded_sample, T_raw_batch, T_batch]):
    """Defines how samples become batches. Derive, and override the hooks that your task needs.

    The steps for a sample are: cook (crude samples only), encode, pack (with ``packing_buffer_size``), batch,
    encode the batch. Mark hooks with :func:`stateless`, so that samples can be made again from their keys.
    Any hook may raise ``SkipSample`` to drop its argument.

    Attributes:
        decoder: Decodes the parts; None leaves them as bytes.
        cookers: For datasets of crude samples. Without cookers, crude samples reach ``encode_sample`` as they
            are.
        packer: Selects packs by length; None if the encoder has a selector of its own.
        rng: Random generators ``torch``, ``numpy`` and ``random``, which leave the global ones alone. Each
            call of a hook has its own, with a seed from the stream's seed and the call's counter. So they
            draw the same after a restore, and with other ranks and workers of the same streams.
        blend_sample_size_alpha: How far :class:`MeasuredBlendDataset` prefers what is behind its share.
        blend_sample_size_epsilon: How random it is.

    Example:
        >>> from energon_stream import TaskEncoder, WorkerConfig, get_val_dataset, stateless
        >>> class Lengths(TaskEncoder):
        ...     @stateless
        ...     def encode_sample(self, sample):
        ...         return len(sample.text)
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> dataset = get_val_dataset("texts", worker_config=config, batch_size=4, task_encoder=Lengths())
        >>> len(next(iter(dataset)))
        4
    """

    _has_library_hooks = True
    __default_failure_tolerance__: int = DEFAULT_TOLERANCE

    decoder: FileStoreDecoder | None = SampleDecoder()
    cookers: Sequence[Cooker[Any]] = ()
    packer: LengthPacker | None = None
    rng: RngOfCall = RngOfCall()
    blend_sample_size_alpha: float = 1.0
    blend_sample_size_epsilon: float = 1.0

    @stateless
    def cook_crude_sample(self, sample: CrudeSample, cooker: Cooker[Any], aux: Mapping[str, Any]) -> Any:
        """Call the cooker of a crude sample.

        ``aux`` are its keyword arguments: file stores by name, and ``primary`` and ``cache`` if it asks for
        them. Raises ConfigError if it has other parameters.
        """
        cook, names = cooker.cook, frozenset(aux) if aux else _NO_NAMES
        if parameter_problem(cook, names) is not None:
            sources = sample.get("__sources__") or ()
            check_parameters(cook, names, sources[0].dataset_path if sources else "")
        return cook(sample, **aux)

    @stateless
    def encode_sample(self, sample: T_sample) -> T_encoded_sample | Iterator[T_encoded_sample]:
        """Encode one sample; a generator makes several. Cannot be combined with the next two hooks."""
        return sample  # type: ignore[return-value]

    @stateless
    def preencode_sample(self, sample: T_sample) -> Any:
        """Encode one sample before packs are selected; a generator makes several."""
        return sample

    @stateless
    def postencode_sample(self, sample: Any) -> Any:
        """Encode one sample after packs are selected; may be a generator only without packing."""
        return sample

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]] | PackedSamplesOutput[Any]:
        """Deal the packing buffer into groups; each sample must be in one of them, or is dropped.

        ``PackedSamplesOutput`` can push samples back to the next buffer, and ``PartialSample`` cuts one.
        """
        if self.packer is None:
            raise NotImplementedError("override select_samples_to_pack, or set packer")
        return self.packer.select_samples_to_pack(samples)

    def select_next_pack(self, samples: Iterator[Any]) -> list[list[Any]] | PackedSamplesOutput[Any]:
        """Take the samples of one pack, for ``packing_buffer_size="stream"``.

        The iterator begins with what was pushed back, and ends with the pass. What it gave must be in the
        pack or pushed back, or is dropped.
        """
        if self.packer is None:
            raise NotImplementedError("override select_next_pack, or set packer")
        return self.packer.select_next_pack(samples)

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        """Make one sample of a group; a generator makes several. The pipeline fills in the restore key."""
        raise NotImplementedError("override pack_selected_samples")

    def batch_group_criterion(self, sample: Any) -> tuple[Hashable, int | None]:
        """Return the key of a sample; an override makes batches of samples with equal keys.

        Returns:
            The key, and the batch size for it; None for ``batch_size``.
        """
        return None, None

    @stateless
    def batch(self, samples: list[Any]) -> T_raw_batch:
        """Make a batch. Tensors are zero-padded and stacked, other fields become lists."""
        return self._batch(samples, None)  # type: ignore[no-any-return]

    @stateless
    def encode_batch(self, batch: T_raw_batch) -> T_batch | Iterator[T_batch]:
        """Encode a batch; a generator makes several."""
        return batch  # type: ignore[return-value]

    def _is_overridden(
        self, bound_method: Callable[..., Any], bases: Sequence[type[Any]] | None = None
    ) -> bool:
        """Return True if a hook is not that of ``TaskEncoder``, or of other classes; for own pipelines."""
        own = getattr(bound_method, "__func__", bound_method)
        return all(getattr(base, own.__name__, None) is not own for base in bases or (TaskEncoder,))

    def _batch(
        self,
        samples: list[Any],
        result_type: type | None,
        actions: Mapping[str, Callable[[list[Any]], Any]] | None = None,
    ) -> Any:
        """Batch samples field by field to a type; for use in ``batch``. See :func:`batch_samples`."""
        return batch_samples(samples, result_type, actions)

    @property
    def cache(self) -> CachePool:
        """Cache pool of the running loader; without one, a pool that keeps nothing."""
        return active_pool()

    @property
    def current_batch_index(self) -> int:
        """Number of the current batch among the batches of this rank; only while a hook runs."""
        config = _active_config("current_batch_index")
        return config.stream_batch_index * len(config.streams) + config.rank_worker_id()

    @property
    def current_sample_index(self) -> int:
        """Number of the current call of this hook among the calls on this rank; only while a hook runs."""
        config = _active_config("current_sample_index")
        return config.stream_sample_index * len(config.streams) + config.rank_worker_id()


def _active_config(name: str) -> WorkerConfig:
    config: WorkerConfig | None = active_config()
    if config is None:
        raise ConfigError(
            f"{name} is known only while a hook runs", hint="read it inside a hook that a dataset calls"
        )
    return config


class DefaultTaskEncoder(
    TaskEncoder[T_sample, T_encoded_sample, T_raw_batch, T_batch],
    Generic[T_sample, T_encoded_sample, T_raw_batch, T_batch],
):
    """Maps samples and batches to the given types by the names of their fields.

    Types are dataclasses, NamedTuples or dicts. Fields that a type does not have are dropped.

    Args:
        encoded_sample_type: Result of ``encode_sample``; None keeps the samples.
        raw_batch_type: Result of ``batch``. Default: ``batch_type``, else the type of the samples.
        batch_type: Result of ``encode_batch``, unless it is overridden; None keeps the raw batches.

    Example:
        >>> from energon_stream import DefaultTaskEncoder, WorkerConfig, get_val_dataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> encoder = DefaultTaskEncoder(batch_type=dict)
        >>> dataset = get_val_dataset("texts", worker_config=config, batch_size=2, task_encoder=encoder)
        >>> next(iter(dataset))["text"]
        ['text ...', 'text ...']
    """

    _has_library_hooks = True
    # Class attributes, because an override of __init__ may not call this one.
    _encoded_sample_type: type[Any] | None = None
    _raw_batch_type: type[Any] | None = None
    _batch_type: type[Any] | None = None

    def __init__(
        self,
        *,
        encoded_sample_type: type[T_encoded_sample] | None = None,
        raw_batch_type: type[T_raw_batch] | None = None,
        batch_type: type[T_batch] | None = None,
    ) -> None:
        self._encoded_sample_type = encoded_sample_type
        self._raw_batch_type = raw_batch_type
        self._batch_type = batch_type

    @stateless
    def encode_sample(self, sample: T_sample) -> T_encoded_sample | Iterator[T_encoded_sample]:
        """Map the sample to ``encoded_sample_type``."""
        return convert(sample, self._encoded_sample_type)  # type: ignore[no-any-return]

    @stateless
    def batch(self, samples: list[Any]) -> T_raw_batch:
        """Make a batch of ``raw_batch_type``."""
        return self._batch(samples, self._raw_batch_type or self._batch_type)  # type: ignore[no-any-return]

    @stateless
    def encode_batch(self, batch: T_raw_batch) -> T_batch | Iterator[T_batch]:
        """Map the batch to ``batch_type``."""
        return convert(batch, self._batch_type)  # type: ignore[no-any-return]

    def _hook_does_nothing(self, hook: str) -> bool:
        kept = {"encode_sample": self._encoded_sample_type, "encode_batch": self._batch_type}
        return not self._hook_overridden(hook) and kept.get(hook) is None
