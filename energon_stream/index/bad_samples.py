"""Bad samples, which failed: what is known of each, their list, and files of such lists.

A file has a JSON object a line, with the attributes of a :class:`BadSample`. The folder of a run has a file
for each rank, ``bad/rank-00000.jsonl``.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

from energon_stream.errors import LimitError, MetadataError
from energon_stream.index.yaml_io import read_document
from energon_stream.limits import Limits
from energon_stream.printable import strip_credentials
from energon_stream.storage import StoreSpec
from energon_stream.urls import is_local, local_path

_log = logging.getLogger(__name__)

BAD_FOLDER: Final = "bad"
"""Folder of the lists of all ranks, in the folder of a run."""
MOST_NAMED = 100_000  # samples that the list of a rank names: some 50 MB
_KINDS_SHOWN = 3
_RUN = "run.json"  # each folder of a run has this file


@dataclass(frozen=True, slots=True)
class BadSample:
    """A sample that failed.

    Attributes:
        dataset: Path or URL of the dataset; None, in a list of your own, for any dataset.
        shard: Path of the tar in the dataset; None for a JSONL file, and, in a list of your own, for any tar.
        index: Number of the sample in the shard; None for samples of joins.
        key: Its key, without the shard; None if it is not known.
        part: The part that is damaged or missing; None if the error does not tell.
        error: Class of the first error.
        message: Text of the first error, at most 300 characters.
        function: The hook that failed, or ``reading samples``.
        line: File and line where the error was raised.
        together: Samples of the call that failed: more than 1 for a batch or a pack.
        count: How often the sample failed.
        version: Size and hash of a JSONL file's end, which tell whether its numbers hold; None for tars.

    Example:
        >>> from energon_stream import BadSample
        >>> BadSample("/data/captions", "data-000000.tar", 7, "00000007", "jpg", "DecodeError").kind
        'DecodeError'
    """

    dataset: str | None = None
    shard: str | None = None
    index: int | None = None
    key: str | None = None
    part: str | None = None
    error: str = ""
    message: str = ""
    function: str = ""
    line: str = ""
    together: int = 1
    count: int = 1
    version: str | None = None

    @property
    def kind(self) -> str:
        """Class of the error, and where it was raised."""
        place = ", ".join(filter(None, (self.function, self.line)))
        return f"{self.error} ({place})" if place else self.error


_TYPES = {
    each.name: int if each.name in ("index", "together", "count") else str for each in fields(BadSample)
}


def dataset_name(url: str) -> str:
    """Return the name of a dataset in lists: its absolute path, or its URL without credentials."""
    return local_path(url) if is_local(url) else strip_credentials(url)


def is_list(name: str) -> bool:
    """Return whether a name is that of a list or a run's folder, rather than that of a column."""
    return name.endswith(".jsonl") or ("/" in name and not name.endswith(".txt"))


class BadList:
    """A list that has each bad sample once, and names ``most`` of them."""

    def __init__(self, samples: Iterable[BadSample] = (), most: float = MOST_NAMED) -> None:
        self._most = most
        self.begin(samples)

    def begin(self, samples: Iterable[BadSample]) -> None:
        """Begin anew with some samples, which have been written."""
        self._samples: dict[tuple[Any, ...], BadSample] = {}
        self._kinds: Counter[str] = Counter()
        self._is_full = False
        self.add(samples)
        self.is_new: bool = False  # whether it has changed since it was written

    def add(self, samples: Iterable[BadSample]) -> None:
        """Add samples; one that the list has is counted."""
        for sample in samples:
            self.is_new = True
            self._kinds[sample.kind] += sample.count
            place = sample.key if sample.index is None else sample.index
            identity = sample.dataset, sample.shard, place
            known = self._samples.get(identity)
            if known is not None:
                self._samples[identity] = replace(known, count=known.count + sample.count)
            elif len(self._samples) < self._most:
                self._samples[identity] = sample
            elif not self._is_full:
                self._is_full = True
                _log.warning("the list has %d bad samples; others are only counted", len(self._samples))

    @property
    def samples(self) -> list[BadSample]:
        """The samples, in the order in which they failed first."""
        return list(self._samples.values())

    @property
    def count(self) -> int:
        """Failures of the samples in the list, and of those it only counts."""
        return self._kinds.total()

    def kinds(self) -> str:
        """Return the most frequent kinds of errors with their counts."""
        return most_frequent(self._kinds)

    def dumps(self) -> bytes:
        """Return the content of a file, and take the list as written."""
        self.is_new = False
        told = (
            {name: value for name, value in asdict(each).items() if value not in (None, "")}
            for each in self.samples
        )
        return "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in told).encode(
            "utf-8", "surrogatepass"
        )


