"""Pure functions on paths and URLs: kind, parts and joining."""

from __future__ import annotations

import functools
import os
import posixpath
import re

from energon_stream.errors import ConfigError
from energon_stream.printable import strip_credentials

DATASETS_VARIABLE = "NVDATASET_CACHE_DIR"
"""Environment variable: folder of the datasets that ``dss://name@version`` names, as ``name/version``."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*(::|://)")
_LOCAL_SCHEMES = ("file", "local", "dss")
_DATASET = re.compile(r"([^/@]+)@([^/@]+)(/.*)?")
_MSC_FILES = "msc://__filesystem__/"


def is_url(path: str) -> bool:
    """Return True for ``scheme://…`` and for fsspec's chained ``cache::scheme://…``."""
    return _URL.match(path) is not None


def path_text(path: object) -> str:
    """Return a path or URL as text. Raises ConfigError for what is neither text nor a path."""
    try:
        return path if isinstance(path, str) else os.fsdecode(path)  # type: ignore[arg-type]
    except TypeError:
        what = f"a path or URL is text or a path, not {type(path).__name__}"
        raise ConfigError(what, hint="Pass str, or pathlib.Path.") from None


def url_scheme(url: str) -> str:
    """Return the lower-case scheme of the outermost file system; ``file`` for a plain path."""
    match = _URL.match(url)
    return url[: match.start(1)].lower() if match else "file"


def is_local(path: str) -> bool:
    """Return True for plain paths, and for URLs of files: ``file://``, ``dss://``, and ``msc://`` with the
    profile ``__filesystem__``.
    """
    if path.startswith(_MSC_FILES):
        return True
    return url_scheme(path) in _LOCAL_SCHEMES and "::" not in path.partition("://")[0]


def local_path(path: str) -> str:
    """Return the absolute path of a plain path, with ``~`` expanded, or of a URL of a file.

    Raises ConfigError for ``dss://`` without name and version, or without ``NVDATASET_CACHE_DIR``.

    Example:
        >>> local_path("file:///data/captions/../texts"), local_path("msc://__filesystem__/data")
        ('/data/texts', '/data')
    """
    if url_scheme(path) == "dss":
        path = _dataset_path(path)
    elif path.startswith(_MSC_FILES):
        path = path[len(_MSC_FILES) - 1 :]
    elif is_url(path):
        path = path.partition("://")[2]
    return absolute_path(path)


def absolute_path(path: str) -> str:
    """Return a local path from the root on, with ``~`` expanded. Raises ConfigError if that is impossible."""
    expanded = os.path.expanduser(path)
    if expanded.split("/", 1)[0] == "~":
        hint = "set HOME, or write the path from the root on"
        raise ConfigError("this process has no home folder", where=path, hint=hint)
    try:
        return os.path.abspath(expanded)
    except FileNotFoundError as error:
        hint = "start the program in a folder that exists, or write the path from the root on"
        raise ConfigError("the working directory was removed", where=path, hint=hint) from error


def _dataset_path(url: str) -> str:
    """Return the path of ``dss://name@version/…``, a dataset below the folder of a node's datasets."""
    folder = os.environ.get(DATASETS_VARIABLE)
    if not folder:
        raise ConfigError(
            f"{DATASETS_VARIABLE} is not set",
            where=url,
            hint="set it to the folder that has the datasets as name/version",
        )
    found = _DATASET.fullmatch(posixpath.normpath(url.partition("://")[2]))
    if found is None or ".." in found.group(1, 2):
        raise ConfigError(
            "a dss path needs name and version", where=url, hint="write dss://name@version/path"
        )
    return f"{folder}/{found[1]}/{found[2]}{found[3] or ''}"


def plain_or_dataset(path: str) -> str:
    """Return the absolute path of a local one; ``dss://`` stays, because each node has its own folder."""
    return path.rstrip("/") if url_scheme(path) == "dss" else local_path(path)


def join_url(base: str, relative: str) -> str:
    """Resolve ``.``, ``..`` and a path below a folder, whose query string stays at the end.

    An absolute local path or a URL stays as it is. Raises ConfigError if ``..`` leads above the bucket.

    Example:
        >>> join_url("s3://bucket/data", "../other/a.tar")
        's3://bucket/other/a.tar'
    """
    if is_url(relative) or relative == "~" or relative.startswith(("/", "~/")):
        return relative
    if not is_url(base):
        return os.path.normpath(os.path.join(base, relative))
    elements = base.split("::")  # a chain; its path is that of the first element that has one
    index = next((i for i, element in enumerate(elements) if "://" in element), 0)
    scheme, _, rest = elements[index].partition("://")
    mark = query = ""
    if scheme in ("http", "https"):  # elsewhere a question mark is part of the key
        rest, mark, query = rest.partition("?")
    root, _, path = rest.partition("/")
    parts = [part for part in path.split("/") if part]
    for part in relative.split("/"):
        if part == "..":
            if not parts:
                raise ConfigError(
                    f"the path {relative!r} leads above the bucket",
                    where=strip_credentials(base),
                    hint="Use fewer '..' or give a full URL.",
                )
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    elements[index] = f"{scheme}://{'/'.join([root, *parts])}{mark}{query}"
    return "::".join(elements)


def split_query(url: str) -> tuple[str, str]:
    """Split a web address into the part before its query, and the query; elsewhere a key may have a ``?``.

    Example:
        >>> split_query("https://host/a.tar?sig=x"), split_query("s3://bucket/a?.tar")
        (('https://host/a.tar', '?sig=x'), ('s3://bucket/a?.tar', ''))
    """
    before, mark, query = url.partition("?") if url_scheme(url) in ("http", "https") else (url, "", "")
    return before, mark + query


def parent_url(url: str) -> str:
    """Return the folder that contains ``url``."""
    return join_url(url, "..") if is_url(url) else posixpath.dirname(url.rstrip("/"))


@functools.lru_cache(maxsize=1024)
def shown_url(url: str) -> str:
    """Return a URL without credentials, fast: each sample names the URL of its dataset."""
    return strip_credentials(url)
