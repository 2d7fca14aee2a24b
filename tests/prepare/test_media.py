"""Media metadata: what each filter stores, what it costs over S3, and what a failed run leaves."""

import io
import os
import sqlite3
import tarfile

import pytest
from click.testing import CliRunner
from PIL import Image

from energon_stream import AVMetadata, ImageMetadata
from energon_stream.auxiliary import SystemFileStore, WebdatasetFileStore
from energon_stream.cli.main import main
from energon_stream.engine.processes import LocalEngine
from energon_stream.errors import (
    ConfigError,
    FieldError,
    NotPreparedError,
    ObjectNotFoundError,
    UnsupportedStoreError,
)
from energon_stream.index.dataset import open_webdataset
from energon_stream.prepare.media_headers import MediaFile, MediaFilter, read_images
from energon_stream.prepare.media_tables import MediaReport, prepare_media
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.storage import StoreSpec
from energon_stream.testing.datasets import (
    captioning_dataset,
    prepared_captioning_dataset,
    random_bytes,
    write_shards,
)
from energon_stream.testing.media_files import VideoFile

SAMPLES = 8
AV = b"RIFF"  # never looked into
EXTENSION, HEADER = MediaFilter("EXTENSION"), MediaFilter("HEADER")


def image(width, height, form="PNG", mode="RGB", **options):
    buffer = io.BytesIO()
    Image.new(mode, (width, height)).save(buffer, form, **options)
    return buffer.getvalue()


def parts(number):
    """Images by extension, an image without one, a video, a damaged image, and text."""
    return {
        "jpg": image(10 + number, 5, "JPEG") + random_bytes(300_000, number),
        "left.png": image(4, 6, mode="L"),
        "raw": image(7, 7, "GIF", "P"),
        "MP4": AV,
        "txt": b"text",
    } | ({"webp": b"damaged"} if number == 3 else {})


def tables(folder):
    """Media metadata by name, the filters, and the names of all tables."""
    database = sqlite3.connect(folder / ".nv-meta" / "index.sqlite")
    media = {
        key: (kind, text)
        for key, kind, text in database.execute(
            "SELECT entry_key, metadata_type, metadata_json FROM media_metadata"
        )
    }
    filters = database.execute(
        "SELECT filter_id, strategy, patterns FROM media_filters ORDER BY 1"
    ).fetchall()
    names = {
        name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE sql LIKE 'CREATE TABLE%'")
    }
    database.close()
    return media, filters, names - {"sqlite_sequence"}


def expected(*kinds):
    one = {
        "jpg": lambda n: f'{{"width":{10 + n},"height":5,"format":"JPEG","mode":"RGB"}}',
        "left.png": lambda n: '{"width":4,"height":6,"format":"PNG","mode":"L"}',
        "raw": lambda n: '{"width":7,"height":7,"format":"GIF","mode":"P"}',
    }
    return {f"in/{n:04d}.{kind}": ("image", one[kind](n)) for n in range(SAMPLES) for kind in kinds}


NO_VIDEOS = tuple(f"in/{number:04d}.MP4" for number in range(8))  # by their names only
CASES = [
    (EXTENSION, ("jpg", "left.png"), MediaReport(16, 0, ("in/0003.webp", *NO_VIDEOS))),
    (HEADER, ("jpg", "left.png", "raw"), MediaReport(24)),
    (MediaFilter("GLOB", ("*.raw", "in/*.left.*")), ("left.png", "raw"), MediaReport(16)),
    (MediaFilter("GLOB", ("in/*.[rM]*",)), ("raw",), MediaReport(8, 0, NO_VIDEOS)),
]


