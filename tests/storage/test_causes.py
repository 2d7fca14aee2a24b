"""Causes of failed connections, from errors of the clients' classes."""

import errno
import http.client
import socket
import ssl

import aiohttp
import botocore.exceptions as boto
import pytest
from aiohttp.client_reqrep import ConnectionKey

from energon_stream.storage import _causes
from energon_stream.storage._causes import cause_in, cause_in_chain

KEY = ConnectionKey("host", 443, True, None, None, None, None)
AT = {"endpoint_url": "https://host"}


def tls_error(reason):
    error = ssl.SSLError(1, "message")
    error.reason = reason
    return error


def caused(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (socket.gaierror(-2, "unknown"), "RESOLVE"),
        (aiohttp.ClientConnectorDNSError(KEY, OSError(-2, "unknown")), "RESOLVE"),
        (aiohttp.ClientConnectorError(KEY, ConnectionRefusedError(111, "refused")), "REFUSED"),
        (
            caused(boto.EndpointConnectionError(error="", **AT), ConnectionRefusedError(111, "refused")),
            "REFUSED",
        ),
        (OSError(errno.ENETUNREACH, "unreachable"), "NO_ROUTE"),
        (TimeoutError(errno.ETIMEDOUT, "timed out"), "NO_CONNECTION"),
        (boto.ConnectTimeoutError(**AT), "NO_CONNECTION"),
        (
            caused(boto.EndpointConnectionError(error="", **AT), aiohttp.ConnectionTimeoutError()),
            "NO_CONNECTION",
        ),
        (caused(aiohttp.ConnectionTimeoutError(), TimeoutError()), "NO_CONNECTION"),
        (TimeoutError(), "NO_ANSWER"),
        (boto.ReadTimeoutError(**AT), "NO_ANSWER"),
        (aiohttp.http_exceptions.BadStatusLine("SSH-2.0"), "NOT_HTTP"),
        (aiohttp.ClientConnectorSSLError(KEY, tls_error("WRONG_VERSION_NUMBER")), "NOT_TLS"),
        (aiohttp.ClientConnectorSSLError(KEY, tls_error("TLSV1_ALERT_INTERNAL_ERROR")), "TLS"),
        (aiohttp.ClientConnectorCertificateError(KEY, ssl.SSLCertVerificationError(1, "bad")), "CERTIFICATE"),
        (aiohttp.ClientOSError(errno.ECONNRESET, "reset"), "RESET"),
        (BrokenPipeError(errno.EPIPE, "broken"), "RESET"),
        (aiohttp.ServerDisconnectedError(), "CLOSED"),
        (http.client.RemoteDisconnected("closed"), "CLOSED"),
        (boto.IncompleteReadError(actual_bytes=1, expected_bytes=2), "CLOSED"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_the_innermost_error_that_tells_a_cause_counts(error, cause):
    assert cause_in_chain(error) == getattr(_causes, cause)


def test_other_errors_tell_no_cause():
    assert cause_in_chain(caused(ValueError("certificate"), OSError(errno.ENOSPC, "full"))) is None
    assert cause_in("Generic error") is None
