"""Cookers: functions that turn crude samples into samples of a type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from energon_stream.errors import ConfigError
from energon_stream.samples import METADATA_FIELDS, SourceInfo

__all__ = ["Cooker", "basic_sample_keys", "cooker", "select_cooker"]

T_co = TypeVar("T_co", covariant=True)
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Cooker(Generic[T_co]):
    """A function for crude samples, and which datasets it is for.

    Attributes:
        cook: Called with a ``CrudeSample``, whose parts are decoded, and the auxiliary stores by name.
        has_subflavors: Subflavors that a dataset must have; None takes all.
    """

    cook: Callable[..., T_co]
    has_subflavors: Mapping[str, Any] | None = None

    def is_match(self, subflavors: Mapping[str, Any] | None) -> bool:
        """Whether samples with these subflavors are for this cooker."""
        given = subflavors or {}
        wanted = self.has_subflavors or {}
        return all(name in given and given[name] == value for name, value in wanted.items())


def cooker(*, need_cache: bool = False, need_primary: bool = False) -> Callable[[F], F]:
    """Say what else a cooker function wants as keyword arguments.

    Args:
        need_cache: The cache pool, as ``cache``.
        need_primary: The sample's own dataset as a file store, as ``primary``.
    """

    def mark(function: F) -> F:
        marked: Any = function
        marked.__cooker_need_cache__ = need_cache
        marked.__cooker_need_primary__ = need_primary
        return function

    return mark


def select_cooker(cookers: Sequence[Cooker[Any]], subflavors: Mapping[str, Any] | None) -> Cooker[Any]:
    """The first cooker that matches.

    Raises:
        ConfigError: None does.
    """
    for candidate in cookers:
        if candidate.is_match(subflavors):
            return candidate
    raise ConfigError(
        f"no cooker matches a dataset with the subflavors {dict(subflavors or {})}",
        where=f"has_subflavors of the cookers: {[c.has_subflavors for c in cookers]}",
        hint="add a Cooker for it, or one without has_subflavors at the end of `cookers`",
    )


def basic_sample_keys(
    crude_sample: Mapping[str, Any], additional_source_info: Sequence[SourceInfo] = ()
) -> dict[str, Any]:
    """The metadata of a crude sample, to be passed on: ``MySample(**basic_sample_keys(crude), …)``.

    Args:
        crude_sample: The sample.
        additional_source_info: Where else data of the sample was read.
    """
    keys = {name: crude_sample[name] for name in METADATA_FIELDS}
    keys["__sources__"] = (*(keys["__sources__"] or ()), *additional_source_info)
    return keys