@pytest.fixture
def tars(tmp_path):
    folder = tmp_path / "tars"
    write_shards(folder, shards=2, samples_per_shard=SAMPLES // 2, parts=parts, key="in/{:04d}")
    return folder


@pytest.fixture
def plain(tmp_path):
    folder = tmp_path / "plain"
    (folder / "in").mkdir(parents=True)
    for number in range(SAMPLES):
        for part, data in parts(number).items():
            (folder / "in" / f"{number:04d}.{part}").write_bytes(data)
    return folder


@pytest.mark.parametrize(("media_filter", "kinds", "report"), CASES)
def test_filters_store_the_same_in_all_three_ways(tars, plain, media_filter, kinds, report):
    stored = (expected(*kinds), [(1, media_filter.strategy, ",".join(media_filter.patterns))])
    media, own = {"media_metadata", "media_filters", "media_layouts"}, {"samples", "sample_parts"}

    prepared = prepare_dataset(str(tars), split_ratio=(1, 0, 0), media_filter=media_filter)
    assert (prepared.media, tables(tars)) == (report, (*stored, media | own))
    prepare_dataset(str(tars), split_ratio=(1, 0, 0), force=True)
    for _ in range(2):  # once more changes nothing
        assert prepare_media(str(tars), media_filter) == report
        assert tables(tars) == (*stored, media | own)
        assert prepare_media(str(plain), media_filter) == report
        assert tables(plain) == (*stored, media)
        assert os.listdir(plain / ".nv-meta") == ["index.sqlite"]
    assert open_webdataset(StoreSpec(str(tars)), split_part="train").num_samples == SAMPLES

    for store in (WebdatasetFileStore(StoreSpec(str(tars))), SystemFileStore(str(plain))):
        if "jpg" in kinds:
            assert store.get_media_metadata("in/0002.jpg") == ImageMetadata(12, 5, "JPEG", "RGB")
        with pytest.raises(FieldError, match=r"in/0002\.txt"):
            store.get_media_metadata("in/0002.txt")
    with pytest.raises(UnsupportedStoreError, match="media metadata was not indexed"):
        SystemFileStore(str(plain / "in")).get_media_metadata("0002.jpg")


def test_another_filter_adds_to_the_first(plain):
    prepare_media(str(plain), MediaFilter("GLOB", ("*.raw",)))
    prepare_media(str(plain), MediaFilter("GLOB", ("*.png",)))
    media, filters, _ = tables(plain)
    assert media == expected("left.png", "raw")
    assert filters == [(1, "GLOB", "*.raw"), (2, "GLOB", "*.png")]


@pytest.mark.parametrize("kind", ["tars", "plain"])
def test_over_s3_only_headers_are_read(kind, request, tmp_path, s3_server, tmp_bucket):
    folder = request.getfixturevalue(kind)
    url, options = f"{tmp_bucket}/{kind}", s3_server.storage_options
    s3_server.upload_folder(folder, url)
    if kind == "tars":
        prepare_dataset(url, split_ratio=(1, 0, 0), storage_options=options)
    before = s3_server.counters()
    assert prepare_media(url, EXTENSION, storage_options=options) == CASES[0][2]
    after = s3_server.counters()
    total = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert after.bytes_sent - before.bytes_sent < total / 2
    gets = after.requests["GET"] - before.requests.get("GET", 0)
    # Of each sample the start of one large image; small neighbours come along, plain files do not.
    assert gets <= (3 * SAMPLES + 4 if kind == "tars" else 3 * SAMPLES + 3)
    copy = tmp_path / "copy"
    (copy / ".nv-meta").mkdir(parents=True)
    data = StoreSpec(url, options).open().get(".nv-meta/index.sqlite").data
    (copy / ".nv-meta" / "index.sqlite").write_bytes(data)
    assert tables(copy)[0] == expected("jpg", "left.png")


@pytest.mark.parametrize("remote", [False, True])
def test_headers_longer_than_the_first_request(tmp_path, s3_server, tmp_bucket, remote):
    """A JPEG with much in front of its size, a TIFF whose directory lies at its end, a WebP."""
    noise = Image.frombytes("RGB", (300, 200), random_bytes(180_000, "noise"))
    files = {"a.tiff": io.BytesIO(), "b.webp": io.BytesIO()}
    noise.save(files["a.tiff"], "TIFF")
    noise.save(files["b.webp"], "WEBP", lossless=True)
    contents = {name: file.getvalue() for name, file in files.items()}
    contents["c.jpg"] = image(300, 200, "JPEG", icc_profile=random_bytes(400_000, "profile"))
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    s3_server.upload_folder(tmp_path, tmp_bucket)
    spec = StoreSpec(tmp_bucket, s3_server.storage_options) if remote else StoreSpec(str(tmp_path))
    found = read_images(
        spec.open(), [MediaFile(name, name, 0, len(data), None) for name, data in contents.items()]
    )
    assert found == [ImageMetadata(300, 200, form, "RGB") for form in ("TIFF", "WEBP", "JPEG")]


def run(*arguments):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    return result.exit_code, result.output


PREPARE = ("prepare", "--non-interactive", "--split-ratio", "1,0,0", "--skip-dataset-yaml", "--no-progress")


def test_facts_4_8_globs_work_and_a_failed_run_changes_no_kind(tars, plain):
    """7.4.1 aborts, leaves an index that makes the folder a plain one, and refuses to prepare it again."""
    index = tars / ".nv-meta" / "index.sqlite"
    by_glob = ("--media-metadata-by-glob", "*.jpg,*.MP4")
    (tars / "zz.tar").write_bytes(b"no tar" * 100)
    for attempt in ((), ("--force-overwrite",)):
        before = index.read_bytes() if attempt else None
        code, output = run(*PREPARE, *by_glob, *attempt, tars)
        assert code == 1
        assert "damaged tar header at byte 0" in output
        assert (index.read_bytes() if index.exists() else None) == before
        code, output = run(*PREPARE, *by_glob, "--force-overwrite", "--exclude", "zz", tars)
        assert (code, index.exists()) == (0, True)
        assert "Stored media metadata of 8 files." in output
        assert "Skipped" not in output
    assert tables(tars)[0] == expected("jpg")
    for folder in (tars, plain):
        code, output = run("prepare-media", "--no-progress", "--media-metadata-by-extension", folder)
        assert code == 0
        assert "Stored media metadata of 16 files." in output
        assert "9 files cannot be read, the first is in/0003.webp." in output


def test_what_is_refused_and_leaves_everything_as_it_was(tars, plain, tmp_path):
    before = sorted(tars.rglob("*")), sorted(plain.rglob("*"))
    for path, options, error, text in (
        (plain, {"media_filter": MediaFilter("GLOB", ("*.bmp",))}, ConfigError, "found no readable media"),
        (plain, {"media_filter": HEADER, "workers": 0}, ConfigError, "workers is 0"),
        (tars, {"media_filter": HEADER}, NotPreparedError, "tars that are not prepared"),
        (tmp_path / "none", {"media_filter": HEADER}, ObjectNotFoundError, "none"),
    ):
        with pytest.raises(error, match=text):
            prepare_media(str(path), **options)
    for strategy, patterns in (("GLOB", ()), ("GLOB", ("a", "")), ("HEADER", ("a",))):
        with pytest.raises(ConfigError, match="GLOB needs one or more"):
            MediaFilter(strategy, patterns)
    with pytest.raises(ConfigError, match="tar_index_only"):
        prepare_dataset(str(tars), tar_index_only=True, media_filter=HEADER)
    for options in ((), ("--media-metadata-by-header", "--media-metadata-by-extension")):
        code, output = run("prepare-media", *options, plain)
        assert code == 2
        assert "--media-metadata-by-…" in output
    assert (sorted(tars.rglob("*")), sorted(plain.rglob("*"))) == before


def test_video_and_audio_have_metadata(tmp_path):
    VideoFile(audio_codec="aac").write(tmp_path / "a.mp4")
    VideoFile(frames=0, audio_codec="flac", audio_seconds=1.0).write(tmp_path / "b.flac")
    assert prepare_media(str(tmp_path), EXTENSION) == MediaReport(2)
    store = SystemFileStore(str(tmp_path))
    video = store.get_media_metadata("a.mp4")
    assert (video.video_num_frames, video.video_fps, video.audio_sample_rate) == (50, 25.0, 16_000)
    assert store.get_media_metadata("b.flac") == AVMetadata(
        audio_duration=1.0, audio_channels=1, audio_sample_rate=16_000
    )


@pytest.mark.parametrize("is_plain", [False, True])
def test_an_engine_finds_the_same(tmp_path, is_plain):
    found = {}
    for name, engine in (("threads", None), ("engine", LocalEngine(0)), ("processes", LocalEngine(2))):
        folder = tmp_path / name
        if is_plain:
            captioning_dataset(tmp_path / "tars", shards=1, samples_per_shard=5)
            with tarfile.open(tmp_path / "tars/data-000000.tar") as tar:
                tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.3 has none
                tar.extractall(folder)
        else:
            prepared_captioning_dataset(folder, shards=3, samples_per_shard=4)
        report = prepare_media(str(folder), MediaFilter("EXTENSION"), engine=engine)
        with sqlite3.connect(folder / ".nv-meta/index.sqlite") as database:
            found[name] = report, database.execute("SELECT * FROM media_metadata ORDER BY rowid").fetchall()
    assert found["threads"] == found["engine"] == found["processes"]
    assert len(found["engine"][1]) == (5 if is_plain else 12)
