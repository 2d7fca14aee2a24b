"""Secrets of stores, which messages must not contain."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote

from energon_stream.printable import strip_credentials

_SECRET_NAMES = re.compile(
    r"key|secret|token|passw|pwd|auth|cred|jwt|session|delegation|sign|connection_string|cookie|sig$|^x-",
    re.I,
)
_SECRET_VARIABLES = re.compile(r"(AWS|AZURE|GOOGLE|GCS|HF)_\w*(KEY|SECRET|TOKEN|PASSWORD)\w*")


def secrets_in(url: str, options: Mapping[str, Any]) -> frozenset[str]:
    """Return the secrets of a store's URL, options and environment."""
    found = {value for name, value in os.environ.items() if _SECRET_VARIABLES.fullmatch(name)}
    found.update(_secret_values(options))
    query = url.partition("?")[2]
    if strip_credentials(url) != url:
        found.update(value for name, value in parse_qsl(query) if _SECRET_NAMES.search(name))
    user, mark, _ = url.partition("://")[2].partition("/")[0].rpartition("@")
    if mark:
        found.update((user, *user.split(":")))
    found |= {unquote(secret) for secret in found}
    # To remove shorter ones would remove common words from messages.
    return frozenset(secret for secret in found if len(secret) >= 8)


def _secret_values(options: Mapping[Any, Any]) -> Iterator[str]:
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _secret_values(value)
        elif isinstance(value, (tuple, list)) and _SECRET_NAMES.search(str(name)):
            yield from map(str, value)  # such as a name and a password
        elif isinstance(value, str) and _SECRET_NAMES.search(str(name)):
            yield value
            if name == "connection_string":
                yield from (item.partition("=")[2] for item in value.split(";") if "Key=" in item)


def redact(text: str, secrets: Collection[str]) -> str:
    """Remove credentials from a message: those in URLs, and known ones.

    Example:
        >>> redact("key AKIAEXAMPLE is unknown at https://host/a?sig=abc", {"AKIAEXAMPLE"})
        'key *** is unknown at https://host/a'
    """
    text = strip_credentials(text)
    for secret in secrets:
        text = text.replace(secret, "***")
    return text
