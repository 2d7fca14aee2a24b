"""The tars of a dataset's folder, from a listing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from energon_stream.errors import ConfigError, ObjectNotFoundError
from energon_stream.index.info_files import META_FOLDER, STAGING
from energon_stream.index.shard_names import match_names, only_tars

if TYPE_CHECKING:
    from energon_stream.storage import ListEntry, Store


def find_shards(
    store: Store, *, shards: str | Sequence[str] | None = None, exclude: str | None = None
) -> list[ListEntry]:
    """List the tars of a folder, sorted by path; see :func:`energon_stream.prepare_dataset`.

    Raises the errors of :func:`select_shards`.
    """
    return select_shards(store.list(), store.url, shards=shards, exclude=exclude)


def select_shards(
    listed: Iterable[ListEntry],
    url: str,
    *,
    shards: str | Sequence[str] | None = None,
    exclude: str | None = None,
) -> list[ListEntry]:
    """Return the tars of a folder's listing, sorted by path; see :func:`energon_stream.prepare_dataset`.

    Raises ObjectNotFoundError if the folder has no tars, or none that the options select, and ConfigError if
    ``exclude`` is not a regular expression, or all tars are compressed.
    """
    files = (entry for entry in listed if not entry.path.startswith((f"{META_FOLDER}/", f"{STAGING}/")))
    entries = {entry.path: entry for entry in only_tars(files, url)}
    names = list(entries)
    if shards is not None:
        names = match_names(names, [shards] if isinstance(shards, str) else shards)
    if exclude is not None:
        try:
            expression = re.compile(exclude)
        except re.error as error:
            raise ConfigError(f"exclude {exclude!r} is not a regular expression: {error}") from error
        names = [name for name in names if not expression.search(name)]
    if not names:
        raise ObjectNotFoundError(
            f"none of the {len(entries)} tars is selected",
            where=url,
            hint=f"check the patterns; the first tar is {next(iter(entries))!r}",
        )
    return [entries[name] for name in names]
