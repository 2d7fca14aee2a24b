"""From a path to the opened indices of its datasets. No sample is read, and PyTorch is not imported."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from energon_stream.arguments import DATASET_CONFIG, SPLIT_CONFIG
from energon_stream.config.listed_samples import warn_of_unused
from energon_stream.config.metadataset_files import MetadatasetFiles
from energon_stream.config.references import (
    AnyLeafRef,
    JoinRef,
    LeafRef,
    MetadatasetRef,
    MixtureItem,
    Reference,
    inherit,
)
from energon_stream.config.sample_types import DeclaredSamples
from energon_stream.config.subset import Subset
from energon_stream.config.view import View, with_view, without_bad
from energon_stream.errors import ConfigError
from energon_stream.index.dataset import (
    DatasetIndex,
    DatasetMetadata,
    WebDatasetIndex,
    dataset_kind,
    open_webdataset,
    read_metadata,
    select_split_part,
)
from energon_stream.index.file_format import find_format
from energon_stream.index.files_index import FilesIndex, open_file, open_folder
from energon_stream.index.join_index import JoinIndex, JoinMember, open_join_index
from energon_stream.index.plain import find_tars, list_tars, open_plain
from energon_stream.limits import Limits
from energon_stream.printable import strip_credentials
from energon_stream.storage import StoreSpec
from energon_stream.storage.obstore_use import run_forkable
from energon_stream.threads import thread_errors
from energon_stream.urls import is_local

PathOption = str | os.PathLike[str] | Mapping[str, Any]
"""Path or URL of a dataset or metadataset, or a metadataset's parsed content."""

_MetadataKey = tuple[str, str, str]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DatasetLocation:
    """A dataset or metadataset, how to reach it, and which of its samples are used."""

    path: PathOption
    split_part: str  # part of the dataset's split, or split of the metadataset
    files: MetadatasetFiles = field(default_factory=MetadatasetFiles)  # says how to reach the data
    split_config: str = SPLIT_CONFIG  # single datasets only, as the next, ``declared`` and ``view``
    dataset_config: str = DATASET_CONFIG
    subset: Subset = field(default_factory=Subset)  # of a metadataset, share of each dataset
    multiplier: int | None = 1  # ``shuffle_over_epochs_multiplier`` of all datasets
    declared: DeclaredSamples | None = None  # the user's declaration of the samples
    subflavors: Mapping[str, Any] = field(default_factory=dict)  # put on each sample
    view: View | None = None

    @property
    def root(self) -> str | Mapping[str, Any]:
        path: Any = self.path
        if not isinstance(path, (str, os.PathLike, Mapping)) or path == "":
            hint = "name tars by braces (data/{000..099}.tar), or pass their folder; a metadataset mixes datasets"
            raise ConfigError(f"the path is {path!r:.80}", hint=hint)
        return path if isinstance(path, Mapping) else os.fspath(path)

    @property
    def is_metadataset(self) -> bool:
        return isinstance(self.root, Mapping) or dataset_kind(self.root) == "metadataset"

    def read(self, function: Callable[[], T], *, forks: bool) -> T:
        """Call a function that reads metadata of the location.

        If this process may fork workers later (``forks``), a child reads: clients do not survive a fork.
        """
        # A metadataset may name remote datasets; that is not known before it is read.
        local = not self.is_metadataset and is_local(str(self.root))
        with thread_errors(self.root if isinstance(self.root, str) else None):
            return run_forkable(function) if forks and not local else function()

    def items(self) -> list[MixtureItem]:
        """Read the metadataset files, and return the datasets that they name, without touching these.

        Raises ConfigError if an option is only for single datasets, and the errors of the files.
        """
        items = self.files.items(self._reference())
        if self.view is None or not self.is_metadataset:
            return items
        bad = self.view.bad
        return [replace(item, ref=replace(item.ref, view=without_bad(item.ref.view, bad))) for item in items]

    def _reference(self) -> Reference:
        root, files = self.root, self.files
        names = self.split_config, self.dataset_config
        declared = self.declared is not None and not self.declared.typing_only
        has_view = self.view is not None and self.view != View(bad=self.view.bad)
        if self.is_metadataset and (
            names != (SPLIT_CONFIG, DATASET_CONFIG) or self.subset.in_samples or declared or has_view
        ):
            raise ConfigError(
                "split_config, dataset_config, sample_type, views and sample numbers are for single datasets",
                hint="set them in the metadataset, where the dataset is named",
            )
        tree: Reference
        if not isinstance(root, str):
            tree = files.document(root).split(self.split_part)
        elif self.is_metadataset:
            tree = MetadatasetRef(files.spec(root), self.split_part)
        else:
            # The path of a single dataset is not made absolute: it is shown as the user wrote it.
            spec = StoreSpec(
                root, files.storage_options, files.transport, files.through, files.retry_deadline
            )
            tree = LeafRef(spec, self.split_part, *names, declared=self.declared, view=self.view)
        return inherit(tree, self.subflavors, self.subset, self.multiplier)


def open_location(location: DatasetLocation, num_workers: int) -> list[tuple[MixtureItem, DatasetIndex]]:
    """Open all datasets of a location, concurrently."""

    def read() -> list[tuple[MixtureItem, DatasetIndex]]:
        items = location.items()
        files, refs = location.files, [item.ref for item in items]
        indices = open_all(refs, files.limits, skip_bad=files.skip_bad)
        names = [leaf.spec.url for ref in refs for leaf in ref.leaves]
        warn_of_unused([file for ref in refs if ref.view is not None for file in ref.view.bad], names)
        return list(zip(items, indices, strict=True))

    return location.read(read, forks=num_workers > 0)


