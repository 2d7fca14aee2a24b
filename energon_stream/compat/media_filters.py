"""Filters of media files, and the preparing of plain folders, under Megatron-Energon's names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import BinaryIO, TypeAlias, Union

from energon_stream.compat.epath import EPath
from energon_stream.errors import ConfigError
from energon_stream.media.metadata import MediaMetadataBase
from energon_stream.prepare.media_headers import MediaFilter, read_image
from energon_stream.prepare.media_tables import prepare_media
from energon_stream.progress import Progress

SourceData: TypeAlias = Union[bytes, EPath, BinaryIO]  # noqa: UP007 # evaluated
"""A media file: its bytes, its path, or an open file."""


class MediaFilterStrategy(StrEnum):
    """Rule by which media files are selected."""

    EXTENSION = "EXTENSION"
    HEADER = "HEADER"
    GLOB = "GLOB"


@dataclass(frozen=True, slots=True, init=False)
class MediaFilterConfig(MediaFilter):
    """Selects media files by extension, by the first bytes, or by patterns of names.

    Raises ConfigError if ``GLOB`` has no patterns, or another strategy has some.
    """

    def __init__(self, strategy: MediaFilterStrategy | str, patterns: Sequence[str] = ()) -> None:
        object.__setattr__(self, "strategy", MediaFilterStrategy(strategy).value)
        object.__setattr__(self, "patterns", tuple(patterns))
        MediaFilter.__post_init__(self)

    @classmethod
    def parse(cls, glob: str | None, header: bool, extension: bool) -> MediaFilterConfig:
        """Make a filter from the options of a command. Raises ConfigError unless one of them is given."""
        if (glob is not None) + header + extension != 1:
            raise ConfigError("a media filter is needed", hint="use one of glob, header and extension")
        if glob is not None:
            return cls(MediaFilterStrategy.GLOB, glob.split(","))
        return cls(MediaFilterStrategy.HEADER if header else MediaFilterStrategy.EXTENSION)

    def should_consider_all(self) -> bool:
        """Return True if all files are looked at."""
        return self.strategy == "HEADER"

    def should_consider_media(self, name: str) -> bool:
        """Return True if a file of this name is looked at."""
        return self.matches(name)

    def extract_metadata(self, source: SourceData, filename: str | None = None) -> MediaMetadataBase | None:
        """Read the metadata of an image; return None for other files and names that do not match.

        Raises ConfigError if bytes or an open file have no ``filename``.
        """
        if isinstance(source, EPath):
            filename = source.name if filename is None else filename
        if filename is None:
            raise ConfigError("the media file has no name", hint="pass filename=")
        if not self.matches(filename):
            return None
        if isinstance(source, bytes):
            return read_image(source)
        return read_image(source.read_bytes() if isinstance(source, EPath) else source.read())


def prepare_filesystem_dataset(
    root_path: EPath,
    media_filter: MediaFilterConfig,
    *,
    progress: bool,
    workers: int = 16,
    index_sqlite_tmp_path: str | os.PathLike[str] | None = None,
) -> int:
    """Index the metadata of the media files of a plain folder, and return their number.

    ``progress`` shows a bar, and ``workers`` batches of files are read at the same time.
    """
    with Progress(unit="file", enabled=progress) as shown:
        report = prepare_media(
            os.fspath(root_path),
            media_filter,
            workers=workers,
            progress=shown.advance,
            tmp_path=index_sqlite_tmp_path,
        )
    return report.stored
