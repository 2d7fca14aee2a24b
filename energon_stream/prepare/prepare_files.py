"""Prepares folders of files of one format: JSON lines, Parquet and others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from energon_stream.errors import ConfigError, EmptyDatasetError
from energon_stream.index.file_format import FileAddress, OpenedFile, find_format
from energon_stream.index.files_index import FILES_JSON, check_alike, encode_files, open_file
from energon_stream.index.info_files import INFO_JSON, INFO_YAML, META_FOLDER, encode_info, encode_split
from energon_stream.index.plain import match_paths
from energon_stream.index.shard_names import check_tar_names, names_tars, only_visible
from energon_stream.index.yaml_io import dump_yaml
from energon_stream.limits import Limits
from energon_stream.storage import ListEntry, StoreSpec
from energon_stream.storage.in_order import ordered_map

if TYPE_CHECKING:
    from energon_stream.prepare.publish import MetadataOptions


def find_files(listed: Sequence[ListEntry], url: str) -> list[str]:
    """Return the paths of a folder's files of known formats, sorted; none if it has tars."""
    paths = sorted(entry.path for entry in only_visible(listed, url))
    return [] if any(map(names_tars, paths)) else [path for path in paths if find_format(path) is not None]


def prepare_files(
    spec: StoreSpec,
    listed: Sequence[ListEntry],
    options: MetadataOptions,
    *,
    of_tars: Sequence[str],
    shards: str | Sequence[str] | None = None,
    exclude: str | None = None,
    workers: int = 16,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, int] | None:
    """Write the metadata of a folder of files, and the files beside them that say where samples are.

    Return the number of samples by path; None if there are no files of a known format. ``of_tars`` are
    options that were given, and need tars.
    """
    store, limits = spec.open(), Limits.from_environment()
    known = find_files(listed, store.url)
    if not known:
        return None
    paths = match_paths(known, store.url, shards=shards, exclude=exclude, kind="file")
    formats = {format.name: (format, path) for path in paths if (format := find_format(path)) is not None}
    if len(formats) > 1:
        raise ConfigError(
            f"the folder has several formats, such as {' and '.join(repr(path) for _, path in formats.values())}",
            where=store.url,
            hint="leave some out with exclude=, or give each format a folder of its own",
        )
    ((format, _),) = formats.values()
    if of_tars:
        raise ConfigError(f"{of_tars[0]} is for tars, which the folder does not have", where=store.url)
    check_tar_names(paths, store.url)
    options.split(paths)  # a split that fails does so before the files are read

    def look(path: str) -> OpenedFile:
        place = FileAddress.of(spec, path, format)
        format.prepare(place)
        return format.open(place, limits)

    files: dict[str, OpenedFile] = {}
    for path, opened in zip(paths, ordered_map(look, paths, workers), strict=True):
        files[path] = opened
        if progress is not None:
            progress(len(files), len(paths))
    check_alike(format, files.items(), store.url)
    counts = {path: file.num_samples for path, file in files.items()}
    if not any(counts.values()):
        raise EmptyDatasetError("the files have no samples", where=store.url)
    document = options.dataset_yaml or {"__module__": "megatron.energon", "__class__": format.dataset_class}
    writes = {
        FILES_JSON: encode_files(files),
        f"{META_FOLDER}/{options.dataset_config}": dump_yaml(dict(document)),
        f"{META_FOLDER}/{options.split_config}": encode_split(options.split(paths), ()),
        INFO_JSON: encode_info(counts),  # last: with it, the dataset is there
    }
    for name, content in writes.items():
        store.put(name, content)
    if any(entry.path == INFO_YAML for entry in listed):
        store.delete(INFO_YAML)
    return counts


def prepare_file(url_or_path: str, storage_options: Mapping[str, Any] | None = None) -> int:
    """Write what says where a file's samples are, unless the file does itself; return how many it has."""
    spec, format = StoreSpec(url_or_path, storage_options), find_format(url_or_path)
    if format is None:
        raise ConfigError("no format is known for such a file", where=url_or_path)
    format.prepare(FileAddress.of(spec, "", format))
    return open_file(spec, format).num_samples
