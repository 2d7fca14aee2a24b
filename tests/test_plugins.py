"""Plug-ins: what the core uses by entry points."""

import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import energon_stream
from energon_stream.errors import MissingPackageError
from energon_stream.plugins import GROUP, load_plugin

PACKAGE = Path(energon_stream.__file__).parent
WITHOUT_METADATA = """
import sys
from importlib.metadata import MetadataPathFinder
MetadataPathFinder.find_distributions = classmethod(lambda cls, *args, **kwargs: iter(()))
"""


def test_the_installed_entry_points_are_those_of_the_project():
    project = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text())["project"]
    declared = project["entry-points"][GROUP]
    assert {point.name: point.value for point in entry_points(group=GROUP)} == declared
    for name in declared:
        assert load_plugin(name) is load_plugin(name)


def test_a_missing_plugin_says_what_to_install():
    with pytest.raises(MissingPackageError, match="the plug-in 'nothing' is not installed") as raised:
        load_plugin("nothing")
    assert "Install energon-stream with pip" in str(raised.value)


def test_sources_without_metadata_load_data_and_say_what_the_alias_needs(tmp_path):
    """A folder of sources in PYTHONPATH has no entry points."""
    shutil.copytree(PACKAGE, tmp_path / "energon_stream", ignore=shutil.ignore_patterns("__pycache__"))
    program = WITHOUT_METADATA + "import energon_stream; energon_stream.WorkerConfig(0, 1, 0)"
    for alias, code in (("0", 0), ("1", 1)):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONPATH": str(tmp_path), "ENERGON_STREAM_ALIAS": alias},
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, done.stderr
    assert "the plug-in 'alias' is not installed" in done.stderr
    assert "nstall energon-stream with pip" in done.stderr
