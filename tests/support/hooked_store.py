"""Folders as stores that a test makes fail, refuse or lie: with the public ``register_store``, no patch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from energon_stream.storage import LocalStore, register_store

_numbers = itertools.count()


class HookedStore(LocalStore):
    """A folder with other methods; it counts as remote."""

    is_local = False


def hooked(folder: object, **hooks: Callable[..., Any]) -> str:
    """Return a URL of a folder. Its stores call these functions instead of the methods of these names; each
    gets the method first.

    Example: ``hooked(tmp_path, put=lambda put, path, data: put(path, data[:-1]))`` loses bytes.
    """
    scheme = f"hooked{next(_numbers)}"

    def open_store(url: str, options: Mapping[str, Any]) -> HookedStore:
        store = HookedStore(url.removeprefix(f"{scheme}://"))
        for name, hook in hooks.items():
            setattr(store, name, partial(hook, getattr(store, name)))
        return store

    register_store(scheme, open_store)
    return f"{scheme}://{folder}"
