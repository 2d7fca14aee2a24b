"""Settings of stores, from options and the environment, as clients can send them.

Values often come with the end of a line, from a file or a secret of Kubernetes, or in quotation marks, from
an ``.env`` file. obstore's clients do not report such values: they panic.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from energon_stream.errors import ConfigError

ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")
KEY_VARIABLES = {
    "key": "AWS_ACCESS_KEY_ID",
    "secret": "AWS_SECRET_ACCESS_KEY",
    "token": "AWS_SESSION_TOKEN",
}

_ENDPOINT = re.compile(r"endpoint|_url$", re.IGNORECASE)
_CLEANED = re.compile(
    r"key|secret|token|(region|account)_name|endpoint_url|aws_(access_key_id|secret_access_key|session_token)"
    r"|(account|sas)_(key|token)|(tenant|client)_id|client_secret"
)
_REGION = re.compile(r"[\w.-]+", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NO_URL = re.compile(r"[^!#-&(-;=?-\[\]_a-z~]")  # no white space, quotation marks, characters beyond ASCII


def clean_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return storage options with clean endpoints, regions and credentials; see :func:`clean_setting`."""
    cleaned = dict(options)
    for name, value in options.items():
        if name == "client_kwargs" and isinstance(value, Mapping):
            cleaned[name] = clean_options(value)
        elif _CLEANED.fullmatch(name) and isinstance(value, (str, int, float, bytes)):
            cleaned[name] = clean_setting(name, value) or None
    return cleaned


def variable(*names: str) -> str | None:
    """Return the value of the first environment variable that is set, and more than white space."""
    found = (clean_setting(name, os.environ[name]) for name in names if name in os.environ)
    return next(filter(None, found), None)


def clean_setting(name: str, value: object) -> str:
    """Return a setting without white space around it, which may be nothing.

    Raises ConfigError, with the name of the option or variable, if no client could send the value.
    """
    if not isinstance(value, str):
        raise ConfigError(
            f"{name} must be text, not {type(value).__name__}", hint=f"write the value of {name} in quotes"
        )
    text = value.strip()
    problem, hint = "", f"check the value of {name}"
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        problem, hint = "begins and ends with a quotation mark", f"write the value of {name} without them"
    elif found := _CONTROL.search(text):
        problem = f"has the control character {found[0]!r}"
    elif text and _ENDPOINT.search(name):
        problem = _problem_of_url(text)
        text = re.sub("^[A-Za-z]+:", lambda scheme: scheme[0].lower(), text)
        hint = f"write {name} as https://host or http://host:port"
    elif text and "region" in name.lower() and not _REGION.fullmatch(text):
        problem = f"is {text!r}, which names no region"
    if problem:
        raise ConfigError(f"{name} {problem}", hint=hint)
    return text


def _problem_of_url(text: str) -> str:
    if found := _NO_URL.search(text):
        return f"has the character {found[0]!r}, which URLs have not"
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError as error:  # of the port, or of brackets
        return f"is no URL: {error}"
    if parts.scheme not in ("http", "https"):
        return "does not begin with http:// or https://"
    if not parts.hostname:
        return "names no host"
    return "has a query" if parts.query else ""
