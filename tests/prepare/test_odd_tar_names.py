"""Names of tars that mean something in braces, shells and URLs. What ``tarfile`` reads is the truth."""

import io
import os
import tarfile
from urllib.parse import quote

import pytest

from energon_stream import DefaultTaskEncoder, WorkerConfig, get_train_dataset
from energon_stream.errors import ConfigError
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import TEXT_YAML

NAMES = (
    "{a,b}.tar", "{1..3}.tar", "a{.tar", "a}.tar", "}{.tar", "{}.tar", "{{x}}.tar", "back\\slash.tar", "\\{.tar",
    "end\\.tar", "a~.tar", "sub/~.tar", "sub/{0..1}/x.tar", "a:b.tar", "sp ace.tar", " lead.tar", "trail .tar",
    "per%20cent.tar", "100%.tar", "q?.tar", "h#.tar", "star*.tar", "[a-c].tar", "'\".tar", "$HOME.tar", "`id`.tar",
    "ü.tar", "u\u0308.tar", "😀.tar", "a,b.tar", "-rf.tar", "!x.tar", "&amp;.tar", "|.tar", "...tar", "null.tar",
    "007.tar", "1e3.tar", "n{1}.tar", "n{2}.tar", "n{3}.tar", "run_1.tar", "run_2.tar", "run_3.tar", "# x.tar",
)  # fmt: skip
TEXTS = {"sample_type": "TextSample", "field_map": {"text": "txt"}}
REFUSED = ("~.tar", "~root.tar", "a::b.tar", "~/x.tar", os.fsdecode(b"\xff.tar"))


def write(folder, name, number):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for index in (2 * number, 2 * number + 1):
            member = tarfile.TarInfo(f"{index:04}.txt")
            member.size = len(str(index))
            tar.addfile(member, io.BytesIO(str(index).encode()))


def texts_of(paths):
    found = []
    for path in paths:
        with tarfile.open(path) as tar:
            found += [tar.extractfile(member).read().decode() for member in tar]
    return sorted(found)


def read(url, options=None, **changes):
    dataset = get_train_dataset(
        str(url),
        worker_config=WorkerConfig(0, 1, 0),
        task_encoder=DefaultTaskEncoder(),
        batch_size=1,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        repeat=False,
        storage_options=options,
        **changes,
    )
    return sorted(text for batch in dataset for text in batch.text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("names") / "data"
    for number, name in enumerate(NAMES):
        write(folder, name, number)
    return folder


@pytest.mark.parametrize("where", ["local", "s3"])
def test_what_is_prepared_can_be_read(folder, s3_server, tmp_bucket, where):
    url, options = folder, None
    if where == "s3":
        s3_server.upload_folder(folder, f"{tmp_bucket}/data")
        url, options = f"{tmp_bucket}/data", s3_server.storage_options
    prepare_dataset(
        str(url), split_ratio=(1, 0, 0), dataset_yaml=TEXT_YAML, storage_options=options, force=True
    )
    assert read(url, options) == texts_of(folder.joinpath(name) for name in NAMES)
    # Once more, as the tars that are there already.
    prepare_dataset(str(url), split_ratio=(1, 0, 0), append=True, storage_options=options)
    assert read(url, options) == texts_of(folder.joinpath(name) for name in NAMES)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_named_is_refused_before_anything_is_written(tmp_path, name):
    write(tmp_path, "good.tar", 0)
    write(tmp_path, name, 1)
    before = sorted(os.walk(tmp_path))
    arguments = {"split_ratio": (1, 0, 0), "dataset_yaml": TEXT_YAML}
    with pytest.raises(ConfigError, match="Rename it, or leave it out with exclude"):
        prepare_dataset(str(tmp_path), **arguments)
    assert sorted(os.walk(tmp_path)) == before
    prepare_dataset(str(tmp_path), exclude="~|::|\udcff", **arguments)
    assert read(tmp_path) == texts_of([tmp_path / "good.tar"])


@pytest.mark.every(2)
@pytest.mark.parametrize("query", ["", "?X-Amz-Signature=abc%2Fd%3D&x=1"])
def test_web_addresses_of_single_tars(folder, s3_server, tmp_bucket, query):
    """Percent-encoded, as people copy them, signed, and with braces."""
    s3_server.upload_folder(folder, f"{tmp_bucket}/data")
    place = f"{s3_server.endpoint_url}/{tmp_bucket.removeprefix('s3://')}/data"
    for name in NAMES:
        url = f"{place}/{quote(name)}{query}"
        assert read(url, **TEXTS) == texts_of([folder / name]), url
    assert read(f"{place}/run_{{1..3}}.tar{query}", **TEXTS) == texts_of(
        folder / f"run_{number}.tar" for number in (1, 2, 3)
    )
    assert read(f"{place}/sp ace.tar", **TEXTS) == texts_of([folder / "sp ace.tar"])
