"""``energon-stream prepare-media``: add the size of images to the index of a dataset or a plain folder."""

from __future__ import annotations

from typing import Any

import click

from energon_stream.cli.options import (
    media_filter,
    media_options,
    path_argument,
    progress_option,
    show_media,
    storage_option,
)
from energon_stream.errors import ConfigError
from energon_stream.index.media_tables import prepare_media as add_media
from energon_stream.progress import Progress


@click.command()
@path_argument
@storage_option
@progress_option
@click.option(
    "--num-workers", default=16, show_default=True, help="Number of batches of files that are read at once."
)
@media_options
def prepare_media(
    path: str,
    storage_options: dict[str, Any] | None,
    progress: bool | None,
    num_workers: int,
    media_metadata_by_glob: str | None,
    media_metadata_by_header: bool,
    media_metadata_by_extension: bool,
) -> None:
    """Index the size of images in a prepared dataset or a plain folder.

    PATH is local, s3://… or any other fsspec URL. Needs one of the --media-metadata-by-… options. Audio and
    video files are skipped.
    """
    chosen = media_filter(media_metadata_by_glob, media_metadata_by_header, media_metadata_by_extension)
    if chosen is None:
        raise ConfigError("no --media-metadata-by-… option is given", hint="Give one of them.")
    with Progress(unit="file", enabled=progress) as shown:
        report = add_media(
            path,
            chosen,
            workers=num_workers,
            storage_options=storage_options,
            progress=shown.advance,
        )
    show_media(report)
