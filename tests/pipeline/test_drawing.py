"""Pipelines are drawn: in a line, as a tree, and as HTML in which strangers' names are text."""

import re
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_stream import (
    BatchDataset,
    BlendDataset,
    GroupBatchDataset,
    MapDataset,
    PackingDataset,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
)
from energon_stream.drawing import LONGEST, SHOWN, Drawing
from energon_stream.pipeline.leaf import DatasetLeaf
from energon_stream.pipeline.reader_dataset import ReaderDataset
from energon_stream.read.read_plan import PlannedSamples, ReadPlan, Reason, Request
from energon_stream.schedule import BlendPlan, LeafPlan
from energon_stream.schedule.leaf_order import OrderSpec
from energon_stream.testing.operator_suite import NumbersDataset


def encode(sample):
    return sample


def select(samples):
    return [samples]


def pack(samples):
    return samples


def by_length(sample):
    return len(sample), None


def reader(*urls, weights=None):
    leaves = [
        DatasetLeaf(SimpleNamespace(spec=SimpleNamespace(url=url), split_part="train"), None) for url in urls
    ]
    plans = tuple(LeafPlan(number, np.array([0, 4]), OrderSpec()) for number in range(len(urls)))
    plan = BlendPlan(plans, weights or (1 / len(urls),) * len(urls)) if len(urls) > 1 else plans[0]
    return ReaderDataset(leaves, plan, worker_config=WorkerConfig(0, 1, 0))


def html(dataset):
    """What a notebook shows."""
    return dataset._repr_html_()


def pipeline(*urls, weights=None):
    """A blended, packed and grouped pipeline."""
    encoded = MapDataset(reader(*urls, weights=weights), encode)
    return GroupBatchDataset(PackingDataset(encoded, 32, select, pack), 4, by_length, list)


class Tags(HTMLParser):
    """Collects tags, attributes and text."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.data, self.depth = set(), set(), [], 0
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attributes}
        self.depth += tag != "br"

    def handle_endtag(self, tag):
        self.depth -= 1

    def handle_data(self, data):
        self.data.append(data)


def test_a_blended_packed_grouped_pipeline_is_a_tree():
    shown = repr(pipeline("s3://data/captions", "s3://data/texts", weights=(0.75, 0.25)))
    assert shown == "\n".join(
        [
            "GroupBatchDataset(criterion=by_length, batch_size=4, drop_last=False)",
            "└─ PackingDataset(buffer_size=32, pre_packer=select, final_packer=pack)",
            "   └─ MapDataset(fn=encode)",
            "      └─ ReaderDataset",
            "         ├─ 0.75: s3://data/captions [train]",
            "         └─ 0.25: s3://data/texts [train]",
        ]
    )


def test_its_drawing_has_each_dataset_above_what_reads_it():
    page = html(pipeline("s3://data/captions", "s3://data/texts", weights=(0.75, 0.25)))
    tags = Tags(page)
    assert tags.tags == {"div", "b", "br"}
    assert tags.attributes == {"style", "role", "aria-label"}
    assert tags.depth == 0
    assert tags.data == [
        *("s3://data/captions [train]", "0.75", "s3://data/texts [train]", "0.25", "↓", "ReaderDataset"),
        *("↓", "MapDataset", "fn=encode"),
        *("↓", "PackingDataset", "buffer_size=32", "pre_packer=select", "final_packer=pack"),
        *("↓", "GroupBatchDataset", "criterion=by_length", "batch_size=4", "drop_last=False"),
    ]


def test_a_pipeline_of_training_and_its_loader(example_data):
    dataset = get_train_dataset(
        str(example_data / "captions"),
        batch_size=2,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        worker_config=WorkerConfig(0, 1, 0),
    )
    loader = get_savable_loader(dataset)
    lines = repr(loader).splitlines()
    assert lines[0] == "SavableDataLoader(rank=0, world_size=1, num_workers=0, passes=0, position=0)"
    assert lines[-1].endswith("[train])")
    assert "SavableDataLoader" in html(loader)


def test_what_is_short_is_a_line():
    assert repr(BatchDataset(NumbersDataset(4), 2, list)) == (
        "BatchDataset(NumbersDataset(size=4), batch_size=2, drop_last=False, batcher=list)"
    )


@pytest.mark.parametrize("many", [SHOWN + 1, 1000])
def test_a_wide_blend_is_cut(many):
    blend = BlendDataset(*((NumbersDataset(2), 1) for _ in range(many)))
    lines = repr(blend).splitlines()
    assert len(lines) == SHOWN + 2 or many == SHOWN + 1
    assert f"and {many - SHOWN} more" in lines[-1]
    assert f"and {many - SHOWN} more" in html(blend)


def test_a_dataset_with_a_repr_of_its_own_keeps_it():
    class Mine(NumbersDataset):
        def __repr__(self):
            return "<mine>"

    assert repr(MapDataset(Mine(1), encode)) == "MapDataset(<mine>, fn=encode)"
    assert "&lt;mine&gt;" in html(Mine(1))


names = st.text(max_size=40) | st.sampled_from(
    ["<script>alert(1)</script>", '" onload="x', "' onload='x", "&lt;", "\x1b[2J", "a\nb", "\u202egnp", "]]>"]
)


@given(titles=st.lists(names, min_size=1, max_size=3), label=names, details=st.lists(names, max_size=2))
def test_names_of_strangers_are_text(titles, label, details):
    boxes = tuple(Drawing(title, tuple(details), label=label) for title in titles)
    box = Drawing("Reader", (), boxes)
    page = box.html()
    tags = Tags(page)
    assert tags.tags <= {"div", "b", "br"}
    assert tags.attributes == {"style", "role", "aria-label"}
    assert tags.depth == 0
    for text in (page, box.line(), box.text()):
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", text)
    assert "\n" not in page
    assert "\n" not in box.line()


@given(url=st.text(max_size=60))
def test_names_of_a_dataset_are_text(url):
    tags = Tags(html(pipeline(url, "other")))
    assert tags.tags == {"div", "b", "br"}
    assert tags.attributes == {"style", "role", "aria-label"}
    assert tags.depth == 0


def test_secrets_and_endless_names_are_not_shown():
    dataset = reader("https://me:secret@host/a?X-Amz-Signature=secret")
    assert "secret" not in repr(dataset) + html(dataset)
    assert len(repr(reader("x" * 1_000_000))) < 2 * LONGEST


def test_plans_are_a_line():
    numbers = np.arange(100)
    request = Request(3, 0, 1, 0, 4096, numbers, numbers + 1, numbers, 7, Reason.GAP)
    samples = PlannedSamples(*(numbers.tolist() for _ in range(4)))
    plan = ReadPlan(0, (request,), samples, 100, 100, 0)
    assert repr(request) == (
        "Request(number=3, leaf=0, object=1, start=0, size=4096, ranges=100, deadline=7, reason=GAP)"
    )
    assert repr(plan) == "ReadPlan(generation=0, requests=1, samples=100, ranges=100, bytes=100)"
    assert repr(samples) == "PlannedSamples(samples=100)"
