"""Crude samples whose parts are decoded when someone looks at them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from energon_stream.errors import EnergonStreamError, UntrustedPickleError
from energon_stream.samples.sample import CrudeSample

_MISSING: Any = object()


class _Undecoded:
    """The bytes of a part, where the sample will have its value."""

    __slots__ = ("data",)

    def __init__(self, data: bytes | memoryview) -> None:
        self.data = data


class OnDemandSample(CrudeSample):
    """A crude sample that decodes each part at the first look, and keeps the value.

    Looking at one part, by ``sample["jpg"]`` or ``get``, decodes that part alone. ``in``, ``len``, iteration
    and ``keys`` see names, and decode nothing. Everything that takes all values decodes all parts: ``items``,
    ``values``, ``dict(sample)``, ``**sample``, comparing, copying and pickling. Copies and pickles are plain
    :class:`CrudeSample` objects.

    Video or sound that ``parts=`` left out is not among these parts: ``sample["mp4"]`` reads it by range.

    Example:
        >>> sample = OnDemandSample({"txt": b"a dog"}, lambda part, data: data.decode())
        >>> "txt" in sample, sample["txt"], dict(sample)
        (True, 'a dog', {'txt': 'a dog'})
    """

    def __init__(
        self, parts: dict[str, bytes | memoryview], decode: Callable[[str, bytes | memoryview], Any]
    ) -> None:
        super().__init__({part: _Undecoded(data) for part, data in parts.items()})
        self._decode = decode

    def decoded(self, kept: type[EnergonStreamError] = UntrustedPickleError) -> CrudeSample:
        """Return the sample with all parts decoded. Errors of the type ``kept`` are raised where someone
        looks the part up; others are raised here.
        """
        sample, refused = CrudeSample(), dict(self.refused)
        for part in self:
            try:
                sample[part] = self[part]
            except kept as error:
                refused[part] = error
        if refused:
            sample.refused = refused
        if self.stores is not None:
            sample.stores = self.stores
        return sample

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        if type(value) is _Undecoded:
            value = self._decode(key, value.data)
            self[key] = value
        return value

    def __missing__(self, key: str) -> Any:
        try:
            return super().__missing__(key)
        except KeyError:
            if self.stores is None:
                raise
        self[key] = value = self.stores.part(self, key)
        return value

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401 # this is get()

    # Python copies a dict's storage as it is, unless its class has an ``__iter__`` of its own.
    def __iter__(self) -> Iterator[str]:
        return super().__iter__()

    def items(self) -> Any:
        return dict(self).items()

    def values(self) -> Any:
        return dict(self).values()

    def copy(self) -> dict[str, Any]:
        return dict(self)

    def pop(self, key: str, default: Any = _MISSING) -> Any:
        if key in self or default is _MISSING:
            self[key]
        return super().pop(key) if default is _MISSING else super().pop(key, default)

    def popitem(self) -> tuple[str, Any]:
        key, value = super().popitem()
        return key, self._decode(key, value.data) if type(value) is _Undecoded else value

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def __eq__(self, other: object) -> bool:
        return dict(self) == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment] # as of every dict

    def __or__(self, other: Any) -> Any:
        return dict(self) | other

    def __ror__(self, other: Any) -> Any:
        return other | dict(self)

    def __repr__(self) -> str:
        shown = [
            f"{key!r}: <{len(value.data)} bytes, not decoded>"
            if type(value) is _Undecoded
            else f"{key!r}: {value!r}"
            for key, value in super().items()
        ]
        return "{" + ", ".join(shown) + "}"

    def __reduce__(self) -> tuple[Any, ...]:
        return self.decoded(kept=EnergonStreamError).__reduce__()
