"""Dataset classes under Megatron-Energon's names, to derive classes from.

A ``dataset.yaml`` may name a derived class. The keys of the file are its arguments. Its attributes
(``__sample_type__``, ``field_map``, ``sample_loader``, ``part_filter``, ``_decoder``) are used as if the file
had named them. Of its methods, ``sample_filter`` and ``load_sample`` are called, where it overrides them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from energon_stream.compat.epath import EPath
from energon_stream.errors import ConfigError
from energon_stream.index.jsonl import prepare_jsonl
from energon_stream.index.metadata import SPLIT_CONFIG
from energon_stream.index.prepare import prepare_dataset
from energon_stream.read.decode import FileStoreDecoder, SampleDecoder
from energon_stream.recipe.sample_types import DATASET_CLASSES
from energon_stream.samples import CrudeSample, Sample

if TYPE_CHECKING:
    from energon_stream.index.media import MediaFilter

__all__ = [
    "BaseCoreDatasetFactory",
    "BaseWebdatasetFactory",
    "CrudeJsonlDatasetFactory",
    "CrudeWebdataset",
    "DefaultCrudeJsonlDatasetFactory",
    "DefaultDecoderWebdatasetFactory",
    "DefaultGenericWebdatasetFactory",
    "StandardWebdatasetFactory",
]

T_sample = TypeVar("T_sample", covariant=True)
_DECODER = SampleDecoder()
ProgressFn = Callable[[Iterator[Any], int], Iterator[Any]]


class BaseCoreDatasetFactory(Generic[T_sample]):
    """Base of all dataset classes.

    Example:
        >>> issubclass(CrudeWebdataset, BaseCoreDatasetFactory)
        True
    """

    __sample_type__: ClassVar[Any] = None
    """Type of the samples; derived classes set it."""


class BaseWebdatasetFactory(BaseCoreDatasetFactory[T_sample]):
    """A folder of tars.

    Args:
        path: The folder.
        part_filter: Parts that are used: names, or a function of a name; None for all.
        **options: Other options of ``dataset.yaml``: ``split_config``, ``max_samples_per_sequence`` and so
            on.

    Example:
        >>> ratio = [("train", 0.8), ("val", 0.2)]
        >>> sorted(BaseWebdatasetFactory.prepare_dataset("tars", ["*.tar"], split_parts_ratio=ratio))
        ['jpg', 'txt']
    """

    def __init__(self, path: str | os.PathLike[str], *, part_filter: Any = None, **options: Any) -> None:
        self.path = EPath(path)
        self.part_filter = part_filter
        self.options = options
        self.build_sample: Callable[..., Any] | None = None

    def sample_filter(self, key: str) -> bool:
        """Return False to leave a sample out; ``key`` has its shard. Derived classes may override this."""
        return True

    def load_sample(self, sample: dict[str, Any]) -> Any:
        """Make a sample of a dict with ``__key__``, ``__shard__``, ``__restore_key__``, ``__sources__`` and
        the bytes of all parts. Derived classes may override this, and call it.

        Raises:
            ConfigError: No dataset of this class is being read.
        """
        if self.build_sample is None:
            raise ConfigError(
                "load_sample works while a dataset is read", hint="call it from an override of load_sample"
            )
        parts = {name: data for name, data in sample.items() if not name.startswith("__")}
        source, restore_key = sample["__sources__"][0], sample["__restore_key__"]
        key = sample["__key__"]
        return self.build_sample(key, parts, restore_key=restore_key, subflavors=None, source=source)

    @classmethod
    def prepare_dataset(
        cls,
        parent_path: str | os.PathLike[str],
        paths: Sequence[str],
        *,
        split_parts_ratio: Sequence[tuple[str, float]] | None = None,
        split_parts_patterns: Sequence[tuple[str, str]] | None = None,
        split_config: str = SPLIT_CONFIG,
        shuffle_seed: int | None = 42,
        progress_fn: ProgressFn | None = None,
        workers: int = 32,
        tar_index_only: bool = False,
        media_filter: MediaFilter | None = None,
        fix_duplicates: bool = False,
        index_sqlite_tmp_path: str | os.PathLike[str] | None = None,
    ) -> set[str]:
        """Index a folder of tars, and replace an earlier index. Writes no ``dataset.yaml``.

        Args:
            parent_path: The folder, local or remote.
            paths: Names, globs or brace patterns of the tars, relative to the folder.
            split_parts_ratio: Pairs of a split part and its share.
            split_parts_patterns: Pairs of a split part and a pattern of its tars.
            split_config: Must be the default.
            shuffle_seed: Seed for shuffling the tars before they are split; None keeps their order.
            progress_fn: Wraps an iterator over the tars; it gets the iterator and the number of tars.
            workers: Tars that are read at the same time.
            tar_index_only: Whether only the ``.tar.idx`` files are written.
            media_filter: Parts that are images whose size is indexed.
            fix_duplicates: Must be False.
            index_sqlite_tmp_path: Must be None; the system's temporary folder is used.

        Returns:
            Names of all parts in the dataset.

        Raises:
            ConfigError: An option cannot be honoured.
            EnergonStreamError: What ``energon_stream.index.prepare.prepare_dataset`` raises.
        """
        if split_config != SPLIT_CONFIG or fix_duplicates or index_sqlite_tmp_path is not None:
            raise ConfigError(
                "split_config, fix_duplicates and index_sqlite_tmp_path are not supported",
                hint=f"leave them out; the split is written to {SPLIT_CONFIG}",
            )
        report = prepare_dataset(
            os.fspath(parent_path),
            shards=paths,
            split_ratio=None if split_parts_ratio is None else dict(split_parts_ratio),
            split_patterns=[f"{name}:{pattern}" for name, pattern in split_parts_patterns or ()] or None,
            shuffle_tars=shuffle_seed is not None,
            shuffle_seed=shuffle_seed or 0,
            tar_index_only=tar_index_only,
            media_filter=media_filter,
            workers=workers,
            progress=None if progress_fn is None else _Progress(progress_fn),
            force=True,
        )
        return set(report.parts)


class _Progress:
    """Advances a wrapped iterator as work gets done."""

    def __init__(self, wrap: ProgressFn) -> None:
        self._wrap = wrap
        self._steps: Iterator[Any] | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._steps is None:
            self._steps = iter(self._wrap(iter(range(total)), total))
        next(self._steps, None)
        if done == total:
            next(self._steps, None)  # a progress bar ends when its iterator does


class DefaultGenericWebdatasetFactory(BaseWebdatasetFactory[T_sample]):
    """A folder of tars whose samples are made by a field map or a sample loader.

    Args:
        path: The folder.
        subflavors: Put on each sample.
        field_map: Part for each field.
        sample_loader: Makes the fields from a dict of parts: a function, or ``file.py:function`` in
            ``.nv-meta``.
        part_filter: Parts that are used: names, a function, or ``file.py:function``.
        **kwargs: As for :class:`BaseWebdatasetFactory`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        subflavors: Mapping[str, Any] | None = None,
        field_map: Mapping[str, str] | None = None,
        sample_loader: str | Callable[[dict[str, Any]], Mapping[str, Any]] | None = None,
        part_filter: str | Sequence[str] | Callable[[str], bool] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(path, part_filter=part_filter, **kwargs)
        self.subflavors = subflavors
        self.field_map = field_map
        self.sample_loader = sample_loader


