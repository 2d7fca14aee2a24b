"""Rclone's configuration, under Megatron-Energon's names."""

from __future__ import annotations

import configparser
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(kw_only=True, slots=True)
class ConfigEntry:
    """A remote of rclone's configuration."""

    name: str
    type: str
    provider: str | None
    access_key_id: str | None
    secret_access_key: str | None = field(repr=False)
    region: str | None
    endpoint: str | None


def find_executable_path(executable_name: str) -> str | None:
    """Return the folder in ``PATH`` that has a program; None if none has."""
    found = shutil.which(executable_name)
    return None if found is None else os.path.dirname(found)


def get_rclone_config_path() -> Path | None:
    """Return the path of rclone's configuration; None if there is none."""
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
    """Read rclone's remotes by name."""
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
    """Read the remotes of rclone's configuration; none if there is no configuration."""
    path = get_rclone_config_path()
    return {} if path is None else read_rclone_config_at_path(path)
