"""ShardWriter encodes values by their extension as webdataset does, refuses what would be lost, and writes
samples of a type. Pillow, numpy, torch, json, tarfile and webdataset say what was written."""

import datetime
import enum
import io
import json
import sys
import tarfile

import msgpack
import numpy as np
import pytest
import torch
import webdataset
from PIL import Image, ImageCms, ImageOps
from webdataset.writer import TarWriter

from energon_stream import (
    CaptioningSample,
    ImageClassificationSample,
    Sample,
    ShardWriter,
    TextSample,
    VQASample,
    WorkerConfig,
    edataclass,
    finish_dataset,
    get_loader,
    get_train_dataset,
)
from energon_stream.errors import ConfigError, EmptyDatasetError, MetadataError, SampleError

DRAW = np.random.default_rng(0)
PIXELS = DRAW.integers(0, 256, (12, 16, 3), dtype=np.uint8)
ALPHA = DRAW.integers(0, 256, (12, 16, 4), dtype=np.uint8)
DEEP = DRAW.integers(0, 65536, (12, 16)).astype(np.uint16)


class Colour(str, enum.Enum):  # noqa: UP042 - whose str() is another text
    RED = "red"


@edataclass
class Page(Sample):
    picture: torch.Tensor
    title: str
    words: list[str]
    note: str | None = None


def parts_of(folder):
    with tarfile.open(folder / "data-000000.tar") as tar:
        return {m.name.partition(".")[2]: tar.extractfile(m).read() for m in tar.getmembers()}


@pytest.fixture
def written(tmp_path):
    def write(parts, **options):
        with ShardWriter(tmp_path / "a", **options) as writer:
            writer.write({"__key__": "k", **parts})
        return parts_of(tmp_path / "a")

    return write