def open_all(
    refs: Sequence[AnyLeafRef], limits: Limits | None = None, *, skip_bad: bool = False
) -> list[DatasetIndex]:
    """Open datasets and joins, all at the same time.

    ``skip_bad`` leaves out bad tars of datasets that are not prepared.
    """
    how = _Opening(limits or Limits.from_environment(), skip_bad, with_sizes=len(refs) <= 16)
    metadata: dict[_MetadataKey, Future[DatasetMetadata]] = {}
    pool = ThreadPoolExecutor(min(32, len(refs)))  # the fetcher bounds the requests
    try:
        begin = partial(_begin, pool=pool, metadata=metadata, how=how)
        return [finish() for finish in [begin(ref) for ref in refs]]
    finally:
        pool.shutdown(cancel_futures=True)


@dataclass(frozen=True, slots=True)
class _Opening:
    """Options of opening datasets."""

    limits: Limits
    skip_bad: bool  # whether bad tars are left out that are not prepared
    # Of many datasets, the first batches read few: their .tar.idx files cost fewer requests than sizes.
    with_sizes: bool


def _begin(
    ref: AnyLeafRef,
    pool: ThreadPoolExecutor,
    metadata: dict[_MetadataKey, Future[DatasetMetadata]],
    how: _Opening,
) -> Callable[[], DatasetIndex]:
    """Begin to open a dataset; return a function that waits for the result."""
    if ref.view is not None:
        whole, view = _begin(replace(ref, view=None), pool, metadata, how), ref.view
        return pool.submit(lambda: with_view(whole(), view, how.limits)).result
    if isinstance(ref, JoinRef):
        members = [_begin(member.leaf, pool, metadata, how) for member in ref.members]
        # The join waits in the pool for its members. It cannot block them: they were submitted before it.
        return pool.submit(_open_join, ref, members).result
    if (found := find_format(ref.spec.url)) is not None:
        declared = ref.declared is not None and not ref.declared.typing_only and not found.may_be_typed
        _refuse(ref, declared, "sample_type", f"the records of a {found.name.upper()} file are crude")
        given = (ref.split_config, ref.dataset_config) != (SPLIT_CONFIG, DATASET_CONFIG)
        _refuse(ref, given, "split_config or dataset_config", "a file has none")
        return pool.submit(open_file, ref.spec, found, how.limits).result
    if dataset_kind(ref.spec.url) == "tars" or ref.declared is not None:
        return pool.submit(_open_declared, ref, how).result
    key = ref.spec.url, ref.split_config, ref.dataset_config
    if key not in metadata:  # mixtures often name several split parts of one dataset
        metadata[key] = pool.submit(_read_metadata, ref, how.limits, how.with_sizes)
    return lambda: _select(ref, metadata[key].result(), how.limits)


def _read_metadata(ref: LeafRef, limits: Limits, with_sizes: bool = False) -> DatasetMetadata:
    return read_metadata(
        ref.spec,
        split_config=ref.split_config,
        dataset_config=ref.dataset_config,
        with_sizes=with_sizes,
        limits=limits,
    )


def _open_join(ref: JoinRef, members: Sequence[Callable[[], DatasetIndex]]) -> JoinIndex:
    if ref.metadataset is None:
        raise ConfigError(
            "a join needs a metadataset file, because its index lies beside that file",
            where=ref.where,
            hint="write the metadataset to a file, and prepare it with `energon-stream prepare`",
        )
    return open_join_index(ref.metadataset, join_members(ref, [finish() for finish in members]))


def _open_declared(ref: LeafRef, how: _Opening) -> WebDatasetIndex | FilesIndex:
    """Open tars that the path names, or a folder with declared samples, prepared or not."""
    is_folder, limits = dataset_kind(ref.spec.url) != "tars", how.limits
    spec, tars = (ref.spec, list_tars(ref.spec)) if is_folder else find_tars(ref.spec, limits)
    if tars is None:
        return _select(ref, _read_metadata(ref, limits), limits)
    given = (ref.split_config, ref.dataset_config) != (SPLIT_CONFIG, DATASET_CONFIG)
    _refuse(ref, given, "split_config or dataset_config", "the dataset is not prepared")
    return open_plain(spec, tars, split_part=ref.split_part, skip_bad=how.skip_bad)


def _refuse(ref: LeafRef, is_given: bool, what: str, reason: str) -> None:
    if is_given:
        where = strip_credentials(ref.spec.url)
        raise ConfigError(f"{what} is not allowed here: {reason}", where=where, hint="leave it out")


def _select(ref: LeafRef, found: DatasetMetadata, limits: Limits) -> WebDatasetIndex | FilesIndex:
    names = {"split_part": ref.split_part, "split_config": ref.split_config}
    wanted = {name: str((found.dataset_yaml or {}).get(name, value)) for name, value in names.items()}
    # dataset.yaml overrides the caller, and is known only now.
    if wanted["split_config"] != ref.split_config:
        index = open_webdataset(ref.spec, dataset_config=ref.dataset_config, limits=limits, **wanted)
    else:
        index = select_split_part(ref.spec, wanted["split_part"], found)
    format = find_format(index.shard_paths[0])
    return index if format is None else open_folder(index, format, limits)


def join_members(ref: JoinRef, indices: Sequence[DatasetIndex]) -> list[JoinMember]:
    """Return the members of a join. Raises ConfigError if one is not a prepared folder of tars."""
    members = []
    for member, index in zip(ref.members, indices, strict=True):
        if not isinstance(index, WebDatasetIndex) or index.plain is not None:
            raise ConfigError(
                "only folders of tars can be joined, and they must be prepared",
                where=index.spec.url,
                hint=f"run `energon-stream prepare`, or change the join at {ref.where}",
            )
        members.append(JoinMember(index, member.nonmatch))
    return members
