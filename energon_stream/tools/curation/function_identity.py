"""Tells whether a function is the one that made earlier results."""

from __future__ import annotations

import functools
import pickle
import types
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import xxhash

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))
_ATTRIBUTES: dict[type, tuple[str, ...]] = {
    types.CodeType: ("co_code", "co_consts", "co_names", "co_freevars", "co_argcount"),
    types.MethodType: ("__func__", "__self__"),
    types.ModuleType: ("__name__", "__version__"),
    functools.partial: ("func", "args", "keywords"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget",),
}
"""What tells values of a type."""


def function_identity(function: Callable[..., Any]) -> str:
    """Return the name of a function, and a hash of what it does: code, defaults, closure, globals, state.

    Each call returns another identity if a part of the function cannot be told.

    Example:
        >>> scaled = lambda factor: lambda sample: factor * len(sample["txt"])
        >>> function_identity(scaled(2)) == function_identity(scaled(2))
        True
        >>> function_identity(scaled(2)) == function_identity(scaled(3))
        False
    """
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    home, digest = str(inner.__module__), xxhash.xxh3_128()
    try:
        for piece in _pieces(function, home.partition(".")[0], {}):
            digest.update(f"{len(piece)}:".encode() + piece)
        mark = digest.hexdigest()
    except Exception:  # whatever an object raises that cannot be pickled
        mark = uuid.uuid4().hex
    return f"{home}:{name}#{mark}"


def _pieces(value: Any, home: str, seen: dict[int, Any]) -> Iterator[bytes]:
    """Yield bytes that differ if values do. Globals and classes of packages but ``home`` count by name."""
    kind = type(value)
    yield f"{kind.__module__}.{kind.__qualname__}".encode()
    if isinstance(value, _PLAIN):
        yield repr(value).encode("utf-8", "surrogatepass")
        return
    if id(value) in seen:
        yield str(list(seen).index(id(value))).encode()
        return
    seen[id(value)] = value
    is_own = str(getattr(value, "__module__", "")).partition(".")[0] == home
    parts: list[Any]
    if names := next((names for each, names in _ATTRIBUTES.items() if isinstance(value, each)), ()):
        parts = [getattr(value, name, None) for name in names]
    elif isinstance(value, tuple | list):
        parts = [*value]
    elif isinstance(value, dict):
        parts = [part for item in value.items() for part in item]
    elif isinstance(value, set | frozenset):
        parts = sorted(value, key=repr)
    elif isinstance(value, types.FunctionType):
        known = value.__globals__
        used = sorted(_names(value.__code__) & known.keys()) if is_own else ()
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        parts = [
            value.__code__,
            value.__defaults__,
            value.__kwdefaults__,
            cells,
            {name: known[name] for name in used},
        ]
    elif isinstance(value, type) and is_own:
        parts = [value.__qualname__, value.__bases__, {name: vars(value)[name] for name in _written(value)}]
    elif callable(value) and hasattr(value, "__dict__") and not isinstance(value, type):
        parts = [kind, vars(value)]
    else:
        parts = [pickle.dumps(value)]
    for part in parts:
        yield from _pieces(part, home, seen)


def _written(kind: type) -> list[str]:
    """Return the attributes that the text of a class defines."""
    made = types.GetSetDescriptorType | types.MemberDescriptorType
    found = {name: part for name, part in vars(kind).items() if not isinstance(part, made)}
    return sorted(name for name, part in found.items() if not name.startswith("__") or callable(part))


def _names(code: types.CodeType) -> set[str]:
    """Return the names that a function and those in it use."""
    inner = [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner))
