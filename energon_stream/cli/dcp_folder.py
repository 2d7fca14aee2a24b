"""State dicts of loaders in folders of ``torch.distributed.checkpoint``, read without torch.

The file ``.metadata`` of such a folder is a pickle, which torch would execute. Here, records stand for its
objects. It names each entry's file, offset and length; a loader that was saved as ``{"loader": loader}`` has
the entries ``loader.format``, ``loader.version`` and ``loader.streams.<stream>``.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from energon_stream.cli.plain_pickle import load_plain, load_records
from energon_stream.errors import StateError
from energon_stream.state import STREAMS_FORMAT

METADATA = ".metadata"
_ADVICE = 'save {"loader": loader} with torch.distributed.checkpoint.save, on all ranks'


def read_dcp(folder: Path) -> dict[str, dict[str, Any]]:
    """Read the state dicts of all loaders in a folder, by the keys under which they were saved.

    Raises StateError if the folder is no checkpoint, is damaged, or has no loader.
    """
    if not (folder / METADATA).is_file():
        raise StateError(
            f"the folder has no {METADATA}, so torch.distributed.checkpoint did not write it",
            hint="pass the files in it, or the folder that has the file",
        )
    try:
        places = _places(load_records((folder / METADATA).read_bytes()))
        loaders = {path[:-1] for path in places if path[-1] == "format" and (*path[:-1], "version") in places}
        found = {".".join(loader): _state_dict(folder, places, loader) for loader in sorted(loaders)}
    except StateError:
        raise
    except Exception as error:  # whatever a damaged pickle leads to
        raise StateError(
            f"the checkpoint is damaged: {type(error).__name__}: {error!s:.200}",
            hint="restore an earlier checkpoint",
        ) from error
    found = {key: content for key, content in found.items() if content.get("format") == STREAMS_FORMAT}
    if not found:
        raise StateError("the checkpoint has no state of a loader", hint=_ADVICE)
    return found


def _places(metadata: Any) -> dict[tuple[str, ...], Mapping[str, Any]]:
    """Return file, offset and length of each entry, by its path in the state dict."""
    paths = metadata.fields.get("planner_data") or {}
    places = {}
    for index, place in metadata.fields["storage_data"].items():
        name = index.fields["fqn"]
        places[tuple(map(str, paths.get(name) or name.split(".")))] = place.fields
    return places


def _state_dict(
    folder: Path, places: Mapping[tuple[str, ...], Mapping[str, Any]], loader: tuple[str, ...]
) -> dict[str, Any]:
    """Read the entries of one loader; of what is no loader, the format alone."""
    content = {"format": _entry(folder, places[*loader, "format"])}
    if content["format"] != STREAMS_FORMAT:
        return content
    before = (*loader, "streams")
    streams = {path[-1]: place for path, place in places.items() if path[:-1] == before}
    return {
        **content,
        "version": _entry(folder, places[*loader, "version"]),
        "streams": {stream: _entry(folder, place) for stream, place in streams.items()},
    }


def _entry(folder: Path, place: Mapping[str, Any]) -> Any:
    """Read one entry, which torch.save wrote."""
    name, offset, length = place["relative_path"], place["offset"], place["length"]
    if Path(name).name != name or place.get("transform_descriptors"):
        raise ValueError(f"an entry in {name!r:.100}, which is compressed or outside the folder")
    with (folder / name).open("rb") as file:
        if not 0 <= offset <= offset + length <= file.seek(0, io.SEEK_END):
            raise ValueError(f"{name} is shorter than {METADATA} says")
        file.seek(offset)
        return load_plain(io.BytesIO(file.read(length)))
