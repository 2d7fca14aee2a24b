"""States that an earlier version saved are restored exactly; ``save_states.py`` made them."""

import json
from pathlib import Path

import pytest
import torch
from save_states import BATCHES, write_datasets
from saved_pipelines import PIPELINES, go_on, open_loader, take

from energon_stream.errors import StateVersionError
from energon_stream.state import loads

SAVED = Path(__file__).parent / "saved_states"
EARLIER = [4]
"""Versions of the format of which there are saved states."""


def names(version):
    return json.loads((SAVED / f"{version}-expected.json").read_text())


CASES = [(version, name) for version in EARLIER for name in names(version)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("datasets")
    write_datasets(folder)
    return folder


def pipeline(name):
    return PIPELINES[name.removesuffix("-again")]


def has_all_streams(name):
    return name in PIPELINES and PIPELINES[name].world == 1


@pytest.mark.parametrize(("version", "name"), CASES)
def test_earlier_states_go_on_exactly(version, name, folder):
    expected = names(version)[name]
    packed = loads((SAVED / f"{version}-states.msgpack").read_bytes())[name]
    assert go_on(pipeline(name), folder, packed, BATCHES) == expected
    states = torch.load(SAVED / f"{version}-states.pt")[name]
    assert go_on(pipeline(name), folder, states, BATCHES) == expected


@pytest.mark.parametrize("version", [1, 2, 3, 99, None, "3"])
def test_other_versions_are_refused_by_name(version, folder):
    with open_loader(PIPELINES["plain"], folder, 0, 1) as loader:
        state = {**loader.save_state_rank(), "version": version}
        with pytest.raises(StateVersionError, match=f"version {version!r}; this library reads 4"):
            loader.restore_state_rank(state)


@pytest.mark.parametrize(("version", "name"), [case for case in CASES if has_all_streams(case[1])])
def test_earlier_state_dicts_go_on_exactly(version, name, folder):
    saved = pipeline(name)
    state_dict = torch.load(SAVED / f"{version}-state-dicts.pt")[name]
    with open_loader(saved, folder, 0, 1) as loader:
        loader.on_change = saved.on_change
        loader.load_state_dict(state_dict)
        assert [take(loader, BATCHES)] == names(version)[name]
