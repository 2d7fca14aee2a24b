"""Credentials from a function of the user: the storage option ``credential_provider``."""

from __future__ import annotations

import asyncio
import os
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from energon_stream.errors import ConfigError, TransientStorageError
from energon_stream.storage.settings import clean_setting

OPTION = "credential_provider"
FAILED = "the credential provider failed"
"""How the message of an error begins; obstore passes on nothing but the message."""

BETWEEN_RENEWALS = 1.0  # seconds; a provider may start a program or ask a server


class ProvidedCredentials:
    """Calls the user's function. It has the form of an obstore credential provider.

    Equal if the function is the same object, so that stores share a client. A failure is a
    TransientStorageError: what the function asks may be down, as a store may.
    """

    def __init__(self, function: Callable[[], Mapping[str, Any]]) -> None:
        if not callable(function):
            raise ConfigError(
                f"{OPTION} is a {type(function).__name__}", hint="pass a function without arguments"
            )
        self._function = function

    def __call__(self) -> dict[str, Any]:
        try:
            found = dict(self._function())
        except Exception as error:
            # Not its message, which may have secrets that nobody here knows.
            frames = traceback.extract_tb(error.__traceback__)
            place = f"{os.path.basename(frames[-1].filename)}, line {frames[-1].lineno}"
            problem = f"{FAILED} with {type(error).__name__} in {place}; call it to see the message"
            raise TransientStorageError(problem, answered=False) from None
        texts = {name: value for name, value in found.items() if isinstance(value, str)}
        found |= {name: clean_setting(f"{name} of the {OPTION}", value) for name, value in texts.items()}
        return {"expires_at": None, **found}

    fresh = __call__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProvidedCredentials) and other._function is self._function

    def __hash__(self) -> int:
        return id(self._function)


def use_in_session(session: Any, provider: ProvidedCredentials) -> None:
    """Have an aiobotocore session sign with the provider's credentials."""
    from aiobotocore.credentials import AioDeferredRefreshableCredentials

    async def refresh() -> dict[str, Any]:
        found = await asyncio.to_thread(provider)
        return {
            "access_key": found["access_key_id"],
            "secret_key": found["secret_access_key"],
            "token": found.get("token"),
            "expiry_time": (found["expires_at"] or datetime(9999, 1, 1, tzinfo=UTC)).isoformat(),
        }

    credentials = AioDeferredRefreshableCredentials(refresh_using=refresh, method=OPTION)
    # Seconds before the end of credentials at which s3fs asks for others.
    credentials._advisory_refresh_timeout = credentials._mandatory_refresh_timeout = 60
    session._credentials = credentials
