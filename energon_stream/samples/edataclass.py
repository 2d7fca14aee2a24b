"""The dataclass decorator of all samples and batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, overload

from typing_extensions import dataclass_transform

T = TypeVar("T")


@overload
def edataclass(cls: type[T]) -> type[T]: ...
@overload
def edataclass(cls: None = None) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
def edataclass(cls: type[T] | None = None) -> type[T] | Callable[[type[T]], type[T]]:
    """Decorate a class with ``dataclasses.dataclass(slots=True, kw_only=True)``.

    Keyword-only, so that types with required fields can derive from types with defaults. Slots, so that
    samples are small and misspelt attributes are errors.

    Example:
        >>> from energon_stream import Sample, edataclass
        >>> @edataclass
        ... class Label(Sample):
        ...     label: int
        >>> Label(__key__="a", __restore_key__=(), label=3).label
        3
    """
    decorator = dataclass(slots=True, kw_only=True)
    return decorator if cls is None else decorator(cls)
