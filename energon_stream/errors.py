"""Every error of the library, under one base.

::

    EnergonStreamError
    ├── ConfigError (ValueError)            an argument or a combination of arguments cannot work
    │   ├── AliasError                      ``megatron.energon`` cannot become a name of this library
    │   ├── EmptyStreamError                more streams than samples
    │   ├── MissingPackageError (ImportError)  an optional package is not installed
    │   └── UntrustedCodeError              a dataset names code that was not trusted
    ├── StorageError (OSError)              a store did not deliver
    │   ├── ObjectNotFoundError (FileNotFoundError)
    │   ├── AccessDeniedError (PermissionError)
    │   ├── ObjectChangedError              the object is not the one that was opened
    │   ├── RangeError                      a byte range outside the object
    │   ├── UnsupportedStoreError           the store cannot do what was asked
    │   └── TransientStorageError           a fault worth another try; raised when tries are used up
    │       └── ThrottledError              the store is asked more than it takes
    ├── DatasetError (ValueError)           what lies in the dataset is wrong
    │   ├── NotPreparedError                no usable ``.nv-meta``
    │   ├── MetadataError                   a metadata file has a wrong key, type or value
    │   ├── CorruptTarError                 a tar header or payload is damaged
    │   ├── IndexMismatchError              an index and its tar disagree
    │   ├── DuplicateKeyError               two samples share a key
    │   └── EmptyDatasetError               a split part without samples
    ├── SampleError (ValueError)            one sample could not be used; handlers may skip it
    │   ├── DecodeError                     a part's bytes are not what its extension says
    │   └── FieldError                      a part or field that the sample type needs is missing
    ├── FatalSampleError (RuntimeError)     too many samples failed in a row
    ├── StateError (ValueError)             a saved state cannot be used
    │   ├── StateVersionError               written by another version of the format
    │   ├── StateMismatchError              of another dataset or topology
    │   └── StateInUseError (RuntimeError)  restore or save at a moment where it has no meaning
    └── WorkerError (RuntimeError)          a worker process failed or died

``SkipSample`` is a signal, not an error: raise it in a hook to drop the sample at hand.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "AccessDeniedError",
    "AliasError",
    "ConfigError",
    "CorruptTarError",
    "DatasetError",
    "DecodeError",
    "DuplicateKeyError",
    "EmptyDatasetError",
    "EmptyStreamError",
    "EnergonStreamError",
    "FatalSampleError",
    "FieldError",
    "IgnoreSample",
    "IndexMismatchError",
    "MetadataError",
    "MissingPackageError",
    "NotPreparedError",
    "ObjectChangedError",
    "ObjectNotFoundError",
    "RangeError",
    "SampleError",
    "SkipSample",
    "StateError",
    "StateInUseError",
    "StateMismatchError",
    "StateVersionError",
    "StorageError",
    "ThrottledError",
    "TransientStorageError",
    "UnsupportedStoreError",
    "UntrustedCodeError",
    "WorkerError",
]


class EnergonStreamError(Exception):
    """Base of all errors of this library.

    The message always says what is wrong, where, and what to do. The three parts stay readable
    as attributes. Errors survive pickling, because they cross process borders.

    Args:
        what: What is wrong, a sentence without the final full stop.
        where: URL, file, key path or byte offset at which it was found.
        hint: What the user can do about it.
    """

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        message = what if where is None else f"{what} [{where}]"
        super().__init__(message if hint is None else f"{message}. {hint}")
        self.what = what
        self.where = where
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.what, self.where, self.hint), self.__dict__


def _rebuild(
    cls: type[EnergonStreamError], what: str, where: str | None, hint: str | None
) -> EnergonStreamError:
    return cls(what, where=where, hint=hint)


class ConfigError(EnergonStreamError, ValueError):
    """An argument, or a combination of arguments, that cannot work."""


class AliasError(ConfigError):
    """``megatron.energon`` cannot become a name of this library: there is another one."""


class EmptyStreamError(ConfigError):
    """Some stream would have no samples: there are more streams than samples."""


class MissingPackageError(ConfigError, ImportError):
    """An optional package is not installed; the hint names the extra that brings it."""


class UntrustedCodeError(ConfigError):
    """A dataset names code (a class, a function, a file) that the user did not trust."""


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
    """The store, or the chosen transport, cannot do what was asked."""


class TransientStorageError(StorageError):
    """A fault that another try may cure: 5xx, 429, reset, short body, no progress."""


class ThrottledError(TransientStorageError):
    """The store is asked more than it takes (429, 503): fewer requests at a time may help."""


class DatasetError(EnergonStreamError, ValueError):
    """What lies in the dataset is wrong."""


class NotPreparedError(DatasetError):
    """The folder has no usable ``.nv-meta``."""


class MetadataError(DatasetError):
    """A metadata file has an unknown key, a wrong type or a wrong value."""


class CorruptTarError(DatasetError):
    """A tar header or payload is damaged; the message names shard and offset."""


class IndexMismatchError(DatasetError):
    """An index and its tar disagree."""


class DuplicateKeyError(DatasetError):
    """Two samples of a dataset share a key."""


class EmptyDatasetError(DatasetError):
    """A split part without samples."""


class SampleError(EnergonStreamError, ValueError):
    """One sample could not be used. Handlers see these and may skip the sample."""


class DecodeError(SampleError):
    """A part's bytes are not what its extension says."""


class FieldError(SampleError):
    """A part or field that the sample type needs is missing."""


class FatalSampleError(EnergonStreamError, RuntimeError):
    """More samples failed in a row than the tolerance allows."""


class StateError(EnergonStreamError, ValueError):
    """A saved state cannot be used."""


class StateVersionError(StateError):
    """The state was written by another version of the state format."""


class StateMismatchError(StateError):
    """The state belongs to another dataset, other options or another topology."""


class StateInUseError(StateError, RuntimeError):
    """Restoring or saving at a moment where it has no meaning."""


class WorkerError(EnergonStreamError, RuntimeError):
    """A worker process failed or died; the message carries its traceback or exit code."""


class SkipSample(Exception):
    """Raise in a hook to drop the sample at hand without counting it as a failure."""


IgnoreSample = SkipSample
