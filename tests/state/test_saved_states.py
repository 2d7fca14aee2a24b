"""States that an earlier version saved are restored exactly; ``save_states.py`` made them."""

import json
import tarfile
from pathlib import Path

import pytest
import torch
from repetitions import is_nightly
from save_states import BATCHES, write_datasets
from saved_pipelines import PIPELINES, V2, go_on, open_loader, take

from energon_stream import get_val_dataset
from energon_stream.errors import StateVersionError
from energon_stream.state import loads

SAVED = Path(__file__).parent / "saved_states"
EARLIER = [4]
"""Versions of the format of which there are saved states."""


REFUSED = "planned"
"""Planned packs are dealt in another way now."""


def names(version):
    found = json.loads((SAVED / f"{version}-expected.json").read_text())
    del found[REFUSED]
    return found


CASES = [(version, name) for version in EARLIER for name in names(version)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("datasets")
    write_datasets(folder)
    return folder


@pytest.fixture(scope="module")
def earlier_folder(tmp_path_factory):
    """The datasets as the earlier version wrote and prepared them."""
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(SAVED / "4-datasets.tar.xz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.3 has none
        archive.extractall(folder)
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
    if is_nightly() or CASES.index((version, name)) % 4 == 0:  # the same states, written by torch
        states = torch.load(SAVED / f"{version}-states.pt")[name]
        assert go_on(pipeline(name), folder, states, BATCHES) == expected


@pytest.mark.parametrize("name", ["plain", "two", "joined", "packed", "workers"])
def test_datasets_that_it_prepared_go_on_exactly(name, earlier_folder):
    states = torch.load(SAVED / "4-states.pt")[name]
    assert go_on(pipeline(name), earlier_folder, states, BATCHES) == names(4)[name]


def test_a_table_that_it_wrote_serves_a_view(earlier_folder):
    view = {"path": "a", "split_part": "train", "where": "score >= 30 and score < 40"}
    (earlier_folder / "view.yaml").write_text(json.dumps({**V2, "splits": {"val": view}}))
    found = get_val_dataset(earlier_folder / "view.yaml", batch_size=None)
    assert sorted(sample.text for sample in found) == [f"a{number}" for number in range(30, 40)]


def test_its_planned_packs_are_refused_by_name(folder):
    states = torch.load(SAVED / "4-states.pt")[REFUSED]
    with pytest.raises(StateVersionError, match="planned packs"):
        go_on(PIPELINES[REFUSED], folder, states, 1)


@pytest.mark.parametrize("version", [1, 2, 3, 99, None, "3"])
def test_other_versions_are_refused_by_name(version, folder):
    with open_loader(PIPELINES["plain"], folder, 0, 1) as loader:
        state = {**loader.save_state_rank(), "version": version}
        with pytest.raises(StateVersionError, match=f"version {version!r}; this library reads 4"):
            loader.restore_state_rank(state)


@pytest.mark.every(3)
@pytest.mark.parametrize(("version", "name"), [case for case in CASES if has_all_streams(case[1])])
def test_earlier_state_dicts_go_on_exactly(version, name, folder):
    saved = pipeline(name)
    state_dict = torch.load(SAVED / f"{version}-state-dicts.pt")[name]
    with open_loader(saved, folder, 0, 1) as loader:
        loader.on_change = saved.on_change
        loader.load_state_dict(state_dict)
        assert [take(loader, BATCHES)] == names(version)[name]
