"""Faster decoders of JPEG files, and reduced sizes: the pixels are Pillow's."""

import io
import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from energon_stream import Limits, SampleDecoder
from energon_stream.decode import IMAGE_MODES
from energon_stream.decode.jpeg import (
    IMAGE_BACKENDS,
    JpegHeader,
    check_backend,
    read_jpeg_header,
    reduction_to,
)
from energon_stream.errors import ConfigError, DecodeError, MissingPackageError, PartLimitError


def importable(backend):
    try:
        check_backend(backend)
    except MissingPackageError:
        return False
    return True


FAST = [
    pytest.param(name, marks=pytest.mark.skipif(not importable(name), reason=f"{name} does not import"))
    for name in IMAGE_BACKENDS[1:3]  # not the GPU's, which decodes elsewhere
]


def picture(height=45, width=67, bands=3, seed=0):
    """Smooth colours with noise, as photos have."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (6, 8, bands), dtype=np.uint8).squeeze())
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    return np.clip(smooth + rng.integers(-9, 10, smooth.shape), 0, 255).astype(np.uint8)


def saved(image, kind="JPEG", **options):
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def exif(orientation):
    made = Image.Exif()
    made[0x0112] = orientation
    return made


COLOURS, GREY = Image.fromarray(picture()), Image.fromarray(picture(bands=1))
FILES = {
    "4:2:0": saved(COLOURS),
    "4:4:4": saved(COLOURS, quality=95, subsampling=0),
    "4:2:2": saved(COLOURS, subsampling=1),
    "progressive": saved(COLOURS, progressive=True),
    "restarts": saved(COLOURS, restart_marker_rows=1),
    "comment": saved(COLOURS, comment=b"a dog"),
    "grey": saved(GREY),
    "not YCbCr": saved(COLOURS, keep_rgb=True),
    "one pixel": saved(COLOURS.crop((0, 0, 1, 1))),
    "one row": saved(COLOURS.crop((0, 0, 60, 1))),
    "three pixels": saved(COLOURS.crop((0, 0, 3, 3))),
    "rotated by EXIF": saved(COLOURS, exif=exif(6)),
    "colour profile": saved(COLOURS, icc_profile=b"profile" * 20_000),
    "CMYK": saved(COLOURS.convert("CMYK")),
    "palette": saved(COLOURS.quantize(16), "PNG"),
    "16 bits": saved(Image.fromarray(picture(bands=1).astype(np.int32) * 200).convert("I;16"), "PNG"),
    "RGBA": saved(Image.fromarray(picture(bands=4)), "PNG"),
    "WebP": saved(COLOURS, "WEBP", lossless=True),
}


def same(one, other):
    if isinstance(other, Image.Image):
        own = {
            "jfif",
            "jfif_version",
            "jfif_unit",
            "jfif_density",
            "dpi",
            "adobe",
            "adobe_transform",
            "progressive",
            "progression",
        }
        kept = [
            {name: value for name, value in image.info.items() if name not in own} for image in (one, other)
        ]
        return one.mode == other.mode and kept[0] == kept[1] and np.array_equal(one, other)
    if isinstance(other, torch.Tensor):
        assert one.is_contiguous()
        return one.dtype == other.dtype and torch.equal(one, other)
    assert one.flags.writeable
    assert one.flags.c_contiguous
    return one.dtype == other.dtype and np.array_equal(one, other)


@pytest.mark.every(5)
@pytest.mark.parametrize("least", [None, (20, 20), (3, 5), (1, 1)])
@pytest.mark.parametrize("mode", IMAGE_MODES)
@pytest.mark.parametrize("backend", FAST)
def test_every_mode_of_every_file_has_pillows_pixels(backend, mode, least):
    pillow = SampleDecoder(image_decode=mode, image_min_size=least)
    fast = SampleDecoder(image_decode=mode, image_min_size=least, image_backend=backend)
    for name, data in FILES.items():
        expected, found = pillow.decode("jpg", data), fast.decode("jpg", data)
        assert type(found) is type(expected), name
        assert same(found, expected), name


@pytest.mark.parametrize("backend", FAST)
def test_colour_and_grey_jpegs_do_not_reach_pillow(backend, monkeypatch):
    decoder = SampleDecoder(image_decode="torchrgb", image_backend=backend)

    def refuse(*_):
        raise ValueError("Pillow was asked")

    Image.init()
    for name in Image.OPEN:
        monkeypatch.setitem(Image.OPEN, name, (refuse, None))
    for name in (
        "4:2:0",
        "4:4:4",
        "4:2:2",
        "progressive",
        "restarts",
        "grey",
        "rotated by EXIF",
        "colour profile",
    ):
        assert decoder.decode("jpg", FILES[name]).shape == (3, 45, 67)
    for name in ("CMYK", "palette", "16 bits", "RGBA", "WebP"):
        with pytest.raises(DecodeError):
            decoder.decode("jpg", FILES[name])
    reduced = SampleDecoder(image_decode="rgb8", image_backend=backend, image_min_size=(9, 9))
    if backend == "simplejpeg":
        assert reduced.decode("jpg", FILES["4:2:0"]).shape == (12, 17, 3)


def outcome(decoder, data):
    try:
        return decoder.decode("jpg", data)
    except DecodeError as error:
        return error.what


@pytest.mark.parametrize("backend", FAST)
def test_damaged_files_are_pillows_to_judge(backend):
    pillow, fast = (
        SampleDecoder(image_decode="rgb8"),
        SampleDecoder(image_decode="rgb8", image_backend=backend),
    )
    rng = np.random.default_rng(5)
    outcomes = set()
    for _ in range(150):
        data = bytearray(FILES[str(rng.choice(["4:2:0", "progressive", "grey"]))])
        for _ in range(rng.integers(1, 4)):
            data[rng.integers(2, len(data))] = rng.integers(256)
        data = bytes(data[: rng.integers(len(data) // 2, 2 * len(data))])
        expected, found = outcome(pillow, data), outcome(fast, data)
        assert np.array_equal(found, expected)
        outcomes.add(type(expected))
    assert outcomes == {str, np.ndarray}


@pytest.mark.parametrize("backend", ["pillow", *FAST])
def test_limits_hold_before_anything_is_decoded(backend, monkeypatch):
    data = saved(COLOURS.resize((1200, 900)))
    options = {"image_backend": backend, "image_min_size": (1, 1)}
    with pytest.raises(PartLimitError, match="1,200 x 900 pixels"):
        SampleDecoder(limits=Limits(image_pixels=1 << 20), **options).decode("jpg", data)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1 << 18)
    with pytest.raises(PartLimitError, match="limit"):
        SampleDecoder(**options).decode("jpg", data)


SIZES = [((45, 67), (45, 67), 1), ((45, 67), (23, 30), 1), ((45, 67), (22, 33), 2), ((64, 64), (16, 16), 4)]


@pytest.mark.parametrize(
    ("size", "least", "reduction"), [*SIZES, ((64, 900), (2, 200), 4), ((64, 64), (8, 8), 8)]
)
def test_images_shrink_as_far_as_the_least_size_allows(size, least, reduction):
    assert reduction_to(size, least) == reduction
    data = saved(Image.fromarray(picture(*size)))
    decoded = SampleDecoder(image_decode="l8", image_min_size=least).decode("jpg", data)
    assert decoded.shape == tuple(-(-side // reduction) for side in size)
    assert min(np.array(decoded.shape) - least) >= 0


def test_a_reduced_image_is_near_the_mean_of_its_blocks():
    data = saved(Image.fromarray(picture(128, 192)), quality=95)
    whole = SampleDecoder(image_decode="rgb8").decode("jpg", data).astype(float)
    reduced = SampleDecoder(image_decode="rgb8", image_min_size=(32, 32)).decode("jpg", data)
    blocks = whole.reshape(32, 4, 48, 4, 3).mean((1, 3))
    assert np.abs(blocks - reduced).mean() < 2


def test_headers_of_other_files_are_none():
    header = read_jpeg_header(FILES["4:2:0"])
    assert header == JpegHeader(45, 67, 3, False)
    assert read_jpeg_header(FILES["grey"]) == JpegHeader(45, 67, 1, False)
    assert read_jpeg_header(FILES["rotated by EXIF"]).has_metadata
    for name in ("CMYK", "palette", "WebP"):
        assert read_jpeg_header(FILES[name]) is None
    frame = FILES["4:2:0"].index(b"\xff\xc0")
    for data in (b"", b"\xff\xd8", FILES["4:2:0"][: frame + 9], b"\xff\xd8" + FILES["4:2:0"][frame - 1 :]):
        assert read_jpeg_header(data) is None
    for place, value in ((2, 0), (3, 1), (4, 12), (6, 0), (9, 2)):  # length, length, bits, height, components
        changed = bytearray(FILES["4:2:0"])
        changed[frame + place] = value
        if place == 6:
            changed[frame + 5] = 0
        found = read_jpeg_header(bytes(changed))
        assert found is None or place in (2, 3)
    lossless = FILES["4:2:0"].replace(b"\xff\xc0", b"\xff\xc3")
    assert read_jpeg_header(lossless) is None


def test_a_decoder_says_what_is_wrong_with_its_options():
    with pytest.raises(ConfigError, match=r"image_backend is 'turbo'.*simplejpeg"):
        SampleDecoder(image_backend="turbo")
    for size in (5, (0, 5), (5,), "ab", (2.5, 3), (1, 2, 3)):
        with pytest.raises(ConfigError, match="image_min_size is"):
            SampleDecoder(image_min_size=size)
    made = SampleDecoder(image_min_size=[4, 6])
    assert made.image_min_size == (4, 6)
    assert made.config()["image_min_size"] == (4, 6)
    assert "image_backend" not in SampleDecoder().config()
    assert pickle.loads(pickle.dumps(made)) == made


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "simplejpeg", None)
    with pytest.raises(MissingPackageError, match=r"energon-stream\[fast-images\]"):
        SampleDecoder(image_backend="simplejpeg")