def opened(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    file.seek(0)
    return Image.open(file), file.getvalue()


def turned(kind="JPEG", orientation=6):
    exif = Image.Exif()
    exif[0x0112] = orientation
    image, _ = opened(Image.fromarray(PIXELS), kind, exif=exif)
    image.load()
    return image


def webdataset_parts(sample):
    """What webdataset's own reader makes of webdataset's own tar."""
    file = io.BytesIO()
    with TarWriter(file) as writer:
        writer.write({"__key__": "k", **sample})
    with tarfile.open(fileobj=io.BytesIO(file.getvalue())) as tar:
        return {m.name.partition(".")[2]: tar.extractfile(m).read() for m in tar.getmembers()}


def test_the_bytes_are_those_of_webdataset(written):
    sample = {
        "txt": "naïve",
        "cls": 7,
        "index": 3,
        "json": {"a": [1, None, "é"], "nan": float("nan")},
        "npy": np.arange(6.0).reshape(2, 3),
        "npz": {"a": np.arange(3), "b": PIXELS},
        "msg": {"a": [1, 2.5, "x"], "b": b"raw"},
        "png": Image.fromarray(PIXELS),
        "ppm": PIXELS,
        "left.png": PIXELS,
        "bin": b"\x00\x01",
    }
    found, expected = written(sample), webdataset_parts(sample)
    assert found == expected


def test_webdataset_decodes_what_was_written(tmp_path):
    sample = {"pth": {"x": torch.arange(3)}, "jpg": Image.fromarray(PIXELS), "webp": PIXELS, "cbor": {"a": 1}}
    with ShardWriter(tmp_path / "a") as writer:
        writer.write({"__key__": "k", **sample})
    path = str(tmp_path / "a" / "data-000000.tar")
    (found,) = webdataset.WebDataset(path, shardshuffle=False).decode("rgb8", only=["pth", "jpg", "webp"])
    assert found["pth"]["x"].tolist() == [0, 1, 2]
    assert np.array_equal(found["webp"], PIXELS)  # lossless
    file = io.BytesIO()
    Image.fromarray(PIXELS).save(file, "JPEG", quality=95)
    assert np.array_equal(found["jpg"], np.asarray(Image.open(file)))


@pytest.mark.parametrize("kind", ["numpy", "float64", "float16", "tensor", "bfloat16", "grad"])
def test_floats_from_0_to_1_are_images_and_come_back(written, kind):
    chw = torch.from_numpy(PIXELS).permute(2, 0, 1) / 255
    values = {
        "numpy": (PIXELS / 255).astype(np.float32),
        "float64": PIXELS / 255,
        "float16": (PIXELS / 255).astype(np.float16),
        "tensor": chw,
        "bfloat16": chw.bfloat16(),
        "grad": chw.clone().requires_grad_(),
    }
    found = np.asarray(Image.open(io.BytesIO(written({"png": values[kind]})["png"])))
    off = np.abs(found.astype(int) - PIXELS).max()
    assert off <= (1 if kind == "bfloat16" else 0)


@pytest.mark.parametrize(
    ("part", "value", "mode"),
    [
        ("png", DEEP, "I;16"),
        ("tif", DEEP, "I;16"),
        ("png", ALPHA, "RGBA"),
        ("webp", ALPHA, "RGBA"),
        ("png", PIXELS[..., 0] > 99, "1"),
        ("png", PIXELS[..., :1], "L"),
        ("pgm", PIXELS[..., 0], "L"),
        ("png", torch.from_numpy(PIXELS[..., 0].copy())[None], "L"),
        ("bmp", PIXELS, "RGB"),
    ],
)
def test_pixels_come_back_from_formats_without_loss(written, part, value, mode):
    image = Image.open(io.BytesIO(written({part: value})[part]))
    assert image.mode == mode
    assert np.array_equal(np.asarray(image), np.asarray(value).squeeze())


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("jpg", Image.fromarray(ALPHA), "cannot write mode RGBA as JPEG"),
        ("jpg", ALPHA, "RGBA"),
        ("ppm", ALPHA, "RGBA"),
        ("bmp", Image.fromarray(ALPHA), "would lose the transparency of mode RGBA"),
        ("webp", DEEP, "would lose the depth of mode I;16"),
        ("gif", DRAW.integers(0, 256, (32, 32, 3), dtype=np.uint8), "would lose colours"),
        ("npz", {"allow_pickle": np.zeros(1), "a": np.zeros(1)}, "takes 'allow_pickle' for an option"),
        ("npz", {"file": np.zeros(1)}, "takes 'file' for an option"),
        ("json", {"took": np.timedelta64(5, "ns")}, "cannot hold a value of type timedelta64"),
        ("gif", Image.fromarray(DEEP), "would lose the depth of mode I;16"),
        ("jpg", DEEP, "I;16"),
        ("png", PIXELS * 1.0, r"values from 0.0 to 255.0, and not from 0 to 1"),
        ("png", np.full((2, 2), np.nan), "from nan"),
        ("png", PIXELS.astype(np.int64), "int64 of shape"),
        ("png", torch.from_numpy(PIXELS), r"uint8 of shape \(12, 16, 3\) is no image"),
        ("png", PIXELS.transpose(2, 0, 1), r"\(3, 12, 16\) is no image"),
        ("png", np.zeros((0, 4, 3), np.uint8), "no image"),
        ("png", PIXELS[None], "no image"),
        ("jpg", "photo.jpg", "cannot hold a value of type str"),
        ("mp4", Image.fromarray(PIXELS), "cannot hold an image"),
        ("wav", PIXELS, "cannot hold a value of type ndarray"),
        ("npy", torch.ones(2, dtype=torch.bfloat16), "BFloat16"),
        ("npy", np.ma.array([1, 2], mask=[0, 1]), "lose its mask"),
        ("npy", [[1], [2, 3]], "inhomogeneous"),
        ("npz", PIXELS, "cannot hold a value of type ndarray"),
        ("npz", {"a": np.array([{}])}, "array of Python objects"),
        ("npz", {"file": PIXELS}, "file"),
        ("pth", {"when": datetime.date(2024, 1, 1)}, "weights_only=True"),
        ("pth", {"f": lambda: 0}, "weights_only=True"),
        ("pth", {"a": PIXELS}, "weights_only=True"),
        ("pth", {"a": bytearray(b"x")}, "bytearray"),
        ("pkl", {"a": 1}, "cannot hold a value of type dict"),
        ("pyd", [1], "cannot hold a value of type list"),
        ("json", {"a": b"raw"}, "cannot hold a value of type bytes"),
        ("json", {"a": Image.fromarray(PIXELS)}, "cannot hold a value of type Image"),
        ("msg", {"a": 1 << 70}, "cannot hold a value of type int"),
        ("msg", {"a": {1, 2}}, "cannot hold a value of type set"),
        ("msg", {(1, 2): 3}, "unhashable"),  # msgpack writes it, and cannot read it
        (
            "cbor",
            datetime.datetime(2024, 1, 1),
            r"no zone: give it one by replace\(tzinfo=UTC\), or write isoformat",
        ),
        ("json", {1: "a", "1": "b"}, "two keys are '1' in JSON"),
        ("json", [{"deep": ({None: 1, "null": 2},)}], "two keys are 'null'"),
        ("jsn", {True: 1, "true": 2}, "two keys are 'true'"),
        ("json", {1.5: 1, "1.5": 2}, "two keys are '1.5'"),
        ("bmp", turned(), "would lose the EXIF orientation of mode RGB"),
        ("webp", Image.new("RGB", (0, 0)), "cannot hold the image"),
        ("gif", Image.new("L", (70_000, 1)), "too big|cannot hold the image"),
        ("image", Image.fromarray(PIXELS), "cannot hold an image.* values need an extension such as jpg"),
        ("score", 0.5, "type float .* values need an extension such as jpg"),
        ("txt", None, "cannot hold a value of type NoneType"),
        ("txt", ["a", "b"], "cannot hold a value of type list"),
        ("txt", np.array(["a", "b"]), "cannot hold a value of type ndarray"),
        ("cls", 1.5, "cannot hold a value of type float"),
        ("cls", "cat", "invalid literal for int"),
        ("cls", torch.tensor([1, 2]), "cannot hold a value of type ndarray"),
        ("jpg", {"bytes": None, "path": "/etc/hostname"}, "has no bytes"),
        ("jpg", [], "cannot hold a value of type list"),
    ],
)
def test_what_a_part_cannot_hold_is_refused_by_name_and_nothing_is_written(tmp_path, part, value, message):
    with pytest.raises(EmptyDatasetError), ShardWriter(tmp_path / "a") as writer:  # noqa: PT012
        with pytest.raises(SampleError, match=message) as caught:
            writer.write({"__key__": "the-key", "aaa": b"x", part: value})
        text = str(caught.value)
        assert "'the-key'" in text
        assert f"the part {part!r} got a {type(value).__name__}" in text
        assert f"he part {part!r} takes bytes, a pathlib.Path of a file" in text
    assert not list((tmp_path / "a").glob("*.tar"))


