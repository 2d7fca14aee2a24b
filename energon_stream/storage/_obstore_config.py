"""Configuration of obstore clients from URL, fsspec-style options and environment. No request is made."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

from energon_stream.errors import AccessDeniedError, UnsupportedStoreError
from energon_stream.storage.url import strip_credentials, url_scheme

_Items = tuple[tuple[str, Any], ...]

_KINDS: dict[str, Literal["s3", "gcs", "azure", "http"]] = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gcs",
    "gcs": "gcs",
    "az": "azure",
    "abfs": "azure",
    "abfss": "azure",
    "http": "http",
    "https": "http",
}
# Option names of fsspec's packages (gcsfs, adlfs), and obstore's.
_GCS_NAMES = {"anon": "skip_signature", "token": "service_account"}
_AZURE_NAMES = {
    "anon": "skip_signature",
    "account_name": "account_name",
    "account_key": "account_key",
    "sas_token": "sas_token",
    "tenant_id": "tenant_id",
    "client_id": "client_id",
    "client_secret": "client_secret",
}
_CONNECTION_STRING_NAMES = {
    "AccountName": "account_name",
    "AccountKey": "account_key",
    "SharedAccessSignature": "sas_token",
    "BlobEndpoint": "endpoint",
}


@dataclass(frozen=True, slots=True)
class StaticCredentials:
    """Credentials that do not expire, as an obstore credential provider."""

    key: str = field(repr=False)
    secret: str = field(repr=False)
    token: str | None = field(repr=False)

    def __call__(self) -> dict[str, Any]:
        return {
            "access_key_id": self.key,
            "secret_access_key": self.secret,
            "token": self.token,
            "expires_at": None,
        }


@dataclass(frozen=True, slots=True)
class SessionCredentials:
    """Credentials of an AWS profile (files, SSO, assumed roles), refreshed by botocore."""

    profile: str | None

    def __call__(self) -> dict[str, Any]:
        from datetime import datetime, timedelta

        found = _aws_session(self.profile).get_credentials()
        if found is None:
            raise AccessDeniedError(
                "no AWS credentials were found",
                hint="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile, or pass anon=True.",
            )
        frozen = found.get_frozen_credentials()
        # botocore refreshes expired credentials when asked; this has obstore ask every five minutes.
        expires = datetime.now(UTC) + timedelta(minutes=5)
        return StaticCredentials(frozen.access_key, frozen.secret_key, frozen.token)() | {
            "expires_at": expires
        }


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Configuration of a client; equal configurations share one."""

    kind: Literal["s3", "gcs", "azure", "http"]  # kind of obstore's store
    root: str  # bucket, container, or ``scheme://host``
    settings: _Items = field(default=(), repr=False)  # items of the store's configuration
    client_options: _Items = field(default=(), repr=False)  # items of the HTTP client's options
    # Credential provider, or None for obstore's own search.
    credentials: StaticCredentials | SessionCredentials | None = None
    endpoint: str = ""  # server, for error messages


def resolve_config(url: str, options: Mapping[str, Any]) -> tuple[ClientConfig, str]:
    """Return the client configuration for a URL, and the path below the client's root. Raises
    UnsupportedStoreError if obstore cannot open the URL, or honour an option, and AccessDeniedError if the
    AWS profile does not exist.
    """
    scheme = url_scheme(url)
    kind = _KINDS.get(scheme)
    rest = url.partition("://")[2]
    authority, _, path = rest.partition("/")
    if kind is None or not authority or "::" in url or "@" in authority or (kind == "http" and "?" in rest):
        raise UnsupportedStoreError(
            "the obstore transport does not know this kind of URL",
            where=strip_credentials(url),
            hint="Use transport='auto' or 'fsspec'.",
        )
    left = {name: value for name, value in options.items() if value is not None}
    if kind == "s3":
        config = _s3(authority, left)
    elif kind == "http":
        headers = left.pop("headers", None)
        client = {"default_headers": tuple(sorted(headers.items()))} if headers else {}
        host = f"{scheme}://{authority}"
        config = ClientConfig("http", host, (), _client_options(host, client), None, host)
        path = unquote(path)
    elif kind == "gcs":
        config = _gcs(authority, left, url)
    else:
        config = _azure(authority, left)
    if left:
        raise _unsupported(sorted(left), url)
    return config, path.strip("/")


