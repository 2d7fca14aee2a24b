"""Configuration of obstore clients from URL, fsspec-style options and environment. No request is made."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import unquote

from energon_stream.errors import AccessDeniedError, ConfigError, UnsupportedStoreError
from energon_stream.storage._provider import OPTION, ProvidedCredentials
from energon_stream.storage.settings import (
    ENDPOINT_VARIABLES,
    KEY_VARIABLES,
    REGION_VARIABLES,
    certificate_bundle,
    clean_options,
    clean_setting,
    find_proxy,
    has_server_authority,
    problem_of_url,
    variable,
)
from energon_stream.urls import url_scheme

_NO_NAME = re.compile(r"""[\s\x00-\x1f\x7f"<>\\^`{|}\ud800-\udfff]""")  # obstore panics at some of these

READ_TIMEOUT = "20s"
FIRST_READ_TIMEOUT = "9s"
"""Times without progress, after which a request is given up: the second until it has been too short once. A
server that never answers is so reported within ten seconds."""

# Option names of fsspec's packages (gcsfs, adlfs), and obstore's.
_GCS_NAMES = {"anon": "skip_signature", "token": "service_account"}
_AZURE_NAMES = {
    name: name
    for name in ("account_name", "account_key", "sas_token", "tenant_id", "client_id", "client_secret")
} | {"anon": "skip_signature"}
_CONNECTION_STRING_NAMES = {
    "AccountName": "account_name",
    "AccountKey": "account_key",
    "SharedAccessSignature": "sas_token",
    "BlobEndpoint": "endpoint",
}


@dataclass(frozen=True, slots=True)
class StaticCredentials:
    """Credentials that do not expire, as an obstore credential provider."""

    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    token: str | None = field(repr=False)

    def __call__(self) -> dict[str, Any]:
        return asdict(self) | {"expires_at": None}


@dataclass(frozen=True, slots=True)
class SessionCredentials:
    """Credentials of an AWS profile (files, SSO, assumed roles), refreshed by botocore."""

    profile: str | None

    def __call__(self) -> dict[str, Any]:
        found = _aws_session(self.profile).get_credentials()
        if found is None:
            raise AccessDeniedError("no AWS credentials were found")
        frozen = found.get_frozen_credentials()
        # botocore refreshes expired credentials when asked; this has obstore ask every five minutes.
        expires = datetime.now(UTC) + timedelta(minutes=5)
        static = StaticCredentials(frozen.access_key, frozen.secret_key, frozen.token)
        return static() | {"expires_at": expires}

    def fresh(self) -> dict[str, Any]:
        """Return what the files and services have now, not what was read earlier."""
        _cached_session.cache_clear()
        return self()


