"""Opens the indices of datasets and joins. Nothing of their samples is read, and PyTorch is not imported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from energon_stream.config.references import AnyLeafRef, JoinRef, LeafRef, MixtureItem
from energon_stream.config.view import with_view
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
from energon_stream.index.info_files import DATASET_CONFIG, SPLIT_CONFIG
from energon_stream.index.join_index import JoinIndex, JoinMember, open_join_index
from energon_stream.index.jsonl_index import open_jsonl
from energon_stream.index.plain import find_tars, list_tars, open_plain
from energon_stream.limits import Limits
from energon_stream.printable import strip_credentials

if TYPE_CHECKING:
    from energon_stream.config.location import DatasetLocation

_OPENERS = 32
"""Datasets that are opened at the same time; the fetcher bounds the requests."""

_MOST_SIZED = 16
"""Most datasets of a mixture whose sizes of samples are requested with the metadata."""

_MetadataKey = tuple[str, str, str]


def open_location(location: DatasetLocation, num_workers: int) -> list[tuple[MixtureItem, DatasetIndex]]:
    """Open all datasets of a location, concurrently.

    Raises what :meth:`DatasetLocation.items` and :func:`open_webdataset` raise.
    """

    def read() -> list[tuple[MixtureItem, DatasetIndex]]:
        items = location.items()
        return list(zip(items, open_all([item.ref for item in items], location.limits), strict=True))

    return location.read(read, forks=num_workers > 0)


def open_all(refs: Sequence[AnyLeafRef], limits: Limits | None = None) -> list[DatasetIndex]:
    """Open datasets and joins, all at the same time; raises what :func:`open_location` does."""
    limits = limits or Limits.from_environment()
    metadata: dict[_MetadataKey, Future[DatasetMetadata]] = {}
    pool = ThreadPoolExecutor(min(_OPENERS, len(refs)))
    try:
        # Of many datasets, the first batches read few: their .tar.idx files cost fewer requests.
        begin = partial(
            _begin, pool=pool, metadata=metadata, with_sizes=len(refs) <= _MOST_SIZED, limits=limits
        )
        return [finish() for finish in [begin(ref) for ref in refs]]
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(
    ref: AnyLeafRef,
    pool: ThreadPoolExecutor,
    metadata: dict[_MetadataKey, Future[DatasetMetadata]],
    with_sizes: bool,
    limits: Limits,
) -> Callable[[], DatasetIndex]:
    """Begin to open a dataset; return a function that waits for the result."""
    if isinstance(ref, JoinRef):
        members = [_begin(member.leaf, pool, metadata, with_sizes, limits) for member in ref.members]
        # The join waits in the pool for its members. It cannot block them: they were submitted before it.
        return pool.submit(_open_join, ref, members).result
    if ref.view is not None:
        whole, view = _begin(replace(ref, view=None), pool, metadata, with_sizes, limits), ref.view
        return pool.submit(lambda: with_view(whole(), view, limits)).result
    kind = dataset_kind(ref.spec.url)
    if kind == "jsonl":
        declared = ref.declared is not None and not ref.declared.typing_only
        _refuse(ref, declared, "sample_type", "the records of a JSONL file are crude")
        return pool.submit(open_jsonl, ref.spec).result
    if kind == "tars":
        return pool.submit(_open_tars, ref, limits).result
    if ref.declared is not None:
        return pool.submit(_open_declared, ref, limits).result
    key = ref.spec.url, ref.split_config, ref.dataset_config
    if key not in metadata:  # mixtures often name several split parts of one dataset
        metadata[key] = pool.submit(_read_metadata, ref, limits, with_sizes)
    return lambda: _select(ref, metadata[key].result(), limits)


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


def _open_tars(ref: LeafRef, limits: Limits) -> WebDatasetIndex:
    _refuse_files(ref)
    return open_plain(*find_tars(ref.spec, limits), split_part=ref.split_part)


def _open_declared(ref: LeafRef, limits: Limits) -> WebDatasetIndex:
    """Open a folder with declared samples: one of plain tars, or a prepared one without ``dataset.yaml``."""
    tars = list_tars(ref.spec)
    if tars is None:
        return _select(ref, _read_metadata(ref, limits), limits)
    _refuse_files(ref)
    return open_plain(ref.spec, tars, split_part=ref.split_part)


def _refuse_files(ref: LeafRef) -> None:
    given = (ref.split_config, ref.dataset_config) != (SPLIT_CONFIG, DATASET_CONFIG)
    _refuse(ref, given, "split_config or dataset_config", "the dataset is not prepared")


def _refuse(ref: LeafRef, is_given: bool, what: str, reason: str) -> None:
    if is_given:
        where = strip_credentials(ref.spec.url)
        raise ConfigError(f"{what} is not allowed here: {reason}", where=where, hint="leave it out")


def _select(ref: LeafRef, found: DatasetMetadata, limits: Limits) -> WebDatasetIndex:
    names = {"split_part": ref.split_part, "split_config": ref.split_config}
    wanted = {name: str((found.dataset_yaml or {}).get(name, value)) for name, value in names.items()}
    # dataset.yaml overrides the caller, and is known only now.
    if wanted["split_config"] != ref.split_config:
        return open_webdataset(ref.spec, dataset_config=ref.dataset_config, limits=limits, **wanted)
    return select_split_part(ref.spec, wanted["split_part"], found)


def join_members(ref: JoinRef, indices: Sequence[DatasetIndex]) -> list[JoinMember]:
    """Return the members of a join, given their opened indices.

    Raises ConfigError if a member is not a prepared folder of tars.
    """
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
