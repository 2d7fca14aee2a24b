"""``energon-stream prepare`` and ``prepare-media``: index tars and images, and write the metadata."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from energon_stream.cli.options import (
    COUNT,
    SIZE,
    dataset_arguments,
    dataset_config_option,
    engine_options,
    find_chosen_engine,
    find_engine,
    flag,
    json_option,
    new_dataset_options,
    option,
    option_group,
    path_argument,
    progress_option,
    tmp_path_option,
)
from energon_stream.cli.terminal import echo, emit, wants_json
from energon_stream.conventions import conventions
from energon_stream.errors import ConfigError, CorruptTarError
from energon_stream.printable import counted, printable_line
from energon_stream.progress import Progress

if TYPE_CHECKING:
    from energon_stream.cli.dataset_yaml_wizard import Wizard
    from energon_stream.engine.tasks import TaskEngine
    from energon_stream.index.join_index import JoinReport
    from energon_stream.prepare.media_headers import MediaFilter
    from energon_stream.prepare.media_tables import MediaReport
    from energon_stream.prepare.prepare import PrepareReport
    from energon_stream.storage import ListEntry, Store

_SHOWN = 2


def _media_filter(
    media_metadata_by_glob: str | None, media_metadata_by_header: bool, media_metadata_by_extension: bool
) -> MediaFilter | None:
    from energon_stream.prepare.media_headers import MediaFilter

    if (media_metadata_by_glob is not None) + media_metadata_by_header + media_metadata_by_extension > 1:
        raise ConfigError("several --media-metadata-by-… options are given", hint="Give one of them.")
    if media_metadata_by_glob is not None:
        return MediaFilter("GLOB", tuple(media_metadata_by_glob.split(",")))
    if media_metadata_by_header:
        return MediaFilter("HEADER")
    return MediaFilter("EXTENSION") if media_metadata_by_extension else None


def _find_engine(engine: str, ray_address: str | None, processes: int | None) -> TaskEngine | None:
    """Return the engine; None for threads of this process, unless one is given."""
    source = click.get_current_context().get_parameter_source("engine")
    chosen = find_chosen_engine(engine, ray_address, processes)
    return chosen if source == ParameterSource.DEFAULT else chosen or find_engine(engine, ray_address, None)


_media_options = option_group(
    flag("--media-metadata-by-extension"),
    flag("--media-metadata-by-header"),
    option("--media-metadata-by-glob", metavar="PATTERN,…"),
    media_filter=_media_filter,
)
"""The options that select media files. The command gets ``media_filter``, None without any of them."""


_threads_option = option("--threads", "workers", type=COUNT, default=16)


@click.command()
@path_argument
@new_dataset_options
@option("--exclude", metavar="REGEX")
@_threads_option
@flag("--tar-index-only")
@flag("--shuffle-tars")
@_media_options
@flag("--fix-duplicates")
@flag("--checksums")
@flag("--non-interactive")
@flag("--force-overwrite", "force")
@flag("--append")
@flag("--skip-bad")
@engine_options(_find_engine)
@option("--max-gap", type=SIZE)
@flag("--skip-dataset-yaml")
@dataset_config_option
@json_option
def prepare(
    path: str,
    progress: bool | None,
    non_interactive: bool,
    skip_dataset_yaml: bool,
    sample_type: str | None,
    field_map: str | None,
    **options: Any,
) -> None:
    """Index a folder of tars, of .jsonl or of .parquet files, a .jsonl file, or the joins of a metadataset.

    PATH is local, s3://… or any other fsspec URL. The command asks for missing options. All options but
    --storage-option are for folders.
    """
    from energon_stream.cli.dataset_yaml_wizard import Wizard
    from energon_stream.index.dataset import dataset_kind
    from energon_stream.index.plain import find_shards
    from energon_stream.prepare.prepare import prepare_dataset
    from energon_stream.prepare.prepare_files import find_files
    from energon_stream.storage import StoreSpec

    kind, storage_options = dataset_kind(path), options["storage_options"]
    if kind == "tars":
        raise ConfigError("single tars cannot be prepared", where=path, hint="Name the folder of the tars.")
    if kind != "webdataset":
        if options["media_filter"] is not None:
            hint = "Leave out the --media-metadata-by-… options."
            raise ConfigError("media metadata needs a folder", where=path, hint=hint)
        (_prepare_joins if kind == "metadataset" else _prepare_file)(path, storage_options)
        return
    if options["split_patterns"] and options["split_ratio"]:
        raise ConfigError("both --split-pattern and --split-ratio are given", hint="Give one of them.")
    store = StoreSpec(path, storage_options).open()
    if files := find_files(list(store.list()), store.url):
        wizard = None if non_interactive or wants_json() else Wizard()
        options["force"] |= _may_overwrite(store, wizard)
        if options["split_ratio"] is None and options["split_patterns"] is None:
            options["split_ratio"] = _required(wizard, "--split-ratio or --split-pattern").ratio()
        if sample_type is not None:
            columns = _shown_columns(f"{store.url}/{files[0]}", storage_options)
            options["dataset_yaml"] = _document(wizard, sample_type, field_map, columns)
        with Progress(unit="file", enabled=progress) as shown:
            report = prepare_dataset(path, progress=shown.reach, **options)
        emit({"samples": report.num_samples, **asdict(report)}, lambda: _show(report), _show_done)
        return
    entries = find_shards(store, exclude=options["exclude"])
    echo(f"Found {len(entries)} tar files, from {entries[0].path} to {entries[-1].path}.", err=wants_json())
    wizard = None if non_interactive or wants_json() else Wizard()
    append, part, tar_index_only = options["append"], options["part"], options["tar_index_only"]
    if append and options["force"]:
        raise ConfigError("both --append and --force-overwrite are given", hint="Give one of them.")
    options["force"] |= not (append or tar_index_only) and _may_overwrite(store, wizard)
    document: dict[str, Any] | None = None
    if not tar_index_only:
        if options["split_ratio"] is None and options["split_patterns"] is None:
            options["split_ratio"] = _required(wizard, "--split-ratio or --split-pattern").ratio()
        if not skip_dataset_yaml and (not append or sample_type is not None):
            document = _document(wizard, sample_type, field_map, _shown_parts(store, entries))
    with Progress(len(entries), unit="tar", enabled=progress) as shown:
        report = prepare_dataset(path, dataset_yaml=document, progress=shown.reach, **options)
    if part is not None:
        scanned = counted(report.num_samples, "sample")
        done = f"Scanned {scanned} in part {part}. Run without --part to publish."
        emit({"part": part, "samples": report.num_samples}, lambda: click.echo(done))
        return
    if document is not None and "sample_loader" in document:
        _write_sample_loader(store, document, report)
    emit({"samples": report.num_samples, **asdict(report)}, lambda: _show(report), _show_done)


@click.command()
@dataset_arguments
@progress_option
@_threads_option
@_media_options
@tmp_path_option
@engine_options(find_chosen_engine)
def prepare_media(path: str, progress: bool | None, **options: Any) -> None:
    """Index the size of images, and the length of video and audio, of a prepared dataset or a folder.

    PATH is local, s3://… or any other fsspec URL. Needs one of the --media-metadata-by-… options. Video
    and audio need the extra "av".
    """
    from energon_stream.prepare.media_tables import prepare_media

    if options["media_filter"] is None:
        raise ConfigError("no --media-metadata-by-… option is given", hint="Give one of them.")
    with Progress(unit="file", enabled=progress) as shown:
        report = prepare_media(path, progress=shown.advance, **options)
    emit(asdict(report), lambda: _show_media(report), _show_done)


def _show_done() -> None:
    """Print the last line that Megatron-Energon's command prints."""
    if conventions() == "energon":
        click.echo("Done")