def most_frequent(kinds: Counter[str]) -> str:
    """Return the most frequent kinds with their counts, as text."""
    shown = [f"{count:,} {kind}" for kind, count in kinds.most_common(_KINDS_SHOWN)]
    more = len(kinds) - len(shown)
    return "; ".join(shown) + (f"; and {more} other kinds" if more else "")


def rank_file(rank: int) -> str:
    """Return the path of a rank's list in the folder of a run."""
    return f"{BAD_FOLDER}/rank-{rank:05d}.jsonl"


def read_bad_samples(
    path: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None
) -> list[BadSample]:
    """Read a list of bad samples; each sample is in the result once.

    Args:
        path: A file such as ``bad.jsonl``, or the folder of a run, of which the lists of all ranks are read.
        storage_options: Options of the URL's file system, such as credentials.

    Raises:
        StorageError: The file cannot be read.
        MetadataError: The file is no such list.

    Example:
        >>> from energon_stream import BadSample, read_bad_samples, write_bad_samples
        >>> write_bad_samples("bad.jsonl", [BadSample(shard="data-000000.tar", key="00000007")])
        >>> [sample.key for sample in read_bad_samples("bad.jsonl")]
        ['00000007']
    """
    return read_bad_list(StoreSpec(os.fspath(path), storage_options)).samples


def write_bad_samples(
    path: str | os.PathLike[str],
    samples: Iterable[BadSample],
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Write a list of bad samples, such as ``loader.bad_samples()``, to a file, which it replaces.

    Args:
        path: Path or URL of the file; it ends with ``.jsonl``.
        samples: The samples.
        storage_options: Options of the URL's file system.

    Raises:
        StorageError: The file cannot be written.

    Example:
        >>> from energon_stream import BadSample, write_bad_samples
        >>> write_bad_samples("bad.jsonl", [BadSample("/captions", "data-000000.tar", key="00000007")])
        >>> print(open("bad.jsonl").read(), end="")
        {"dataset": "/captions", "shard": "data-000000.tar", "key": "00000007", "together": 1, "count": 1}
    """
    StoreSpec(os.fspath(path), storage_options).open().put("", BadList(samples, math.inf).dumps())


def read_bad_list(spec: StoreSpec, limits: Limits | None = None) -> BadList:
    """Read a file, or the files of all ranks in the folder of a run; raises as :func:`read_bad_samples`."""
    store = spec.open()
    if spec.url.endswith(".jsonl"):
        paths = [""]
    else:
        paths = [entry.path for entry in store.list(BAD_FOLDER) if entry.path.endswith(".jsonl")]
        if not paths:
            store.head(_RUN)  # a folder without it is none of a run
    limits, found, count = limits or Limits.from_environment(), BadList(most=math.inf), 0
    for path in sorted(paths):
        lines = bytes(read_document(path, store, limits).data).splitlines()
        where, count = f"{store.url}/{path}".rstrip("/"), count + len(lines)
        if count * (len(_TYPES) - 1) > limits.document_values:  # a line has a shard or a version
            raise LimitError(**limits.exceeded("document_values", f"{count:,} lines or more"), where=where)
        found.add(_parsed(line, f"{where}, line {at}") for at, line in enumerate(lines, 1) if line.strip())
    return found


def _parsed(line: bytes, where: str) -> BadSample:
    try:
        found = json.loads(line)
        if not isinstance(found, dict):
            raise TypeError("it is no JSON object")
        known = {name: found[name] for name in _TYPES if found.get(name) is not None}
        if any(type(value) is not _TYPES[name] for name, value in known.items()):
            raise ValueError("it has values of other types")
        if known.get("index", 0) < 0 or not known.keys() & {"key", "index"}:
            raise ValueError("it has no key, and no index of 0 or more")
        return BadSample(**known)
    except (ValueError, TypeError, RecursionError) as error:
        raise MetadataError(
            f"the line names no bad sample: {error!s:.100}",
            where=where,
            hint='write a JSON object a line, such as {"shard": "data-000000.tar", "key": "00000007"}',
        ) from None
