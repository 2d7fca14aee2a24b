"""Text for terminals and messages, without what steers a terminal, hides text or reveals credentials."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import islice
from typing import Any

# Control characters, signs that turn the direction of text, and halves of characters that are not UTF-8.
_HIDDEN = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f"
)
_in_text = re.compile(f"[{_HIDDEN}]")
_in_line = re.compile(f"[\t\n{_HIDDEN}]")

# Passwords may have slashes and at signs; what looks like a port is none.
_USER_INFO = re.compile(
    r"(?<=://)(?<!dss://)(?:[^/\s\"'<>]*@|[^/@:\s]{0,300}:(?!\d*[/?#])[^@\s\"'<>]{0,300}@)"
)
_QUERY = re.compile(r"https?://[^\s\"'<>]+|\?[^\s\"'<>?]+", re.IGNORECASE)
_END = re.compile(r"[?#]")
_SECRET = re.compile(
    r"(sig|token|key|secret|passw|pwd|auth|cred|jwt|session|delegation|x-amz-|x-goog-)[\w.%-]{0,40}=",
    re.IGNORECASE,
)


def _without_query(match: re.Match[str]) -> str:
    if match[0][0] != "?":
        return _END.split(match[0], maxsplit=1)[0]
    return "" if _SECRET.search(match[0]) else match[0]


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


def printable(text: str) -> str:
    r"""Return a text with its control characters written out, except for tabs and the ends of lines.

    Example:
        >>> print(printable("a\x1b]0;title\x07b\nc"))
        a\x1b]0;title\x07b
        c
    """
    return _in_text.sub(_escape, text)


def printable_line(text: str) -> str:
    r"""Return one line: as :func:`printable`, with tabs and the ends of lines written out too.

    Example:
        >>> print(printable_line("shard\n.tar"))
        shard\n.tar
    """
    return _in_line.sub(_escape, text)


def strip_credentials(text: str) -> str:
    """Remove ``user:password@`` and queries from URLs, or from a message with URLs in it.

    Any query of a web address may be a secret, by whatever name. A key in a bucket may have a question mark;
    what follows is removed if a name in it is one of secrets.

    Example:
        >>> strip_credentials("no such object: https://me:secret@host/key?token=abc")
        'no such object: https://host/key'
    """
    return _QUERY.sub(_without_query, _USER_INFO.sub("", text))


def counted(number: int, noun: str) -> str:
    """Return a number with a noun that takes an ``s`` if there are several.

    Example:
        >>> counted(1, "worker"), counted(1200, "sample")
        ('1 worker', '1,200 samples')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def described(value: Any, items: int = 1000, characters: int = 1000, depth: int = 20) -> str:
    """Return a value in one line, or its size and form if it is large. Cuts lists, texts and what is deep.

    Example:
        >>> described({"raw": b"123", "words": ["a", "b", "c"]}, items=2)
        "{'raw': 3 bytes, 'words': ['a', 'b', … (3 items)]}"
    """
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"{len(value)} bytes"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{type(value).__name__}(shape={tuple(value.shape)}, dtype={value.dtype})"
    if hasattr(value, "mode") and hasattr(value, "size"):
        return f"{type(value).__name__}(mode={value.mode}, size={value.size})"
    if isinstance(value, (Mapping, list, tuple)):
        if not depth:
            return "…"
        more = f", … ({len(value)} items)" if len(value) > items else ""
        within = partial(described, items=items, characters=characters, depth=depth - 1)
        if isinstance(value, Mapping):
            shown = [f"{name!r}: {within(item)}" for name, item in islice(value.items(), items)]
            return "{" + ", ".join(shown) + more + "}"
        return "[" + ", ".join(map(within, value[:items])) + more + "]"
    text = repr(value)
    return text if len(text) <= characters else f"{text[:characters]}… ({len(text)} characters)"


def as_sentence(text: str) -> str:
    """Begin a text with a capital, unless it begins with a name such as ``max_gap`` or ``s3://``.

    Example:
        >>> as_sentence("check the path"), as_sentence("max_gap= is a number")
        ('Check the path', 'max_gap= is a number')
    """
    return text[:1].upper() + text[1:] if re.match(r"[a-z]+(?:[ ,:;']|$)", text) else text


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown name: the most similar known one, or all of them.

    Example:
        >>> nearest("wieght", ["path", "weight"])
        "did you mean 'weight'?"
    """
    names = sorted(known)
    near = difflib.get_close_matches(name[:80], names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known names: {', '.join(names)}"