_Credentials: TypeAlias = StaticCredentials | SessionCredentials | ProvidedCredentials | None


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Configuration of a client; equal configurations share one."""

    kind: Literal["s3", "gcs", "azure", "http"]
    root: str  # bucket, container, or ``scheme://host``
    settings: Mapping[str, Any] = field(repr=False, hash=False)  # the store's configuration
    endpoint: str  # server, for error messages
    credentials: _Credentials = None  # a credential provider; None for obstore's own search
    client_options: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)  # of HTTP


def resolve_config(url: str, options: Mapping[str, Any]) -> tuple[ClientConfig, str]:
    """Return the client configuration for a URL, and the path below the client's root.

    Raises UnsupportedStoreError if obstore cannot open the URL, or honour an option, AccessDeniedError if the
    AWS profile does not exist, and ConfigError if a setting cannot be sent.
    """
    resolve = _RESOLVERS.get(url_scheme(url))
    rest = url.partition("://")[2]
    authority, _, path = rest.partition("/")
    is_http = resolve is _http
    if resolve is None or not authority or "::" in url or "@" in authority or (is_http and "?" in rest):
        raise _unsupported(url, "does not know this kind of URL")
    problem = problem_of_url(f"http://{authority}") if is_http else ""
    if found := _NO_NAME.search(authority):
        problem = f"has the character {found[0]!r}"
    if problem:
        raise ConfigError(f"the name of the bucket or host {problem}", where=url, hint="Check the URL.")
    left = {name: value for name, value in clean_options(options).items() if value is not None}
    provider = None if is_http or OPTION not in left else ProvidedCredentials(left.pop(OPTION))
    config = resolve(authority, left, url, provider)
    if left:
        raise _unsupported(url, f"cannot honour the storage options {sorted(left)}")
    return config, (unquote(path) if is_http else path).strip("/")


class Server(NamedTuple):
    """The server that gets the requests for an S3 URL."""

    endpoint: str
    bucket: str
    region: str  # that requests are signed for


def server_of(url: str, options: Mapping[str, Any]) -> Server | None:
    """Return the server of an S3 URL with storage options; None for other URLs.

    Raises UnsupportedStoreError if an option is unknown, or the URL is of another kind.

    Example:
        >>> from energon_stream.storage import server_of
        >>> server_of("s3://data/captions", {"endpoint_url": "http://127.0.0.1:4566"})
        Server(endpoint='http://127.0.0.1:4566', bucket='data', region='us-east-1')
    """
    if not url.startswith(("s3://", "s3a://")):
        return None
    config, _ = resolve_config(url, options)
    region = str(config.settings["region"])
    endpoint = config.endpoint if "://" in config.endpoint else f"https://s3.{region}.amazonaws.com"
    return Server(endpoint, config.root, region)


def _http(host: str, left: dict[str, Any], url: str, provider: None) -> ClientConfig:
    root = f"{url_scheme(url)}://{host}"
    headers = left.pop("headers", None)
    client = _proxy_options(root) | ({"default_headers": headers} if headers else {})
    return ClientConfig("http", root, {}, root, None, client)


def _s3(bucket: str, left: dict[str, Any], url: str, provider: ProvidedCredentials | None) -> ClientConfig:
    client_kwargs = dict(left.pop("client_kwargs", {}))
    config_kwargs = dict(left.pop("config_kwargs", {}))
    s3_config = dict(config_kwargs.pop("s3", {}))
    anon = left.pop("anon", False)
    profile = left.pop("profile", None)
    key = left.pop("key", None) or client_kwargs.pop("aws_access_key_id", None)
    secret = left.pop("secret", None) or client_kwargs.pop("aws_secret_access_key", None)
    token = left.pop("token", None) or client_kwargs.pop("aws_session_token", None)
    if not key and not profile:  # a requested profile outranks the environment, as with botocore
        key, secret, token = map(variable, KEY_VARIABLES.values())
    endpoint = left.pop("endpoint_url", None) or client_kwargs.pop("endpoint_url", None)
    endpoint = endpoint or variable(*ENDPOINT_VARIABLES)
    region = client_kwargs.pop("region_name", None) or variable(*REGION_VARIABLES)
    credentials: _Credentials = provider
    if provider is None and key and secret:
        credentials = StaticCredentials(key, secret, token or None)
    if not (endpoint and region and (credentials or anon)) and _asks_for_botocore(profile):
        session = _aws_session(profile)
        endpoint = endpoint or _profile_endpoint(session)
        region = region or session.get_config_variable("region")
        region = clean_setting("region of the AWS profile", region or "")
        credentials = credentials or SessionCredentials(profile)

    config: dict[str, Any] = {"region": region or "us-east-1", "skip_signature": bool(anon)}
    client: dict[str, Any] = {}
    virtual = s3_config.pop("addressing_style", "auto") == "virtual"
    if virtual and "xn--" in bucket.lower():
        raise _unsupported(url, "has no virtual hosts with 'xn--' in their names")
    if not endpoint and any(name in os.environ for name in ENDPOINT_VARIABLES):  # obstore would use the blank
        endpoint = f"https://s3.{config['region']}.amazonaws.com"
    if endpoint:
        endpoint = endpoint.rstrip("/")
        # With virtual hosts, obstore wants the bucket in the endpoint.
        config["endpoint"] = endpoint.replace("://", f"://{bucket}.", 1) if virtual else endpoint
        if "AWS_ENDPOINT_URL_S3" in os.environ:  # obstore would prefer the variable to our endpoint
            config["aws_endpoint_url_s3"] = config["endpoint"]
    config["virtual_hosted_style_request"] = virtual
    if left.pop("requester_pays", False):
        config["request_payer"] = True
    for name in ("connect_timeout", "read_timeout"):
        if name in config_kwargs:
            client[name] = f"{config_kwargs.pop(name)}s"
    verify = client_kwargs.pop("verify", None)
    if verify is False:
        client["allow_invalid_certificates"] = True
    elif bundle := certificate_bundle(verify):
        if not (endpoint or "").startswith("http://") and has_server_authority(bundle):
            what = "a certificate to trust is a server's and an authority's (CA:TRUE): obstore accepts no such server"
            raise UnsupportedStoreError(what, hint="Pass transport='auto', or make it with CA:FALSE.")
        client["root_certificate"] = bundle
    left.update(client_kwargs | config_kwargs | s3_config)  # what obstore cannot honour
    server = endpoint or f"AWS, region {config['region']}"
    client |= _proxy_options(endpoint or f"https://s3.{config['region']}.amazonaws.com")
    return ClientConfig("s3", bucket, config, server, None if anon else credentials, client)


def _proxy_options(url: str) -> dict[str, str]:
    """Return obstore's options for the proxy of a server. It has rules of its own for the environment."""
    proxy = find_proxy(url)
    if proxy is None:
        return {}
    return {"proxy_url": proxy.url} | ({} if proxy.is_used else {"proxy_excludes": proxy.host})


