"""Tools for tars say so of folders of other files, and look at none of their bytes."""

import pytest

from energon_stream import (
    diff_datasets,
    lint_dataset,
    merge_datasets,
    sample_dataset,
    split_dataset,
)
from energon_stream.errors import ConfigError
from energon_stream.prepare.media_headers import MediaFilter
from energon_stream.prepare.media_tables import prepare_media
from energon_stream.prepare.prepare import prepare_dataset

CALLS = {
    "lint": lambda folder, new: lint_dataset(folder),
    "diff": lambda folder, new: diff_datasets(folder, folder),
    "merge": lambda folder, new: merge_datasets([folder, folder], new),
    "split": lambda folder, new: split_dataset(folder, {"a": new}, ratio={"a": 1}),
    "sample": lambda folder, new: sample_dataset(folder, new, count=1),
    "media": lambda folder, new: prepare_media(folder, MediaFilter("EXTENSION")),
}


@pytest.mark.parametrize("name", CALLS)
def test_tools_for_tars(tmp_path, name):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "0.jsonl").write_text('{"a": 1}\n')
    prepare_dataset(str(tmp_path / "notes"), split_ratio=(1, 0, 0))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match=r"is for tars.*'0\.jsonl'.*energon-stream convert"):
        CALLS[name](str(tmp_path / "notes"), str(tmp_path / "new"))
    assert sorted(tmp_path.rglob("*")) == before
