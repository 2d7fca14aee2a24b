"""Byte ranges of S3 servers without TLS, by URLs that obstore signs and :class:`PlainHttp` asks for."""

from __future__ import annotations

import http.client
from dataclasses import replace
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from energon_stream.errors import StorageError
from energon_stream.storage._answers import (
    another_range,
    answer_error,
    broken,
    error_code,
    not_partial,
    short_body,
    stalled,
)
from energon_stream.storage._obstore_client import make_client
from energon_stream.storage._obstore_target import StaticCredentials, Target
from energon_stream.storage._plain_http import Answer, PlainHttp, goes_straight
from energon_stream.storage.attempts import AnswerUnwanted, is_answer_wanted
from energon_stream.storage.base import Body, ByteRange

__all__ = ["SignedReads", "signed_reads"]

_VALID = timedelta(minutes=15)
_MAY_BE_THE_SIGNATURE = {301, 302, 307, 308, 400, 401, 403, 405, 501}


class SignedReads:
    """Reads byte ranges of one target.

    A signature in the URL is part of S3, but a bucket's policy may refuse it. Until it has worked once, it is
    therefore for the caller to find out whether such a refusal was meant.

    Args:
        target: Bucket, server, credentials.

    Attributes:
        gave_up: Whether to read in another way.
    """

    def __init__(self, target: Target) -> None:
        config, options = dict(target.config), dict(target.client_options)
        self._endpoint = target.endpoint
        self._is_anonymous = bool(config["skip_signature"])
        if self._is_anonymous:  # obstore does not hand out URLs without a signature
            config["skip_signature"] = False
            target = replace(
                target, config=tuple(config.items()), credentials=StaticCredentials("-", "-", None)
            )
        self._signer: Any = make_client(target)
        self._http = PlainHttp(
            urlsplit(config["endpoint"]).netloc,
            _seconds(options["connect_timeout"]),
            _seconds(options["read_timeout"]),
        )
        self._has_worked = False
        self.gave_up = False

    def get_into(
        self, key: str, byte_range: ByteRange, into: memoryview, etag: str | None, *, where: str
    ) -> Body | None:
        """Read a byte range; see :func:`energon_stream.storage.into.get_into`.

        Args:
            key: Key of the object.
            byte_range: The range; not empty.
            into: As many bytes.
            etag: Content version that the object must have.
            where: URL of the object, for messages.

        Returns:
            The body; None where the server, or the search for credentials, refuses what another way of asking may get.

        Raises:
            AnswerUnwanted: Another request was faster.
            StorageError: As for every store.
        """
        headers = {"Range": f"bytes={byte_range.start}-{byte_range.stop - 1}"}
        if etag is not None:
            headers["If-Match"] = etag
        target = self._sign(key)
        if target is None:
            return None
        try:
            answer = self._http.get_into(target, headers, into, is_answer_wanted)
        except TimeoutError as error:
            raise stalled(where=where, endpoint=self._endpoint) from error
        except (OSError, http.client.HTTPException) as error:
            problem = str(error) or type(error).__name__
            raise broken(problem, where=where, endpoint=self._endpoint) from error
        if answer is None:
            raise AnswerUnwanted
        if answer.status in _MAY_BE_THE_SIGNATURE and not self._has_worked:
            return None
        if answer.status != http.client.PARTIAL_CONTENT or answer.start is None:
            raise self._error(answer, where)
        if answer.start != byte_range.start or answer.size > len(byte_range):
            raise another_range(f"{answer.size} bytes from {answer.start}", where)
        if answer.size != len(byte_range):
            raise short_body(byte_range, f"{answer.total_size} bytes", where)
        self._has_worked = True
        is_weak = answer.etag is not None and answer.etag.startswith("W/")
        return Body(into, None if is_weak else answer.etag, answer.total_size)

    def _sign(self, key: str) -> str | None:
        """Path and query; signed for each request, which takes 10 us, because credentials change."""
        import obstore

        try:
            url = urlsplit(obstore.sign(self._signer, "GET", key, _VALID))
        except Exception:  # no credentials: obstore's own request says it better
            return None
        return url.path if self._is_anonymous else f"{url.path}?{url.query}"

    def _error(self, answer: Answer, where: str) -> StorageError:
        if 200 <= answer.status < 300:
            return not_partial(where)
        code, message = error_code(answer.message)
        return answer_error(answer.status, code, message, where=where, endpoint=self._endpoint)


def signed_reads(target: Target) -> SignedReads | None:
    """Reads of a target; None for one that is not S3 without TLS, or behind a proxy."""
    endpoint = str(dict(target.config).get("endpoint", ""))
    if target.kind != "s3" or not goes_straight(endpoint):
        return None
    return SignedReads(target)


def _seconds(duration: str) -> float:
    """What :mod:`_obstore_target` writes."""
    return float(duration.removesuffix("s"))
