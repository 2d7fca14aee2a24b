"""Causes of failed connections in words, from the errors of clients. No text of a client is passed on."""

from __future__ import annotations

import errno
import re
import socket
import ssl

RESOLVE = "cannot resolve the name of the host"
REFUSED = "the connection was refused"
NO_ROUTE = "there is no route to the host"
NO_CONNECTION = "no connection in time"
NO_ANSWER = "no answer or no progress in time"
NOT_HTTP = "the server does not speak HTTP; is it another port?"
NOT_TLS = "the server does not speak TLS; is it http://, or another port?"
CERTIFICATE = "TLS failed: the certificate of the server is not accepted"
TLS = "TLS failed"
CLOSED = "the server closed the connection"
RESET = "the connection was reset"

# By patterns in the dump of Rust values that obstore's errors end with. The first that is found counts.
_DUMPED = tuple(
    (re.compile(pattern), cause)
    for pattern, cause in (
        (r"dns error", RESOLVE),
        (r"ConnectionRefused", REFUSED),
        (r"NetworkUnreachable|HostUnreachable", NO_ROUTE),
        (r"InvalidContentType|InvalidMessage|CorruptMessage", NOT_TLS),
        (r"InvalidCertificate|UnknownIssuer|NotValidForName|certificate", CERTIFICATE),
        (r"AlertReceived|HandshakeFailure|PeerIncompatible|PeerMisbehaved|rustls", TLS),
        (r"(?s)Connect,.*(TimedOut|deadline has elapsed)", NO_CONNECTION),
        (r"TimedOut|kind: Timeout|deadline has elapsed", NO_ANSWER),
        (r"Parse\(", NOT_HTTP),
        (r"ConnectionReset|BrokenPipe|ConnectionAborted", RESET),
        (r"IncompleteMessage|IncompleteBody|UnexpectedEof|ChannelClosed|ConnectionClosed", CLOSED),
    )
)
# By names of the classes of aiohttp, botocore, urllib3 and requests, which are not always installed.
_NAMED = (
    (("ClientConnectorDNSError", "NameResolutionError"), RESOLVE),
    (("ClientConnectorCertificateError",), CERTIFICATE),
    (("ConnectionTimeoutError", "ConnectTimeoutError", "ConnectTimeout"), NO_CONNECTION),
    (("ServerTimeoutError", "SocketTimeoutError", "ReadTimeoutError", "ReadTimeout"), NO_ANSWER),
    (("BadStatusLine", "BadHttpMessage", "HttpProcessingError", "BadHttpMethod"), NOT_HTTP),
    (("ClientConnectorSSLError", "ClientSSLError"), NOT_TLS),
    (("IncompleteRead", "IncompleteReadError", "ClientPayloadError", "ResponseStreamingError"), CLOSED),
    (("ServerDisconnectedError", "ConnectionClosedError", "RemoteDisconnected"), CLOSED),
)
_NUMBERED = {
    errno.ECONNREFUSED: REFUSED,
    errno.ECONNRESET: RESET,
    errno.EPIPE: RESET,
    errno.ETIMEDOUT: NO_CONNECTION,
    errno.ENETUNREACH: NO_ROUTE,
    errno.EHOSTUNREACH: NO_ROUTE,
}
_FOREIGN = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNEXPECTED_MESSAGE")
_DEEPEST = 12  # causes of causes that are looked at


def cause_in_dump(dump: str) -> str | None:
    """Return the cause that an obstore error's dump tells; None if it tells none."""
    return next((cause for pattern, cause in _DUMPED if pattern.search(dump)), None)


def cause_in_chain(error: BaseException) -> str | None:
    """Return the cause that an error, or one of its causes, tells; None if they tell none.

    The innermost error that tells one counts, because clients wrap the system's errors.
    """
    found = None
    looked: BaseException | None = error
    for _ in range(_DEEPEST):
        if looked is None:
            break
        cause = _cause(looked)
        if found is None or cause not in (None, NO_ANSWER):  # a bare TimeoutError may be of a connection
            found = cause
        nested = getattr(looked, "os_error", None) or getattr(looked, "__cause__", None)
        looked = nested if isinstance(nested, BaseException) else looked.__context__
    return found


def _cause(error: BaseException) -> str | None:
    if isinstance(error, socket.gaierror):
        return RESOLVE
    if isinstance(error, ssl.SSLCertVerificationError):
        return CERTIFICATE
    if isinstance(error, ssl.SSLError) and not hasattr(error, "os_error"):  # else aiohttp's, around another
        return NOT_TLS if getattr(error, "reason", None) in _FOREIGN else TLS
    names = {base.__name__ for base in type(error).__mro__}
    for candidates, cause in _NAMED:
        if not names.isdisjoint(candidates):
            return cause
    if isinstance(error, TimeoutError):
        return NO_ANSWER
    return _NUMBERED.get(error.errno or 0) if isinstance(error, OSError) else None
