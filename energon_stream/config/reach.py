"""The places that a metadataset may name: a file in a store must not reach out of that store."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import unquote

from energon_stream.errors import ConfigError, UntrustedUrlError
from energon_stream.printable import strip_credentials
from energon_stream.urls import is_local, is_url, plain_or_dataset

ALLOW_URLS_VARIABLE = "ENERGON_STREAM_ALLOW_URLS"
"""Environment variable with prefixes of URLs, separated by spaces, that every metadataset may name."""

_ALIASES = {"s3a": "s3", "gcs": "gs"}
# Schemes whose URLs begin with a bucket. The host is in the options, which all URLs share.
_BUCKETS = frozenset({"s3", "gs", "az", "abfs", "abfss"})


def allowed_urls(given: Sequence[str] | None, environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the prefixes that the user, or else the environment, allows. Raises ConfigError for a text."""
    if isinstance(given, str):
        raise ConfigError(f"allow_urls is {given!r:.80}", hint="pass a list of prefixes")
    return tuple(environment.get(ALLOW_URLS_VARIABLE, "").split() if given is None else given)


def check_reach(url: str, *, named_by: str, allowed: Iterable[str]) -> None:
    """Check that the metadataset at ``named_by`` may name a place: a dataset, a folder or a disk cache.

    A metadataset on the local disk is the user's own, and may name any.

    Example:
        >>> check_reach("s3://pictures/cats", named_by="s3://mixtures/train.yaml", allowed=())
        >>> check_reach("/home/me", named_by="s3://mixtures/train.yaml", allowed=())
        Traceback (most recent call last):
        energon_stream.errors.UntrustedUrlError: the metadataset names a place outside its store: /home/me ...
    """
    if is_local(named_by) or _origin(url) == _origin(named_by) or _is_allowed(url, allowed):
        return
    shown = strip_credentials(url)
    raise UntrustedUrlError(
        f"the metadataset names a place outside its store: {shown}",
        where=strip_credentials(named_by),
        hint=f"if you trust it, pass allow_urls=[{_prefix(shown)!r}], or set {ALLOW_URLS_VARIABLE}",
    )


def _origin(url: str) -> str:
    """Return what two URLs of one store have in common: scheme and host, in a chain those of each element."""
    if is_local(url):
        return "file"
    elements = url.split("::")  # the path is that of the first element that has one
    index = next((place for place, element in enumerate(elements) if "://" in element), 0)
    scheme, _, rest = elements[index].partition("://")
    scheme = _ALIASES.get(scheme.lower(), scheme.lower())
    host = rest.partition("/")[0]
    if scheme in _BUCKETS:
        host = host.partition("@")[2]  # container@account
    elif index < len(elements) - 1:
        host = ""  # a path in the archive that the next element names
    elements[index] = f"{scheme}://{host.rpartition('@')[2].partition('?')[0].lower()}"
    return "::".join(elements)


def _is_allowed(url: str, allowed: Iterable[str]) -> bool:
    if ".." in unquote(url).replace("\\", "/").split("/"):
        return False
    place = _normal(url)
    return any(
        place == prefix or place.startswith(prefix.rstrip("/") + "/") for prefix in map(_normal, allowed)
    )


def _normal(url: str) -> str:
    return plain_or_dataset(url) if is_local(url) else url


def _prefix(url: str) -> str:
    """Return a prefix that allows a URL, for advice."""
    if not is_url(url) or "::" in url:
        return url
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}/"
