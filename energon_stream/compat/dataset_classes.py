"""Dataset classes under Megatron-Energon's names, to derive classes from.

A ``dataset.yaml`` may name a derived class. The keys of the file are its arguments. Its attributes
(``__sample_type__``, ``field_map``, ``sample_loader``, ``part_filter``, ``_decoder``) are used as if the file
had named them. Of its methods, ``sample_filter`` and ``load_sample`` are called, where it overrides them.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from energon_stream.arguments import SPLIT_CONFIG
from energon_stream.compat.building import OpenedObject, open_joined, open_object
from energon_stream.compat.epath import EPath
from energon_stream.compat.sharding import Sharder
from energon_stream.config.mixture import LeafDataset
from energon_stream.config.sample_types import DATASET_CLASSES
from energon_stream.decode import FileStoreDecoder, SampleDecoder
from energon_stream.errors import ConfigError
from energon_stream.media import FileStore
from energon_stream.prepare.media_headers import MediaFilter
from energon_stream.prepare.media_tables import prepare_media
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.prepare.prepare_files import prepare_file
from energon_stream.samples import CrudeSample, Sample
from energon_stream.tar.format import split_name
from energon_stream.worker import WorkerConfig

__all__ = [
    "BaseCoreDatasetFactory",
    "BaseWebdatasetFactory",
    "CrudeJsonlDatasetFactory",
    "CrudeWebdataset",
    "DefaultCrudeJsonlDatasetFactory",
    "DefaultDecoderWebdatasetFactory",
    "DefaultGenericWebdatasetFactory",
    "JoinedWebdatasetFactory",
    "StandardWebdatasetFactory",
]

T_sample = TypeVar("T_sample", covariant=True)
_DECODER = SampleDecoder()
ProgressFn = Callable[[Iterator[Any], int], Iterator[Any]]


class BaseCoreDatasetFactory(Sharder, Generic[T_sample]):
    """Base of all dataset classes."""

    __sample_type__: ClassVar[Any] = None  # derived classes set it
    paths: list[EPath]  # of the dataset, or of the joined datasets

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        training: bool = True,
        worker_config: WorkerConfig | None = None,
        subflavors: Mapping[str, Any] | None = None,
        part_filter: Any = None,
        **options: Any,
    ) -> None:
        self.path: EPath = EPath(path)
        self.paths: list[EPath] = [self.path]
        self.training = training
        self.worker_config = worker_config
        self.subflavors = subflavors
        self.part_filter = part_filter
        self.options = options

    def build(self, worker_rotation_offset: int = 0) -> LeafDataset:
        """Open the dataset: one pass over its samples, shuffled in training. The argument has no effect."""
        return self._open().dataset

    def _open(self) -> OpenedObject:
        return open_object(self)

    def __len__(self) -> int:
        """Return the samples of one pass, of all ranks together. The dataset is opened for that."""
        return self._open().plan.num_samples

    def as_file_store(self) -> FileStore[Any]:
        """Open the dataset as a file store, in which cookers look up parts by name."""
        return self.build().as_file_store()

    def config(self) -> dict[str, Any]:
        """Describe the dataset in plain values."""
        return {
            "type": type(self).__name__,
            "training": self.training,
            "_path": str(self.path),
            "subflavors": dict(self.subflavors or {}),
            **{name: value if value is None else str(value) for name, value in self.options.items()},
        }


class BaseWebdatasetFactory(BaseCoreDatasetFactory[T_sample]):
    """A folder of tars.

    Args:
        path: The folder.
        training: Whether samples are shuffled, and the split part is ``train`` by default.
        worker_config: Ranks, workers and seed. Default: the ranks of ``torch.distributed``, with 4 workers.
        subflavors: Put on each sample.
        part_filter: Parts that are used: names, or a function of a name; None for all.
        **options: Other options: ``split_part``, ``split_config``, ``subset``, ``filter_name``,
            ``max_samples_per_sequence``, ``shuffle_over_epochs``, ``parallel_shard_iters``.
    """

    build_sample: Callable[..., Any] | None = None  # makes a sample of its parts, while the dataset is read

    def sample_filter(self, key: str) -> bool:
        """Return False to leave a sample out; ``key`` has its shard. Derived classes may override this."""
        return True

    def load_sample(self, raw_data: dict[str, Any]) -> Any:
        """Make a sample of a dict with ``__key__``, ``__shard__``, ``__restore_key__``, ``__sources__`` and
        the bytes of all parts. Derived classes may override this, and call it.

        Raises ConfigError if no dataset of this class is being read.
        """
        if self.build_sample is None:
            raise ConfigError(
                "load_sample works while a dataset is read", hint="call it from an override of load_sample"
            )
        parts = {name: data for name, data in raw_data.items() if not name.startswith("__")}
        source, restore_key = raw_data["__sources__"][0], raw_data["__restore_key__"]
        key = raw_data["__key__"]
        return self.build_sample(key, parts, restore_key=restore_key, subflavors=None, source=source)

    @staticmethod
    def iter_dataset_content(
        path: str | os.PathLike[str], extract_keys: Container[str] = ()
    ) -> Iterator[dict[str, bytes | None]]:
        """Yield a dict of each sample's parts in a tar: the bytes of ``extract_keys``, None for others."""
        with EPath(path).open("rb") as file, tarfile.open(fileobj=file, mode="r|") as tar:
            parts: dict[str, bytes | None] = {}
            last = None
            for member in tar:
                split = split_name(member.name) if member.isfile() else None
                if split is None:
                    continue
                key, part = split
                if parts and key != last:
                    yield parts
                    parts = {}
                last = key
                stream = tar.extractfile(member) if part in extract_keys else None
                parts[part] = None if stream is None else stream.read()
            if parts:
                yield parts

    @classmethod
    def add_media_metadata(
        cls,
        parent_path: str | os.PathLike[str],
        *,
        media_filter: MediaFilter,
        workers: int = 32,
        progress_fn: ProgressFn | None = None,
        index_sqlite_tmp_path: str | os.PathLike[str] | None = None,
    ) -> int:
        """Add the metadata of media to the index of a prepared dataset, and return their number.

        ``progress_fn`` wraps an iterator over the media files when all are read.
        """
        report = prepare_media(
            os.fspath(parent_path), media_filter, workers=workers, tmp_path=index_sqlite_tmp_path
        )
        if progress_fn is not None:
            for _ in progress_fn(iter(range(report.stored)), report.stored):
                pass
        return report.stored

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
        """Index a folder of tars, replace an earlier index, and return the names of all parts.

        Writes no ``dataset.yaml``, and raises what ``energon_stream.prepare.prepare.prepare_dataset`` raises.
        ``paths`` are names, globs or brace patterns of tars, relative to the folder. A ``shuffle_seed`` of
        None keeps their order. ``progress_fn`` gets an iterator over the tars and their number, and wraps it.
        With ``fix_duplicates``, the members of all tars are renamed if tars share sample keys: ``x.jpg`` of
        ``a.tar`` becomes ``a.tar/x.jpg``.
        """
        report = prepare_dataset(
            os.fspath(parent_path),
            shards=paths,
            split_ratio=None if split_parts_ratio is None else dict(split_parts_ratio),
            split_patterns=[f"{name}:{pattern}" for name, pattern in split_parts_patterns or ()] or None,
            split_config=split_config,
            shuffle_tars=shuffle_seed is not None,
            shuffle_seed=shuffle_seed or 0,
            tar_index_only=tar_index_only,
            fix_duplicates=fix_duplicates,
            tmp_path=index_sqlite_tmp_path,
            media_filter=media_filter,
            workers=workers,
            progress=None if progress_fn is None else _steps(progress_fn),
            force=True,
        )
        return set(report.parts)


