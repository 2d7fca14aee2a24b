"""``--split-ratio`` over few tars. ``split_shares.json`` has how many tars 7.4.1 puts into train, val and
test, of 1 to 12 tars, for each ratio.
"""

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from energon_stream.cli.main import energon, main
from energon_stream.errors import ConfigError
from energon_stream.prepare.publish import MetadataOptions
from energon_stream.testing.datasets import captioning_dataset

SHARES = json.loads(Path(__file__).with_name("split_shares.json").read_text())
HOW = ["--non-interactive", "--no-progress", "--split-ratio", "8,1,1", "--skip-dataset-yaml"]


@pytest.mark.energon("prepare: --split-ratio over few tars")
@pytest.mark.parametrize("ratio", SHARES)
def test_shares_are_those_of_7_4_1(monkeypatch, ratio):
    """Where 7.4.1 puts the last tar into no part, the last part with a share gets it."""
    monkeypatch.setenv("ENERGON_STREAM_CONVENTIONS", "energon")
    options = MetadataOptions([float(share) for share in ratio.split(",")])
    for tars, theirs in enumerate(SHARES[ratio], 1):
        lost = tars - sum(theirs)
        expected = [*theirs[:2], theirs[2] + lost]
        split = options.split(f"{tar:02}.tar" for tar in range(tars))
        assert [len(part) for part in split.values()] == expected
        assert [tar for part in split.values() for tar in part] == [f"{tar:02}.tar" for tar in range(tars)]


def test_an_empty_part_is_refused_by_the_own_conventions():
    with pytest.raises(ConfigError, match="val would be empty: 5 tars"):
        MetadataOptions([8, 1, 1]).split("abcde")


def test_the_commands_on_five_tars(tmp_path, caplog):
    captioning_dataset(tmp_path, shards=5, samples_per_shard=1)
    refused = CliRunner().invoke(main, ["prepare", str(tmp_path), *HOW])
    assert (refused.exit_code, "val would be empty" in refused.output) == (2, True)
    prepared = CliRunner().invoke(energon, ["prepare", str(tmp_path), *HOW])
    assert prepared.exit_code == 0, prepared.output
    assert "no tar is in val" in prepared.output + caplog.text
    parts = yaml.safe_load((tmp_path / ".nv-meta" / "split.yaml").read_text())["split_parts"]
    assert parts == {"train": ["data-{000000..000003}.tar"], "val": [], "test": ["data-000004.tar"]}
