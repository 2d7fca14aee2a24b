"""Paths that name tars themselves, without a prepared folder around them: one tar, or many by braces."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from energon_stream.errors import ConfigError, MetadataError
from energon_stream.index.braces import expand
from energon_stream.storage import is_local, local_path, strip_credentials

__all__ = ["TarPaths", "is_compressed", "names_tars", "parse_tar_paths"]

_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".tar.lz4")


@dataclass(frozen=True, slots=True)
class TarPaths:
    """Tars below one folder.

    Attributes:
        root: Path or URL of the folder: all that comes before the last slash in front of the first brace.
        paths: The tars, relative to it, in the order in which a shell expands the braces.
    """

    root: str
    paths: tuple[str, ...]


def names_tars(url: str) -> bool:
    """Whether a path ends as tars do, braces included; compressed ones count, and are refused later."""
    return url.rstrip("}").endswith((".tar", *_COMPRESSED))


def is_compressed(path: str) -> bool:
    """Whether a path ends as compressed tars do, of which no byte range can be read."""
    return path.endswith(_COMPRESSED)


def parse_tar_paths(url: str) -> TarPaths:
    """Expand a path with or without braces, ``s3://bucket/train-{000..999}.tar``.

    Raises:
        ConfigError: The braces do not pair up, reach into the bucket's name, or name a tar twice; a name is
            that of no tar, or of a compressed one.
    """
    shown = strip_credentials(url)
    folder, slash, _ = url.partition("{")[0].rpartition("/")
    pattern = url[len(folder) + len(slash) :]
    if is_local(url):
        folder = local_path(folder or slash or ".")
    elif folder.endswith("/") or "://" not in folder:  # of "s3://bucket-{a,b}/x.tar", "s3:/" is left
        raise ConfigError(
            "the tars have no common bucket", where=shown, hint="Name one bucket, with braces in the path."
        )
    try:
        paths = expand([pattern], shown)
    except MetadataError as error:
        raise ConfigError(error.what, where=shown, hint="Write braces as {000..999} or {a,b}.") from error
    for path in paths:
        if is_compressed(path):
            raise ConfigError(
                f"{path!r} is compressed, so that no part of it can be read alone",
                where=shown,
                hint="Decompress the tars; images and the like hardly become larger.",
            )
        if not path.endswith(".tar"):
            raise ConfigError(f"{path!r} is no tar", where=shown, hint="All names must end in .tar.")
    twice = [path for path, times in Counter(paths).items() if times > 1]
    if twice:
        raise ConfigError(
            f"{twice[0]!r} is named twice", where=shown, hint="For more weight, use a metadataset."
        )
    return TarPaths(folder, tuple(paths))