def _show_media(report: MediaReport) -> None:
    click.echo(f"Stored media metadata of {counted(report.stored, 'file')}.")
    if report.skipped_av:
        click.echo(
            f"Skipped {report.skipped_av} audio and video files: install energon-stream[av] to read them.",
            err=True,
        )
    if report.unreadable:
        number = counted(len(report.unreadable), "file")
        echo(f"{number} cannot be read, the first is {report.unreadable[0]}.", err=True)


def _prepare_file(path: str, storage_options: dict[str, Any] | None) -> None:
    from energon_stream.prepare.prepare_files import prepare_file

    samples = prepare_file(path, storage_options)
    own = conventions() == "own"
    done = f"Indexed {counted(samples, 'record')}." if own else f"Done. Found {samples} samples."
    emit({"samples": samples}, lambda: click.echo(done))


def _prepare_joins(path: str, storage_options: dict[str, Any] | None) -> None:
    from energon_stream.config import prepare_metadataset

    reports = prepare_metadataset(path, storage_options=storage_options)
    emit({"joins": [asdict(report) for report in reports]}, lambda: _show_joins(reports), _show_done)


def _show_joins(reports: Sequence[JoinReport]) -> None:
    for report in reports:
        missing = ", ".join(map(str, report.missing[1:]))
        rows = f"{counted(report.rows, 'row')}, {report.skipped} skipped"
        echo(f"{report.url}: {rows}, without a partner: {missing}")
    click.echo(f"Prepared {counted(len(reports), 'join')}.")


