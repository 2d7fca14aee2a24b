"""All errors of the library, under one base class.

``docs/reference/errors.md`` has a table of them. ``SkipSample`` is a signal, not an error: raise it in a hook
to drop the current sample.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Self

from energon_stream.printable import as_sentence, printable, strip_credentials

_LONGEST_PLACE = 500  # characters that a message shows of a place
_LONGEST_TEXT = 8000  # and of each other part


class EnergonStreamError(Exception):
    """Base of all errors of this library.

    The message says what is wrong, where, and what to do. The three parts are attributes too, without the
    credentials of URLs. Errors survive pickling, because they cross process borders. The message writes
    control characters out, because names that come from data could steer the terminal, and cuts the middle
    out of long parts; the attributes have all as it is.

    Args:
        what: The problem, a sentence without the final full stop.
        where: URL, file, key path or byte offset of the problem.
        hint: Advice for the user.

    Example:
        >>> from energon_stream import WorkerConfig
        >>> from energon_stream.errors import ConfigError
        >>> try:
        ...     WorkerConfig(rank=2, world_size=2, num_workers=0)
        ... except ConfigError as error:
        ...     print(error.what, "|", error.hint)
        rank 2 does not fit world_size 2 | rank counts from 0 to world_size - 1
    """

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        what = strip_credentials(str(what))
        where, hint = (None if part is None else strip_credentials(str(part)) for part in (where, hint))
        message = _shortened(what, _LONGEST_TEXT)
        if where is not None:
            message += f" [{_shortened(where, _LONGEST_PLACE)}]"
        if hint is not None:
            message += f". {as_sentence(_shortened(hint, _LONGEST_TEXT))}"
        super().__init__(printable(message))
        self.what = what
        self.where = where
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), self.what, where=self.where, hint=self.hint), (), self.__dict__


def _shortened(text: str, most: int) -> str:
    half = most // 2
    return text if len(text) <= most else f"{text[:half]}…{text[-half:]}"


class ConfigError(EnergonStreamError, ValueError):
    """An argument, or a combination of arguments, that cannot work."""


class AliasError(ConfigError):
    """``megatron.energon`` cannot become a name of this library, because another package has it."""


class MissingNameError(AliasError, ImportError):
    """A name or module of ``megatron.energon`` that this library does not offer; the hint says why."""


class CacheDirectoryError(ConfigError, OSError):
    """The cache directory contains links or another user's files, or its file system has no working locks."""


class EmptyStreamError(ConfigError):
    """Some stream would have no samples: there are more streams than samples."""


class FilterExistsError(ConfigError, FileExistsError):
    """The dataset has a filter of this name, which is not to be overwritten."""


class MissingPackageError(ConfigError, ImportError):
    """An optional package is not installed; the hint names the extra that brings it."""


class SampleIndexError(ConfigError, IndexError):
    """A dataset has no sample of this index."""


class SampleKeyError(ConfigError, KeyError):
    """A dataset has no sample of this key, or its view leaves it out."""

    __str__ = ValueError.__str__  # that of KeyError would be in quotation marks


class UnknownArgumentError(ConfigError, TypeError):
    """A function has no argument of this name; the hint has the one that was meant."""


class UntrustedCodeError(ConfigError):
    """A dataset names code (a class, a function, a file) that the user did not trust."""


class UntrustedUrlError(ConfigError):
    """A dataset in a store names the local disk or another store, and the user did not allow that."""


class WeightsError(ConfigError):
    """Weights that a mixture cannot take: unknown datasets, wrong numbers, others than on other ranks."""


class StepPassedError(WeightsError):
    """Weights for a step that is over, or chosen already; the hint has the first step that is possible."""


class StorageError(EnergonStreamError, OSError):
    """A store did not deliver."""


class ObjectNotFoundError(StorageError, FileNotFoundError):
    """The object, the bucket or the file does not exist."""


class AccessDeniedError(StorageError, PermissionError):
    """The store refused the credentials, or they do not allow this."""


class ObjectChangedError(StorageError):
    """The object was replaced after it was first read in this run."""


class RangeError(StorageError):
    """A byte range that the object does not have."""


class UnsupportedStoreError(StorageError):
    """The store, or the chosen transport, cannot do this."""


class BadAnswerError(UnsupportedStoreError):
    """An answer without length or version, with other bytes, or a page of HTML; raised after some tries."""


class TransientStorageError(StorageError):
    """A fault that another try may cure: 5xx, 429, reset, short body, stalled transfer.

    Args:
        answered: Whether the store began to answer. False: no connection, or nothing came over it.
    """

    def __init__(
        self, what: str, *, where: str | None = None, hint: str | None = None, answered: bool = True
    ) -> None:
        super().__init__(what, where=where, hint=hint)
        self.answered = answered


class ThrottledError(TransientStorageError):
    """The store refuses the rate of requests (429, 503); fewer requests at a time may help."""


class DatasetError(EnergonStreamError, ValueError):
    """The data or metadata of a dataset is wrong."""


class NotPreparedError(DatasetError):
    """The folder has no usable ``.nv-meta``."""


class MetadataError(DatasetError):
    """A metadata file has an unknown key, a wrong type or a wrong value."""


class LimitError(DatasetError):
    """A dataset would cost more than a limit allows; the message names the limit, see ``Limits``."""


class CorruptTarError(DatasetError):
    """A tar header or payload is damaged; the message names shard and offset."""


