"""Opens the locator of a dataset in this process."""

from __future__ import annotations

import logging

from energon_stream.index.dataset import DatasetIndex, WebDatasetIndex
from energon_stream.index.entries import OffsetCache
from energon_stream.index.files_index import FilesIndex
from energon_stream.index.join_index import JoinIndex
from energon_stream.index.verify import Verify, open_verifier
from energon_stream.logs import log_once
from energon_stream.read.file_locator import FileLocator
from energon_stream.read.join_locator import JoinLocator
from energon_stream.read.locator import Locator
from energon_stream.read.part_locator import PartLocator
from energon_stream.read.part_ranges import PartSelection
from energon_stream.read.tar_locator import TarLocator

_log = logging.getLogger(__name__)


def open_locator(
    leaf: int,
    index: DatasetIndex,
    offsets: OffsetCache,
    selection: PartSelection | None,
    max_gap: int,
    verify: Verify = "never",
) -> Locator:
    """Open the locator of a dataset. The locators of a pipeline share a cache of index entries.

    ``selection`` are the parts that are needed; None for all. It is ignored for local files, which are
    mapped, for joins, by most formats, and if all samples are compared with checksums.
    """
    if isinstance(index, WebDatasetIndex):
        whole = TarLocator(leaf, index, offsets)
        whole.verifier = open_verifier(index, whole.store, verify)
        if verify == "always" or selection is None or whole.index_is_local or index.shard_ids is None:
            return whole
        return PartLocator(whole, selection, max_gap)
    if verify == "always":
        log_once(_log, "%s: only samples of tars have checksums to be compared", index.name)
    if isinstance(index, FilesIndex):
        own: Locator | None = index.format.locator(leaf, index, offsets, selection)
        return FileLocator(leaf, index, offsets) if own is None else own
    if isinstance(index, JoinIndex):
        return JoinLocator(leaf, index, offsets)
    raise TypeError(f"no locator reads a {type(index).__name__}")