def _shown_parts(store: Store, entries: Sequence[ListEntry]) -> list[str]:
    """Return the parts of the first samples, of tars that can be read."""
    from energon_stream.tar.scan import peek_parts

    parts: set[str] = set()
    for entry in entries[:_SHOWN]:
        with suppress(CorruptTarError):  # said with all others that cannot be used
            parts.update(peek_parts(store, entry))
    return sorted(parts)


def _shown_columns(url: str, storage_options: dict[str, Any] | None) -> list[str]:
    """Return the parts of the first sample of a file."""
    from energon_stream.config import get_val_dataset
    from energon_stream.index.file_format import find_format
    from energon_stream.worker import WorkerConfig

    if (format := find_format(url)) is not None and not format.may_be_typed:
        raise ConfigError(f"samples of {format.suffix} files have no type", hint="Leave out --sample-type.")
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    dataset = get_val_dataset(
        url, split_part="train", batch_size=None, worker_config=config, storage_options=storage_options
    )
    return [part for part in next(iter(dataset)) if not part.startswith("__")]


def _required(wizard: Wizard | None, option: str) -> Wizard:
    if wizard is None:
        raise ConfigError(f"{option} is missing", hint="--non-interactive needs it.")
    return wizard


def _may_overwrite(store: Store, wizard: Wizard | None) -> bool:
    from energon_stream.index.info_files import INFO_JSON, INFO_YAML, META_FOLDER

    existing = {entry.path for entry in store.list(META_FOLDER)} & {INFO_JSON, INFO_YAML}
    if not existing or wizard is None:
        return False
    if not click.confirm(printable_line(f"{store.url} is prepared already. Replace it?")):
        click.echo("The existing preparation was kept.")
        raise SystemExit(1)
    return True


def _document(
    wizard: Wizard | None, sample_type: str | None, field_map: str | None, parts: list[str]
) -> dict[str, Any] | None:
    from energon_stream.cli.dataset_yaml_wizard import chosen_dataset_yaml

    if sample_type is None and wizard is None and conventions() == "energon":
        click.echo("No dataset.yaml is written, because --sample-type is missing.", err=True)
        return None
    if sample_type is None:
        return _required(wizard, "--sample-type or --skip-dataset-yaml").dataset_yaml(parts)
    return chosen_dataset_yaml(sample_type, field_map, parts, wizard)


def _write_sample_loader(store: Store, document: dict[str, Any], report: PrepareReport) -> None:
    from energon_stream.cli.dataset_yaml_wizard import SAMPLE_LOADER, sample_fields
    from energon_stream.index.info_files import META_FOLDER

    fields = sample_fields(document["sample_type"]["__class__"])
    lines = "\n".join(f'        {field.name}=raw["TODO"],' for field in fields if field.required)
    text = SAMPLE_LOADER.format(fields=lines, parts=report.parts)
    store.put(f"{META_FOLDER}/sample_loader.py", text.encode())
    click.echo(f"Edit {store.url}/{META_FOLDER}/sample_loader.py before using the dataset.")


def _show(report: PrepareReport) -> None:
    echo(f"Parts: {', '.join(report.parts)}")
    for name, shards in report.split.items():
        count = sum(report.shard_counts[shard] for shard in shards)
        echo(f"{name}: {counted(count, 'sample')} in {counted(len(shards), 'shard')}")
    for path, problem in report.skipped.items():
        echo(f"Skipped {path}: {problem}", err=True)
    samples = counted(report.num_samples, "sample")
    click.echo(f"Indexed {samples} in {counted(len(report.shard_counts), 'shard')}.")
    if report.media is not None:
        _show_media(report.media)