class BadShardsError(CorruptTarError):
    """Tars of a dataset are damaged or have no samples; the message names the first ones.

    Attributes:
        shards: What is wrong with each of the tars, by path.
    """

    shards: Mapping[str, str] = MappingProxyType({})

    @classmethod
    def of(cls, shards: Mapping[str, str], total: int, where: str) -> Self:
        """Return the error for some of ``total`` tars."""
        lines = [f"  {path}: {problem}" for path, problem in list(shards.items())[:20]]
        more = len(shards) - len(lines)
        lines += [f"  and {more} more"] if more else []
        head = f"{len(shards)} of {total} tars in {where} cannot be used:"
        error = cls(
            "\n".join([head, *lines, "The metadata was not changed"]),
            hint="`energon-stream repair` writes what is whole to a new dataset; or leave them out with exclude= or "
            "skip_bad=True",
        )
        error.shards = dict(shards)
        return error


class IndexMismatchError(DatasetError):
    """An index and its tar disagree."""


class ChecksumError(DatasetError):
    """A sample has other bytes than its checksum says; the message names shard and sample."""


class DuplicateKeyError(DatasetError):
    """Two samples of a dataset share a key."""


class SourceError(DatasetError):
    """A dataset of another format, which is converted, is damaged or not of that format."""


class CostsError(DatasetError):
    """The costs of samples are missing, older than the shards, damaged, or no lengths."""


class MissingCostsError(CostsError):
    """A dataset has no costs of this name, or its kind has no costs."""


class EmptyDatasetError(DatasetError):
    """A split part has no samples."""


class SampleError(EnergonStreamError, ValueError):
    """One sample could not be used. Handlers see these errors and may skip the sample.

    Example:
        >>> from energon_stream.errors import SampleError
        >>> raise SampleError.from_sample({"__key__": "a.tar/7"}, "no caption")
        Traceback (most recent call last):
        energon_stream.errors.SampleError: sample a.tar/7 failed: no caption
    """

    part: str | None = None
    """The part that is damaged or missing; None if that is not known."""

    @classmethod
    def from_sample(cls, sample: Any, message: str = "") -> Self:
        """Return an error that names a sample (or a batch: its keys), and the files that it comes from.

        Args:
            sample: A sample, a batch, a crude sample, or a list of samples, of which the first is named.
            message: What is wrong with it.
        """
        one = sample[0] if isinstance(sample, list) and sample else sample
        read = one.get if isinstance(one, dict) else partial(getattr, one)
        return cls._failed(read("__key__", reprlib.repr(one)), message, read("__sources__", None))

    @classmethod
    def from_sample_key(cls, sample_key: str) -> Self:
        """Return an error that names a sample by its key."""
        return cls._failed(sample_key)

    @classmethod
    def _failed(cls, key: object, message: str = "", sources: object = None) -> Self:
        problem = f"sample {key} failed" + (f": {message}" if message else "")
        return cls(problem, where=None if sources is None else str(sources))


class ColumnError(SampleError):
    """A value of a dataset that is converted does not fit its part; the message names row and column."""


class DecodeError(SampleError):
    """A part's bytes do not have the format of its extension."""


class UntrustedPickleError(DecodeError):
    """A part is a pickle, which can run any code, and the user did not trust the dataset."""


class PartLimitError(DecodeError):
    """A part would take more memory than a limit allows; the message names the limit, see ``Limits``."""


class FieldError(SampleError, KeyError):
    """A part or field that the sample type needs is missing, or a file store has no such name."""

    __str__ = ValueError.__str__  # that of KeyError would be in quotation marks


class MissingFileError(FieldError, FileNotFoundError):
    """A sample refers to a file that its folder does not have."""


class SampleTimeoutError(SampleError, TimeoutError):
    """A hook, or decoding a sample, took longer than ``WorkerConfig.sample_timeout``."""


class FatalSampleError(SampleError, RuntimeError):
    """Too many samples failed in a row, all of a pass failed, or a hook gave up. It always ends the run.

    Example:
        >>> from energon_stream import FatalSampleError, MapDataset
        >>> from energon_stream.testing.operator_suite import NumbersDataset
        >>> try:
        ...     list(MapDataset(NumbersDataset(5), lambda number: 1 / 0, failure_tolerance=2))
        ... except FatalSampleError as error:
        ...     print(error.what)
        2 samples in a row failed, the last with ZeroDivisionError: division by zero
    """


class TooManyBadSamplesError(FatalSampleError):
    """A larger share of the samples failed than ``max_bad`` of the loader allows."""


class StateError(EnergonStreamError, ValueError):
    """A saved state cannot be used."""


class StateVersionError(StateError):
    """Another version of the state format wrote the state."""


class StateMismatchError(StateError):
    """The state belongs to another dataset, other options or another topology."""


class StateInUseError(StateError, RuntimeError, AssertionError):
    """A restore or save at a time when it is impossible, such as during iteration."""


class RunError(EnergonStreamError, ValueError):
    """The records of a run cannot be used, or cannot be written."""


class RunNotFoundError(RunError, FileNotFoundError):
    """The folder has no description of a run."""


class RunDamagedError(RunError):
    """A file of a run is damaged, or another version of the library wrote it; the message names the file."""


class RunMismatchError(RunError):
    """The folder has another run, or a dataset of the run has changed since."""


class NotInRunError(RunError, LookupError):
    """The run has no such step, rank or sample, or no record of it."""


class WorkerError(EnergonStreamError, RuntimeError):
    """A worker process failed or died; the message carries its traceback or exit code."""


class SkipSample(Exception):
    """Raise in a hook to drop the current sample without counting it as a failure.

    Example:
        >>> from energon_stream import DefaultTaskEncoder, SkipSample
        >>> class LongTexts(DefaultTaskEncoder):
        ...     def encode_sample(self, sample):
        ...         if len(sample.text) < 10:
        ...             raise SkipSample
        ...         return sample
    """


IgnoreSample = SkipSample

__all__ = [
    name for name, kind in [*globals().items()] if isinstance(kind, type) and issubclass(kind, Exception)
]
