"""Hostile indices, opened in every way: the right samples or a named error, and nothing else is touched."""

import shutil
import socket
import sys

import children
import hostile_indices
import pytest

CHOSEN = 15  # cases of a run that is not slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    hostile_indices.good(folder)
    return folder


def attacked(folder, tmp_path, cases):
    """Open cases in a process that is limited, beside a server that nobody may ask."""
    home, log = tmp_path / "home", tmp_path / "log"
    home.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        chosen = list(hostile_indices.prepared(folder, home, cases, server.getsockname()[1]))
        try:
            found = children.call(hostile_indices.attack, folder, home, chosen, str(log), timeout=600)
        except Exception as error:
            raise AssertionError(f"the process ended at {log.read_text()}") from error
        with pytest.raises(BlockingIOError):
            server.accept()
    shutil.rmtree(home)
    return found


def test_hostile_indices(folder, tmp_path):
    cases = hostile_indices.cases()
    wrong, _ = attacked(folder, tmp_path, cases[:: len(cases) // CHOSEN + 1])
    assert wrong == []


@pytest.mark.slow
def test_all_hostile_indices(folder, tmp_path):
    cases = hostile_indices.cases()
    assert len(cases) >= 500
    found = []
    for first in range(0, len(cases), 20):
        wrong, figures = attacked(folder, tmp_path, cases[first : first + 20])
        found += wrong
        sys.stderr.write(f"{cases[first]} {figures}\n")
    assert found == []


@pytest.mark.parametrize("way", hostile_indices.WAYS)
def test_the_dataset_itself_is_fine(folder, tmp_path, way):
    hostile_indices.WAYS[way](shutil.copytree(folder / "data", tmp_path / "data"))