def _steps(wrap: ProgressFn) -> Callable[[int, int], None]:
    """Return a function that advances a wrapped iterator as work gets done."""
    steps: list[Iterator[Any]] = []

    def advance(done: int, total: int) -> None:
        if not steps:
            steps.append(iter(wrap(iter(range(total)), total)))
        next(steps[0], None)
        if done == total:
            next(steps[0], None)  # a progress bar ends when its iterator does

    return advance


class DefaultGenericWebdatasetFactory(BaseWebdatasetFactory[T_sample]):
    """A folder of tars whose samples are made by a field map or a sample loader, as of ``dataset.yaml``.

    ``sample_loader`` and ``part_filter`` are functions, or ``file.py:function`` in ``.nv-meta``.
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
        super().__init__(path, subflavors=subflavors, part_filter=part_filter, **kwargs)
        self.field_map = field_map
        self.sample_loader = sample_loader


class DefaultDecoderWebdatasetFactory(DefaultGenericWebdatasetFactory[T_sample]):
    """A folder of tars whose parts ``decoder`` decodes; None leaves bytes. A class may set ``_decoder``."""

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
    """A folder of tars with samples of any type."""

    def __init__(self, path: str | os.PathLike[str], *, sample_type: type[Any], **kwargs: Any) -> None:
        super().__init__(path, **kwargs)
        self.__sample_type__: type[Any] = sample_type  # type: ignore[misc] # of this object alone


class CrudeWebdataset(DefaultDecoderWebdatasetFactory[CrudeSample]):
    """A folder of tars with crude samples, for cookers."""

    __sample_type__ = CrudeSample


class JoinedWebdatasetFactory(BaseCoreDatasetFactory[T_sample]):
    """A join of folders of tars by sample keys, through an index that ``prepare_metadataset`` wrote.

    Args:
        inner_datasets: Objects of dataset classes, by name where the joiner takes keywords.
        join_index: The index.
        joiner: A class with ``from_joined``, or a function that makes one sample of a row.
        **options: As for :class:`BaseWebdatasetFactory`.
    """

    def __init__(
        self,
        inner_datasets: Sequence[BaseWebdatasetFactory[Any]] | Mapping[str, BaseWebdatasetFactory[Any]],
        *,
        join_index: str | os.PathLike[str],
        joiner: type[T_sample] | Callable[..., T_sample],
        **options: Any,
    ) -> None:
        by_name = dict(inner_datasets) if isinstance(inner_datasets, Mapping) else None
        self.inner_datasets: list[BaseWebdatasetFactory[Any]] = [
            *(inner_datasets if by_name is None else by_name.values())
        ]
        self.names: tuple[str, ...] | None = None if by_name is None else tuple(by_name)
        super().__init__(self.inner_datasets[0].path, **options)
        self.paths: list[EPath] = [inner.path for inner in self.inner_datasets]
        self.join_index: EPath = EPath(join_index)
        self.joiner = joiner

    def _open(self) -> OpenedObject:
        return open_joined(self)


class CrudeJsonlDatasetFactory(BaseCoreDatasetFactory[CrudeSample]):
    """A file of JSON lines. It takes the arguments of :class:`BaseWebdatasetFactory`."""

    __sample_type__ = CrudeSample

    @classmethod
    def prepare_dataset(cls, path: str | os.PathLike[str]) -> int:
        """Write the index beside the file, and return the number of samples."""
        return prepare_file(os.fspath(path))

    @staticmethod
    def iter_dataset_content(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
        """Yield each line of a file as the bytes of the part ``json``."""
        with EPath(path).open("rb") as lines:
            for line in lines:
                yield {"json": line}


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
# Energon 8's names of the formats of files, of single ones and of folders.
_TYPED |= {
    name: type(
        name,
        (CrudeJsonlDatasetFactory,),
        {
            "__module__": __name__,
            "__doc__": "A file or folder of a format other than tars, with crude samples.",
        },
    )
    for default in ("", "Default")
    for kind in ("BinIdx", "CrudeJsonlShardList", "Parquet", "ParquetShardList")
    for name in [f"{default}{kind}DatasetFactory"]
}
# The older dataset classes, one for each sample type: CaptioningWebdataset and so on.
globals().update(_TYPED)
__all__ += _TYPED