def _s3(bucket: str, left: dict[str, Any]) -> ClientConfig:
    client_kwargs = dict(left.pop("client_kwargs", {}))
    config_kwargs = dict(left.pop("config_kwargs", {}))
    s3_config = dict(config_kwargs.pop("s3", {}))
    environment = os.environ.get
    anon = left.pop("anon", False)
    profile = left.pop("profile", None)
    key = left.pop("key", None) or client_kwargs.pop("aws_access_key_id", None)
    secret = left.pop("secret", None) or client_kwargs.pop("aws_secret_access_key", None)
    token = left.pop("token", None) or client_kwargs.pop("aws_session_token", None)
    if not key and not profile:  # a requested profile outranks the environment, as with botocore
        key, secret = environment("AWS_ACCESS_KEY_ID"), environment("AWS_SECRET_ACCESS_KEY")
        token = environment("AWS_SESSION_TOKEN")
    endpoint = (
        left.pop("endpoint_url", None)
        or client_kwargs.pop("endpoint_url", None)
        or environment("AWS_ENDPOINT_URL_S3")
        or environment("AWS_ENDPOINT_URL")
    )
    region = (
        client_kwargs.pop("region_name", None)
        or environment("AWS_REGION")
        or environment("AWS_DEFAULT_REGION")
    )
    credentials: StaticCredentials | SessionCredentials | None = None
    if key and secret:
        credentials = StaticCredentials(key, secret, token or None)
    if not (endpoint and region and (credentials or anon)) and _asks_for_botocore(profile):
        session = _aws_session(profile)
        endpoint = endpoint or _profile_endpoint(session)
        region = region or session.get_config_variable("region")
        credentials = credentials or SessionCredentials(profile)

    config: dict[str, Any] = {"region": region or "us-east-1", "skip_signature": bool(anon)}
    client: dict[str, Any] = {}
    virtual = s3_config.pop("addressing_style", "auto") == "virtual"
    if endpoint:
        endpoint = endpoint.rstrip("/")
        if virtual:  # then obstore wants the bucket in the endpoint
            scheme, _, host = endpoint.partition("://")
            config["endpoint"] = f"{scheme}://{bucket}.{host}"
        else:
            config["endpoint"] = endpoint
        if environment("AWS_ENDPOINT_URL_S3"):  # obstore would prefer the variable to our endpoint
            config["aws_endpoint_url_s3"] = config["endpoint"]
    config["virtual_hosted_style_request"] = virtual
    if left.pop("requester_pays", False):
        config["request_payer"] = True
    for name in ("connect_timeout", "read_timeout"):
        if name in config_kwargs:
            client[name] = f"{config_kwargs.pop(name)}s"
    verify = client_kwargs.pop("verify", None)
    bundle = verify if isinstance(verify, str) else environment("AWS_CA_BUNDLE")
    if verify is False:
        client["allow_invalid_certificates"] = True
    elif bundle:
        client["root_certificate"] = Path(bundle).read_text()
    # The remaining options are those that obstore cannot honour.
    left.update(client_kwargs | config_kwargs | s3_config)
    return ClientConfig(
        "s3",
        bucket,
        tuple(sorted(config.items())),
        _client_options(endpoint or "", client),
        None if anon else credentials,
        endpoint or f"AWS, region {config['region']}",
    )


def _gcs(bucket: str, left: dict[str, Any], url: str) -> ClientConfig:
    if left.get("token") == "anon":
        left["anon"] = bool(left.pop("token"))
    elif not str(left.get("token", ".json")).endswith(".json"):
        raise _unsupported(["token"], url)
    endpoint = os.environ.get("GOOGLE_BASE_URL", "")
    # Emulators offer the API that gcsfs uses, not the one of obstore.
    if not endpoint and os.environ.get("STORAGE_EMULATOR_HOST"):
        raise _unsupported(["STORAGE_EMULATOR_HOST"], url)
    config = dict(_renamed(left, _GCS_NAMES)) | ({"base_url": endpoint} if endpoint else {})
    return ClientConfig(
        "gcs", bucket, tuple(sorted(config.items())), _client_options(endpoint), None, endpoint or "GCS"
    )


def _azure(container: str, left: dict[str, Any]) -> ClientConfig:
    text = left.pop("connection_string", None)
    if text is None and not left:  # passed options outrank the environment
        text = os.environ.get("AZURE_STORAGE_CONNECTION_STRING")
    config = dict(_renamed(left, _AZURE_NAMES))
    if text:
        given = dict(item.partition("=")[::2] for item in text.split(";") if item)
        config |= {name: given[key] for key, name in _CONNECTION_STRING_NAMES.items() if key in given}
        if "endpoint" not in config and "account_name" in config:
            protocol = given.get("DefaultEndpointsProtocol", "https")
            suffix = given.get("EndpointSuffix", "core.windows.net")
            config["endpoint"] = f"{protocol}://{config['account_name']}.blob.{suffix}"
    endpoint = str(config.get("endpoint", ""))
    return ClientConfig(
        "azure",
        container,
        tuple(sorted(config.items())),
        _client_options(endpoint),
        None,
        endpoint or "Azure",
    )


def _client_options(endpoint: str, options: Mapping[str, Any] | None = None) -> _Items:
    defaults = {
        "connect_timeout": "5s",
        "read_timeout": "20s",  # without progress
        "timeout": "1h",  # for a whole request; obstore's default of 30 s would end large slow reads
        "allow_http": endpoint.startswith("http://"),
    }
    return tuple(sorted((defaults | dict(options or {})).items()))


def _renamed(left: dict[str, Any], names: Mapping[str, str]) -> _Items:
    return tuple(sorted((names[name], left.pop(name)) for name in list(left) if name in names))


def _unsupported(names: list[str], url: str) -> UnsupportedStoreError:
    return UnsupportedStoreError(
        f"the obstore transport cannot honour the storage options {names}",
        where=strip_credentials(url),
        hint="Use transport='auto' or 'fsspec'.",
    )


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
        raise AccessDeniedError(
            str(error), hint="Check AWS_PROFILE or the 'profile' storage option."
        ) from error
    return session


def _profile_endpoint(session: Any) -> str | None:
    from botocore.configprovider import ConfiguredEndpointProvider

    found: str | None = ConfiguredEndpointProvider(
        full_config=session.full_config, scoped_config=session.get_scoped_config(), client_name="s3"
    ).provide()
    return found