@pytest.mark.parametrize(
    ("part", "value", "expected"),
    [
        ("txt", "", b""),
        ("txt", np.str_("a"), b"a"),
        ("txt", Colour.RED, b"red"),
        ("txt", 3, b"3"),
        ("txt", True, b"True"),
        ("txt", np.float32(0.5), b"0.5"),
        ("txt", torch.tensor(2), b"2"),
        ("txt", datetime.datetime(2024, 5, 6, 7), b"2024-05-06T07:00:00"),
        ("cls", np.int64(7), b"7"),
        ("cls", np.bool_(True), b"1"),
        ("cls", torch.tensor(7), b"7"),
        ("cls", np.array(7), b"7"),
        ("cls", "7", b"7"),
        ("json", None, b"null"),
        ("json", {"a": np.arange(2), "b": np.float32(0.5), "c": torch.ones(1, dtype=torch.bfloat16)}, None),
        ("json", [datetime.date(2024, 5, 6)], b'["2024-05-06"]'),
        ("json", {"bytes": 3, "path": "x"}, b'{"bytes": 3, "path": "x"}'),
        ("json", [], b"[]"),
        ("jpg", bytearray(b"as it is"), b"as it is"),
        ("pkl", b"as it is", b"as it is"),
    ],
)
def test_scalars_and_texts(written, part, value, expected):
    found = written({part: value})[part]
    assert found == (b"" if expected == b"" else expected or b'{"a": [0, 1], "b": 0.5, "c": [1.0]}')


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (torch.ones(2, 3, requires_grad=True), [[1.0] * 3] * 2),
        (torch.tensor([True, False]), [True, False]),
        (np.float64(0.25), 0.25),
        ([1, 2], [1, 2]),
        (torch.ones(2, dtype=torch.complex64).conj(), [1, 1]),
    ],
)
def test_npy(written, value, expected):
    assert np.load(io.BytesIO(written({"npy": value})["npy"])).tolist() == expected