class DefaultDecoderWebdatasetFactory(DefaultGenericWebdatasetFactory[T_sample]):
    """A folder of tars with decoded parts. Derived classes may set ``_decoder``.

    Args:
        path: The folder.
        decoder: Decodes parts; None leaves them as bytes.
        **kwargs: As for :class:`DefaultGenericWebdatasetFactory`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        decoder: FileStoreDecoder | None = _DECODER,
        **kwargs: Any,
    ) -> None:
        super().__init__(path, **kwargs)
        self._decoder: Any = decoder


class StandardWebdatasetFactory(DefaultDecoderWebdatasetFactory[T_sample]):
    """A folder of tars with samples of any type.

    Args:
        path: The folder.
        sample_type: The type.
        **kwargs: As for :class:`DefaultDecoderWebdatasetFactory`.
    """

    def __init__(self, path: str | os.PathLike[str], *, sample_type: type[Any], **kwargs: Any) -> None:
        super().__init__(path, **kwargs)
        self.__sample_type__ = sample_type  # type: ignore[misc] # of this object alone


class CrudeWebdataset(DefaultDecoderWebdatasetFactory[CrudeSample]):
    """A folder of tars with crude samples, for cookers."""

    __sample_type__ = CrudeSample


class CrudeJsonlDatasetFactory(BaseCoreDatasetFactory[CrudeSample]):
    """A file of JSON lines.

    Args:
        path: The file.
        subflavors: Put on each sample.
    """

    __sample_type__ = CrudeSample

    def __init__(self, path: str | os.PathLike[str], *, subflavors: Mapping[str, Any] | None = None) -> None:
        self.path = EPath(path)
        self.subflavors = subflavors

    @classmethod
    def prepare_dataset(cls, path: str | os.PathLike[str]) -> int:
        """Write the index beside the file, and return the number of samples."""
        return prepare_jsonl(os.fspath(path))


class DefaultCrudeJsonlDatasetFactory(CrudeJsonlDatasetFactory):
    """A file of JSON lines; the same as :class:`CrudeJsonlDatasetFactory`."""


_TYPED = {
    name: type(
        name,
        (DefaultDecoderWebdatasetFactory,),
        {
            "__sample_type__": sample_type,
            "__module__": __name__,
            "__doc__": f"A folder of tars with samples of the type ``{sample_type.__name__}``.",
        },
    )
    for name, sample_type in DATASET_CLASSES.items()
    if sample_type is not None and issubclass(sample_type, Sample)
}
# The older dataset classes, one for each sample type: CaptioningWebdataset and so on.
globals().update(_TYPED)
__all__ += _TYPED
