"""Settings of stores, from options and the environment, as clients can send them.

Values often come with the end of a line, from a file or a secret of Kubernetes, or in quotation marks, from
an ``.env`` file. obstore's clients do not report such values: they panic.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from energon_stream.errors import ConfigError
from energon_stream.imports import LazyModule

_request: Any = LazyModule("urllib.request")  # with http.client and ssl
_ssl: Any = LazyModule("ssl")

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
_OF_A_HOST = re.compile(r"region|account(?=_?name)|tenant(?=_id)", re.IGNORECASE)  # or of a path
_PART_OF_A_HOST = re.compile(r"(?!.*xn--)[\w.-]+", re.ASCII)
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
    """Return a setting without white space around it, which may be nothing."""
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
        found = _NO_URL.search(text)
        problem = f"has the character {found[0]!r}, which URLs have not" if found else problem_of_url(text)
        text = re.sub("^[A-Za-z]+:", lambda scheme: scheme[0].lower(), text)
        hint = f"write {name} as https://host or http://host:port"
    elif text and (part := _OF_A_HOST.search(name)) and not _PART_OF_A_HOST.fullmatch(text):
        problem = f"is {text!r}, which names no {part[0].lower()}"
    if problem:
        raise ConfigError(f"{name} {problem}", hint=hint)
    return text


class Proxy(NamedTuple):
    """The proxy that the environment names for the scheme of a URL."""

    url: str
    host: str  # of the server
    is_used: bool  # False if ``NO_PROXY`` excludes the server


def find_proxy(url: str) -> Proxy | None:
    """Return the proxy for a server, by the same rules for all transports.

    ``NO_PROXY`` may have hosts, with or without a port, ends of hosts, networks (10.0.0.0/8), and ``*``.
    """
    parts, named = urlsplit(url), _request.getproxies_environment()
    proxy, host = named.get(parts.scheme) or named.get("all"), parts.hostname or ""
    if not proxy or not host or proxy.startswith("socks"):
        return None
    excluded = {item.strip() for item in named.get("no", "").split(",")}
    is_used = "*" not in excluded and not _request.proxy_bypass_environment(
        parts.netloc.rpartition("@")[2], named
    )
    for item in excluded if is_used else ():
        with suppress(ValueError):  # one of the two is a name
            is_used &= "/" not in item or ip_address(host) not in ip_network(item, strict=False)
    return Proxy(proxy if "://" in proxy else f"http://{proxy}", host, is_used)


def certificate_bundle(verify: object) -> str | None:
    """Return the certificates that the option ``verify`` or ``AWS_CA_BUNDLE`` names; None for the usual ones.

    Raises ConfigError if the file cannot be read, or has no certificate.
    """
    path = verify if isinstance(verify, str) else variable("AWS_CA_BUNDLE")
    if not path or verify is False:
        return None
    name = "client_kwargs.verify" if isinstance(verify, str) else "AWS_CA_BUNDLE"
    try:
        content = Path(path).read_text(encoding="latin-1")
    except OSError as error:
        problem = f"the certificates of {name} cannot be read: {error.strerror}"
        raise ConfigError(problem, where=path, hint="name a file of PEM certificates") from None
    if "-----BEGIN CERTIFICATE-----" not in content:
        problem = f"the file of {name} has no PEM certificate"
        raise ConfigError(problem, where=path, hint="convert it with `openssl x509 -inform der`")
    return content


def problem_of_url(text: str) -> str:
    """Return what keeps a client from sending requests to a server, after its name; nothing if it can."""
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError as error:  # of the port, or of brackets
        return f"is no URL: {error}"
    if parts.scheme not in ("http", "https"):
        return "does not begin with http:// or https://"
    if not parts.hostname:
        return "names no host"
    if "%" in parts.hostname:
        return "has the character '%' in the name of its host"
    if parts.hostname.rstrip(".").rpartition(".")[2][:1].isdecimal():  # no domain begins so
        try:
            ip_address(parts.hostname)
        except ValueError as error:
            return f"is no URL: {error}"
    return "has a query" if parts.query else ""


@lru_cache(maxsize=1)  # a bundle of the usual authorities takes 30 ms
def has_server_authority(bundle: str) -> bool:
    """Return whether a certificate is a server's and an authority's, as ``openssl req -x509`` makes it."""
    context = _ssl.SSLContext(_ssl.PROTOCOL_TLS_CLIENT)
    with suppress(_ssl.SSLError, ValueError):
        context.load_verify_locations(cadata=bundle.encode("ascii", "ignore").decode())
    names = (name for found in context.get_ca_certs() for name in found.get("subjectAltName", ()))
    return any(kind in ("DNS", "IP Address") for kind, _ in names)  # authorities may have an email address
