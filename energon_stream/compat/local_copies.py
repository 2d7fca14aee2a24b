"""Local copies of remote files, and rclone's configuration, under Megatron-Energon's names."""

from __future__ import annotations

import configparser
import hashlib
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from energon_stream.atomic_files import replacing
from energon_stream.compat.epath import EPath
from energon_stream.storage import StoreSpec
from energon_stream.storage.in_order import stream_object

LOCAL_COPY_TMP_DIR = Path(os.environ.get("ENERGON_LOCAL_COPY_TMP_DIR") or "/tmp/energon_local_copy")
"""Folder of the copies that :func:`ensure_local_copy` makes."""


def ensure_local_copy(path: EPath) -> EPath:
    """Return a local path unchanged, and for a remote file that of a copy, which is made once.

    A file that changed is copied anew. Copies stay until somebody removes them.

    Example:
        >>> ensure_local_copy(EPath("mix.yaml")) == EPath("mix.yaml")
        True
    """
    if path.is_local():
        return path
    store = StoreSpec(path.url, transport="fsspec").open()
    version = hashlib.sha256(f"{path.url}\0{store.head('')}".encode()).hexdigest()[:32]
    target = LOCAL_COPY_TMP_DIR / version / path.name
    if not target.exists():
        with replacing(target) as temporary, open(temporary, "wb") as file:
            file.writelines(stream_object(store, ""))
    return EPath(target)


@dataclass(kw_only=True, slots=True)
class ConfigEntry:
    """A remote of rclone's configuration.

    Example:
        >>> entry = ConfigEntry(
        ...     name="lake", type="s3", provider=None, access_key_id=None, secret_access_key=None,
        ...     region=None, endpoint=None,
        ... )
        >>> entry.type
        's3'
    """

    name: str
    type: str
    provider: str | None
    access_key_id: str | None
    secret_access_key: str | None = field(repr=False)
    region: str | None
    endpoint: str | None


def find_executable_path(executable_name: str) -> str | None:
    """Return the folder in ``PATH`` that has a program; None if none has.

    Example:
        >>> find_executable_path("no-such-program")
    """
    found = shutil.which(executable_name)
    return None if found is None else os.path.dirname(found)


def get_rclone_config_path() -> Path | None:
    """Return the path of rclone's configuration; None if there is none.

    Example:
        >>> get_rclone_config_path() is None or get_rclone_config_path().exists()
        True
    """
    home = os.environ.get("XDG_CONFIG_HOME")
    places = [
        os.environ.get("RCLONE_CONFIG"),
        home and f"{home}/rclone/rclone.conf",
        "~/.config/rclone/rclone.conf",
        "~/.rclone.conf",
    ]
    found = (Path(place).expanduser() for place in places if place)
    return next((path for path in found if path.is_file()), None)


def read_rclone_config_at_path(config_path: Path) -> dict[str, ConfigEntry]:
    """Read rclone's remotes by name.

    Example:
        >>> read_rclone_config_at_path(Path("nothing.conf"))
        {}
    """
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(config_path)
    fields = ("provider", "access_key_id", "secret_access_key", "region", "endpoint")
    return {
        name: ConfigEntry(
            name=name, type=parser[name].get("type", ""), **{f: parser[name].get(f) for f in fields}
        )
        for name in parser.sections()
    }


def read_rclone_config() -> dict[str, ConfigEntry]:
    """Read the remotes of rclone's configuration; none if there is no configuration.

    Example:
        >>> isinstance(read_rclone_config(), dict)
        True
    """
    path = get_rclone_config_path()
    return {} if path is None else read_rclone_config_at_path(path)