def test_structures_of_other_formats(written):
    parts = written(
        {
            "npz": {"x": torch.arange(2), "y": PIXELS, "z": 3},
            "msg": {"x": np.arange(2), "day": datetime.date(2024, 5, 6)},
            "pt": {
                "x": torch.ones(2, dtype=torch.bfloat16),
                "y": [torch.ones(1, requires_grad=True)],
                "n": 1,
            },
            "pth": torch.zeros(1_000_000)[:3],
        }
    )
    with np.load(io.BytesIO(parts["npz"])) as arrays:
        assert arrays["x"].tolist() == [0, 1]
        assert np.array_equal(arrays["y"], PIXELS)
        assert arrays["z"] == 3
    assert msgpack.unpackb(parts["msg"]) == {"x": [0, 1], "day": "2024-05-06"}
    found = torch.load(io.BytesIO(parts["pt"]), weights_only=True)
    assert (found["x"].dtype, found["n"]) == (torch.bfloat16, 1)
    assert not found["y"][0].requires_grad
    assert len(parts["pth"]) < 5000  # a view does not bring all of its tensor


def test_a_path_is_the_content_of_its_file(written, tmp_path):
    file = tmp_path / "photo.jpg"
    file.write_bytes(b"of the file")
    assert written({"jpg": file, "json": file}) == {"jpg": b"of the file", "json": b"of the file"}


@pytest.mark.parametrize("name", ["missing.jpg", "."])
def test_a_path_without_a_file_is_named(tmp_path, name):
    with ShardWriter(tmp_path / "a") as writer:
        with pytest.raises(SampleError, match=r"sample 'k': \[Errno \d+\] .*") as caught:
            writer.write({"__key__": "k", "jpg": tmp_path / name})
        assert str(tmp_path / name) in str(caught.value)
        writer.write({"__key__": "l", "txt": "x"})
    assert parts_of(tmp_path / "a") == {"txt": b"x"}


def test_a_list_of_images_is_numbered_parts(written, tmp_path):
    (tmp_path / "b.png").write_bytes(b"b")
    images = [Image.fromarray(PIXELS), PIXELS, b"raw", tmp_path / "b.png"]
    found = written({"png": images, "json": [1, 2], "txt": "x"})
    assert sorted(found) == ["0.png", "1.png", "2.png", "3.png", "json", "txt"]
    assert found["0.png"] == found["1.png"]
    assert (found["2.png"], found["3.png"]) == (b"raw", b"b")


def test_a_numbered_part_that_is_there_already(tmp_path):
    with ShardWriter(tmp_path / "a") as writer:
        with pytest.raises(SampleError, match=r"the part '0\.png' is there twice"):
            writer.write({"__key__": "k", "png": [b"a"], "0.png": b"b"})
        writer.write({"__key__": "k", "png": [b"a"]})


def test_an_opened_image_keeps_its_file_until_it_is_changed(written):
    image, data = opened(Image.fromarray(PIXELS), "JPEG", quality=40)
    seen, same = opened(Image.fromarray(PIXELS), "JPEG", quality=40)
    small, _ = opened(Image.fromarray(np.tile(PIXELS, (8, 8, 1))), "JPEG", quality=40)
    small.draft("RGB", (64, 48))
    drawn, _ = opened(Image.fromarray(PIXELS), "TIFF")
    drawn.putpixel((0, 0), (1, 2, 3))
    frame, _ = opened(
        Image.fromarray(PIXELS), "TIFF", save_all=True, append_images=[Image.fromarray(PIXELS // 2)]
    )
    frame.seek(1)
    found = written(
        {"jpg": image, "small.jpg": small, "drawn.tif": drawn, "frame.tif": frame, "seen.png": seen}
    )
    assert found["jpg"] == data
    assert Image.open(io.BytesIO(found["small.jpg"])).size == small.size == (64, 48) or small.size == (32, 24)
    assert Image.open(io.BytesIO(found["drawn.tif"])).getpixel((0, 0)) == (1, 2, 3)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(found["frame.tif"]))), PIXELS // 2)
    decoded = np.asarray(Image.open(io.BytesIO(same)))
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(found["seen.png"]))), decoded)
    assert np.array_equal(np.asarray(image), decoded)  # it can still be loaded


@pytest.mark.parametrize("part", ["jpg", "png", "webp", "tif", "avif"])
@pytest.mark.parametrize("quality", [None, 80])
def test_a_colour_profile_is_kept_unless_it_is_of_other_colours(written, part, quality):
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    image, _ = opened(Image.fromarray(PIXELS), "JPEG", icc_profile=profile)
    found = written({part: image.resize((8, 8)), "grey.jpg": image.convert("L")}, quality=quality)
    assert Image.open(io.BytesIO(found[part])).info["icc_profile"] == profile
    assert "icc_profile" not in Image.open(io.BytesIO(found["grey.jpg"])).info