def _gcs(bucket: str, left: dict[str, Any], url: str, provider: ProvidedCredentials | None) -> ClientConfig:
    if left.get("token") == "anon":
        left["anon"] = bool(left.pop("token"))
    elif not str(left.get("token", ".json")).endswith(".json"):
        raise _unsupported(url, "cannot honour the storage options ['token']")
    endpoint = variable("GOOGLE_BASE_URL") or ""
    # Emulators offer the API that gcsfs uses, not the one of obstore.
    if not endpoint and os.environ.get("STORAGE_EMULATOR_HOST"):
        raise _unsupported(url, "cannot honour the storage options ['STORAGE_EMULATOR_HOST']")
    config = _renamed(left, _GCS_NAMES) | ({"base_url": endpoint} if endpoint else {})
    return ClientConfig("gcs", bucket, config, endpoint or "GCS", provider)


def _azure(
    container: str, left: dict[str, Any], url: str, provider: ProvidedCredentials | None
) -> ClientConfig:
    text = left.pop("connection_string", None)
    if text is None and not left:  # passed options outrank the environment
        text = os.environ.get("AZURE_STORAGE_CONNECTION_STRING")
    config = _renamed(left, _AZURE_NAMES)
    if text:
        given = dict(item.partition("=")[::2] for item in text.split(";") if item)
        names = {key: name for key, name in _CONNECTION_STRING_NAMES.items() if key in given}
        config |= {name: clean_setting(key, given[key]) for key, name in names.items()}
        if "endpoint" not in config and "account_name" in config:
            protocol = given.get("DefaultEndpointsProtocol", "https")
            suffix = given.get("EndpointSuffix", "core.windows.net")
            built = f"{protocol}://{config['account_name']}.blob.{suffix}"
            config["endpoint"] = clean_setting("endpoint of the connection string", built)
    for name in ("STORAGE_ACCOUNT_NAME", "STORAGE_ENDPOINT", "ENDPOINT", "STORAGE_TENANT_ID", "TENANT_ID"):
        variable(f"AZURE_{name}")  # which obstore takes by itself
    return ClientConfig("azure", container, config, str(config.get("endpoint") or "Azure"), provider)


# Each takes bucket or host, options, URL and credential provider, and removes the options that it honours.
_RESOLVERS: dict[str, Callable[[str, dict[str, Any], str, Any], ClientConfig]] = {
    **dict.fromkeys(("s3", "s3a"), _s3),
    **dict.fromkeys(("gs", "gcs"), _gcs),
    **dict.fromkeys(("az", "abfs", "abfss"), _azure),
    **dict.fromkeys(("http", "https"), _http),
}


def _renamed(left: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names[name]: left.pop(name) for name in list(left) if name in names}


def _unsupported(url: str, problem: str) -> UnsupportedStoreError:
    hint = "Use transport='auto' or 'fsspec'."
    return UnsupportedStoreError(f"the obstore transport {problem}", where=url, hint=hint)


def _asks_for_botocore(profile: str | None) -> bool:
    """Return whether some credentials may be configured that obstore's own search does not find."""
    if profile or os.environ.get("AWS_PROFILE") or os.environ.get("AWS_EC2_METADATA_DISABLED") == "true":
        return True
    files = (("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"), ("AWS_CONFIG_FILE", "~/.aws/config"))
    return any(os.path.exists(os.path.expanduser(os.environ.get(name, path))) for name, path in files)


def _aws_session(profile: str | None) -> Any:
    names = ("AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "HOME")
    return _cached_session(profile, tuple(os.environ.get(name) for name in names))


@functools.lru_cache(maxsize=16)
def _cached_session(profile: str | None, environment: tuple[str | None, ...]) -> Any:
    import botocore.exceptions
    import botocore.session  # slow to import, so only if a profile or file needs it

    session = botocore.session.Session(profile=profile)
    try:
        session.get_scoped_config()
    except botocore.exceptions.ProfileNotFound as error:
        hint = "Check AWS_PROFILE or the 'profile' storage option."
        raise AccessDeniedError(str(error), hint=hint) from error
    return session


def _profile_endpoint(session: Any) -> str | None:
    from botocore.configprovider import ConfiguredEndpointProvider

    configs = session.full_config, session.get_scoped_config()
    endpoint = ConfiguredEndpointProvider(*configs, "s3").provide()
    return clean_setting("endpoint_url of the AWS profile", endpoint) if endpoint else None
