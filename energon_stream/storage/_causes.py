"""Causes of failed connections in words, from the errors of clients. No text of a client is passed on."""

from __future__ import annotations

import errno
import re

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

# The first pattern that is found counts. They match the dump of Rust values that obstore's errors end with,
# and descriptions of Python's errors: names of their classes (aiohttp, botocore, urllib3 and requests are not
# always installed), of their number, and OpenSSL's reason.
_CAUSES = tuple(
    (re.compile(pattern), cause)
    for pattern, cause in (
        (r"dns error|gaierror|DNSError|NameResolutionError", RESOLVE),
        (r"CertificateError|CertVerificationError", CERTIFICATE),
        (r"ConnectionRefused|ECONNREFUSED", REFUSED),
        (r"NetworkUnreachable|HostUnreachable|ENETUNREACH|EHOSTUNREACH", NO_ROUTE),
        (r"InvalidContentType|InvalidMessage|CorruptMessage", NOT_TLS),
        (r"WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE|UNEXPECTED_MESSAGE|ClientSSLError", NOT_TLS),
        (r"InvalidCertificate|UnknownIssuer|NotValidForName|certificate", CERTIFICATE),
        (r"AlertReceived|HandshakeFailure|PeerIncompatible|PeerMisbehaved|rustls|SSLError", TLS),
        (r"(?s)Connect,.*(TimedOut|deadline has elapsed)", NO_CONNECTION),
        (r"ConnectionTimeoutError|ConnectTimeout|ETIMEDOUT", NO_CONNECTION),
        (r"TimedOut|kind: Timeout|deadline has elapsed|TimeoutError|ReadTimeout", NO_ANSWER),
        (r"ServerDisconnected|ConnectionClosed|RemoteDisconnected", CLOSED),
        (r"Parse\(|BadStatusLine|BadHttpMessage|HttpProcessingError|BadHttpMethod", NOT_HTTP),
        (r"ConnectionReset|BrokenPipe|ConnectionAborted|ECONNRESET|EPIPE", RESET),
        (r"IncompleteMessage|IncompleteBody|UnexpectedEof|ChannelClosed", CLOSED),
        (r"IncompleteRead|ClientPayloadError|ResponseStreamingError", CLOSED),
    )
)


def cause_in(text: str) -> str | None:
    """Return the cause that an error's description tells; None if it tells none."""
    return next((cause for pattern, cause in _CAUSES if pattern.search(text)), None)


def cause_in_chain(error: BaseException) -> str | None:
    """Return the cause that the innermost of an error's causes tells: clients wrap the system's errors."""
    found = None
    looked: BaseException | None = error
    for _ in range(12):  # causes of causes
        if looked is None:
            break
        cause = cause_in(_describe(looked))
        if found is None or cause not in (None, NO_ANSWER):  # a bare TimeoutError may be of a connection
            found = cause
        nested = getattr(looked, "os_error", None) or getattr(looked, "__cause__", None)
        looked = nested if isinstance(nested, BaseException) else looked.__context__
    return found


def _describe(error: BaseException) -> str:
    names = [base.__name__ for base in type(error).__mro__]
    number, reason = getattr(error, "errno", None), getattr(error, "reason", None)
    return " ".join([*names, errno.errorcode.get(number or 0, ""), reason if isinstance(reason, str) else ""])