@pytest.mark.parametrize("frames", [0, 2])
def test_a_webp_that_was_opened_keeps_its_file_and_one_that_was_loaded_its_pixels(written, frames):
    more = [Image.fromarray(PIXELS // (2 + each)) for each in range(frames)]
    image, data = opened(Image.fromarray(PIXELS), "WEBP", quality=50, save_all=True, append_images=more)
    loaded = Image.open(io.BytesIO(data))
    loaded.load()
    found = written({"webp": image, "seen.webp": loaded})
    assert found["webp"] == data
    seen = Image.open(io.BytesIO(found["seen.webp"]))
    assert np.array_equal(np.asarray(seen.convert("RGB")), np.asarray(image.convert("RGB")))


def test_a_gif_takes_what_its_colours_show(written):
    few = Image.fromarray(PIXELS // 128 * 128)
    found = Image.open(io.BytesIO(written({"gif": few})["gif"])).convert("RGB")
    assert np.array_equal(np.asarray(found), np.asarray(few))


def test_times_of_numpy_are_texts_to_the_nanosecond(written):
    times = np.array(["2026-01-02T03:04:05.123456789", "NaT"], "M8[ns]")
    found = written(
        {"json": {"all": times, "one": times[0], "day": times[0].astype("M8[D]")}, "msg": times[0]}
    )
    text = "2026-01-02T03:04:05.123456789"
    assert json.loads(found["json"]) == {"all": [text, None], "one": text, "day": "2026-01-02"}
    assert msgpack.unpackb(found["msg"]) == text


def test_an_image_of_numbers_in_the_other_byte_order(written):
    found = Image.open(io.BytesIO(written({"png": DEEP.astype(">u2")})["png"]))
    assert np.array_equal(np.asarray(found), DEEP)


@pytest.mark.parametrize("part", ["jpg", "png", "webp", "tif"])
@pytest.mark.parametrize("orientation", [3, 6])
def test_a_photo_that_lies_on_its_side_does_so_when_written(written, part, orientation):
    image = turned("PNG", orientation)
    data = written({part: image}, quality=100)[part]
    found = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
    expected = np.asarray(ImageOps.exif_transpose(image))
    assert found.shape == expected.shape
    assert part in ("jpg", "webp") or np.array_equal(found, expected)


def test_a_photo_of_a_phone_keeps_its_file(written):
    image, data = opened(
        Image.fromarray(PIXELS), "MPO", save_all=True, append_images=[Image.fromarray(PIXELS)]
    )
    assert image.format == "MPO"
    assert written({"jpg": image})["jpg"] == data


@pytest.mark.parametrize("part", ["webp", "bmp"])
def test_transparency_that_nothing_shows_through_is_not_lost(written, part):
    image = Image.fromarray(PIXELS).convert("RGBA")
    found = Image.open(io.BytesIO(written({part: image})[part])).convert("RGB")
    assert np.array_equal(np.asarray(found), PIXELS)


@pytest.mark.parametrize(("part", "name"), [("jpg", "JPEG"), ("webp", "WEBP")])
def test_quality(written, part, name):
    image, _ = opened(Image.fromarray(PIXELS), name, quality=90)
    expected = io.BytesIO()
    image.copy().save(expected, name, quality=30)
    assert written({part: image}, quality=30)[part] == expected.getvalue()


@pytest.mark.parametrize("quality", [0, 101])
def test_a_quality_that_is_none(tmp_path, quality):
    with pytest.raises(ConfigError, match="quality is"):
        ShardWriter(tmp_path / "a", quality=quality)


def test_a_writer_that_goes_on_must_have_the_same_quality_and_type(tmp_path):
    ShardWriter(tmp_path / "a", quality=50, sample_type=TextSample).abort()
    with pytest.raises(ConfigError, match="quality is None, but it was 50 before"):
        ShardWriter(tmp_path / "a", sample_type=TextSample)
    with pytest.raises(ConfigError, match="sample_type and field_map is None, but it was"):
        ShardWriter(tmp_path / "a", quality=50)


def read(folder):
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    options = {"shuffle_buffer_size": None, "max_samples_per_sequence": None, "repeat": False}
    dataset = get_train_dataset(folder, batch_size=1, worker_config=config, **options)
    return sorted(get_loader(dataset), key=lambda batch: batch.__key__)


@pytest.mark.parametrize("sample_type", [CaptioningSample, "CaptioningSample"])
def test_samples_of_a_type_load_as_that_type(tmp_path, sample_type):
    image = torch.from_numpy(PIXELS).permute(2, 0, 1) / 255
    with ShardWriter(
        tmp_path / "a", sample_type=sample_type, field_map={"image": "png", "caption": "txt"}
    ) as writer:
        writer.write(CaptioningSample(__key__="0", __restore_key__=(), image=image, caption="a"))
        writer.write({"__key__": "1", "png": Image.fromarray(PIXELS), "txt": "b"})
    found = read(tmp_path / "a")
    assert [batch.caption for batch in found] == [["a"], ["b"]]
    assert type(found[0]).__name__.startswith("CaptioningSample") or hasattr(found[0], "image")
    assert all(torch.equal(batch.image[0], image) for batch in found)


def test_samples_of_writers_side_by_side_have_the_type(tmp_path):
    for part in range(2):
        with ShardWriter(tmp_path / "a", part=part, parts=2, sample_type=TextSample) as writer:
            writer.write(TextSample(__key__=f"{part}", __restore_key__=(), text=f"text {part}"))
    finish_dataset(str(tmp_path / "a"))
    assert [batch.text for batch in read(tmp_path / "a")] == [["text 0"], ["text 1"]]


def test_a_type_of_the_user_with_fields_in_one_json(tmp_path):
    places = {"picture": "png", "title": "json[title]", "words": "json[more][words]"}
    with ShardWriter(tmp_path / "a", sample_type=Page, field_map=places) as writer:
        page = Page(__key__="0", __restore_key__=(), picture=PIXELS, title="a", words=["b", "c"])
        writer.write(page)
        page.note = "kept"
        with pytest.raises(SampleError, match="sample '0': field_map has no part for the field 'note'"):
            writer.write(page)
    assert json.loads(parts_of(tmp_path / "a")["json"]) == {"title": "a", "more": {"words": ["b", "c"]}}
    assert Page.__module__ in sys.modules
    (batch,) = read(tmp_path / "a")
    assert (batch.title, batch.words) == (["a"], [["b", "c"]])


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (
            {"__key__": "k", "image": b"x", "caption": b"y"},
            r"parts caption, image, and none for the field 'image'",
        ),
        ({"__key__": "k", "jpg": [b"x", b"y"], "txt": "y"}, "none for the field 'image'"),
        (TextSample(__key__="k", __restore_key__=(), text="x"), "no instance of CaptioningSample"),
        (CaptioningSample(__key__="k", __restore_key__=(), image=None, caption="x"), "'jpg' got a NoneType"),
        (("k", "x"), "a tuple is no dict"),
    ],
)
def test_a_sample_that_readers_could_not_make_is_refused(tmp_path, sample, message):
    with ShardWriter(tmp_path / "a", sample_type=CaptioningSample) as writer:
        with pytest.raises(SampleError, match=message):
            writer.write(sample)
        writer.write({"__key__": "k", "JPG": b"x", "txt": "y"})


def test_an_instance_needs_a_type(tmp_path):
    with ShardWriter(tmp_path / "a") as writer:
        with pytest.raises(SampleError, match="no instance of a sample_type"):
            writer.write(TextSample(__key__="k", __restore_key__=(), text="x"))
        writer.write({"__key__": "k", "txt": "x"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sample_type": "CaptionSample"}, "no sample type 'CaptionSample'"),
        ({"sample_type": VQASample}, "field_map"),
        ({"sample_type": CaptioningSample, "field_map": {"image": "jpg"}}, "lacks caption"),
        (
            {"sample_type": CaptioningSample, "field_map": {"image": "jpg", "caption": "jpg"}},
            "in the same place",
        ),
        ({"sample_type": TextSample, "field_map": {"texts": "txt"}}, "no field of TextSample"),
        ({"field_map": {"image": "jpg"}}, "field_map needs a sample_type"),
        ({"sample_type": TextSample, "dataset_yaml": None}, "either dataset_yaml"),
    ],
)
def test_wrong_types_are_named_before_anything_is_written(tmp_path, options, message):
    with pytest.raises((ConfigError, MetadataError), match=message):
        ShardWriter(tmp_path / "a", **options)
    assert not (tmp_path / "a").exists()


def test_labels(tmp_path):
    with ShardWriter(tmp_path / "a", sample_type=ImageClassificationSample) as writer:
        for number in range(2):
            writer.write(
                ImageClassificationSample(__key__=f"{number}", __restore_key__=(), image=PIXELS, label=number)
            )
    assert [int(batch.label[0]) for batch in read(tmp_path / "a")] == [0, 1]
