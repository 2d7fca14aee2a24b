"""``energon-stream prepare-media``: the size of images, into the index of a dataset or a plain folder."""

from __future__ import annotations

from typing import Any

import click
from tqdm import tqdm

from energon_stream.cli.options import (
    media_filter,
    media_options,
    path_argument,
    show_media,
    storage_option,
)
from energon_stream.errors import ConfigError
from energon_stream.index.media_tables import prepare_media as add_media

__all__ = ["prepare_media"]


@click.command()
@path_argument
@storage_option
@click.option("--progress/--no-progress", default=True, help="Show progress.")
@click.option("--num-workers", default=16, show_default=True, help="Batches of files that are read at once.")
@media_options
def prepare_media(
    path: str,
    storage_options: dict[str, Any] | None,
    progress: bool,
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
        raise ConfigError("one of the --media-metadata-by-… options is missing")
    with tqdm(unit="file", disable=not progress) as bar:
        report = add_media(
            path,
            chosen,
            workers=num_workers,
            storage_options=storage_options,
            progress=bar.update,
        )
    show_media(report)
