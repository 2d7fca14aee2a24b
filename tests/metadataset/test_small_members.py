"""Members of a blend that have fewer samples than there are streams: what they reach is said, and true."""

import re
from collections import Counter

import pytest
from mixtures import text_dataset, v2, write

from energon_stream import ReadOptions, WorkerConfig, get_loader, get_train_dataset

SIZES = {"a": 5, "b": 9, "c": 400}
RANKS = 16


@pytest.fixture
def folder(tmp_path):
    for name, size in SIZES.items():
        text_dataset(tmp_path / name, name, per_shard=size, shards=1, split_ratio=(1, 0, 0))
    return tmp_path


def drawn(path, ranks, batches=30):
    """Shares of the samples that all ranks yield."""
    counts = Counter()
    for rank in range(ranks):
        dataset = get_train_dataset(
            path, batch_size=4, shuffle_buffer_size=None, max_samples_per_sequence=None,
            worker_config=WorkerConfig(rank, ranks, 0), read_options=ReadOptions(max_ahead=32),
        )  # fmt: skip
        for _, batch in zip(range(batches), get_loader(dataset), strict=False):
            counts.update(text[0] for text in batch.text)
    return {name: counts[name] / counts.total() for name in SIZES}


@pytest.mark.every(2)
@pytest.mark.parametrize("draws", ["random", "even"])
def test_the_share_that_is_reached_is_said(folder, draws, caplog):
    blend = [{"weight": weight, "path": name} for name, weight in {"a": 2, "b": 1, "c": 1}.items()]
    document = v2({"blend": blend, **({"draws": "even"} if draws == "even" else {})})
    path = write(folder / f"{draws}.yaml", document)
    shares = drawn(path, RANKS)
    (text,) = [record.getMessage() for record in caplog.records if "of the draws" in record.getMessage()]
    said = re.findall(r"(\w) gets ([\d.]+) of the draws, where its weight says ([\d.]+)", text)
    assert [(name, float(weight)) for name, _, weight in said] == [("a", 0.5)]
    for name, share, _ in said:
        assert shares[name] == pytest.approx(float(share), abs=0.001 if draws == "even" else 0.03)


def test_nothing_is_said_where_weights_are_reached(folder, caplog):
    path = write(folder / "few.yaml", v2({"blend": [{"weight": 1, "path": name} for name in SIZES]}))
    shares = drawn(path, 4)
    assert "of the draws" not in caplog.text
    assert all(share == pytest.approx(1 / 3, abs=0.05) for share in shares.values())
