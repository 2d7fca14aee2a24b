"""Odd pictures are decoded as Pillow decodes them, and options turn and scale them as Pillow does."""

from __future__ import annotations

import io

import numpy as np
import pytest
from odd_datasets import PICTURES, encoded, jpeg, picture
from PIL import Image, ImageOps

from energon_stream import SampleDecoder
from energon_stream.decode.images import IMAGE_MODES, image_remarks
from energon_stream.errors import DecodeError

BAD = {"truncated_jpeg", "truncated_png", "empty_picture", "html_as_jpeg"}
GOOD = sorted(PICTURES.keys() - BAD)
COLOURS = {"L": "l", "RGB": "rgb", "RGBA": "rgba"}


def pillow(data, colours, change=lambda image: image):
    """Return the pixels that Pillow makes of a file."""
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(change(image).convert(colours))


def pixels(value, mode):
    """Return what a mode made as bytes of shape (height, width) or (height, width, colours)."""
    container, floating = IMAGE_MODES[mode].container, IMAGE_MODES[mode].floating
    found = np.asarray(value)
    found = np.rint(found * 255).astype(np.uint8) if floating else found
    return found.transpose(1, 2, 0) if container == "torch" and found.ndim == 3 else found


@pytest.mark.parametrize("backend", ["pillow", "simplejpeg"])
@pytest.mark.parametrize("name", GOOD)
def test_pictures_are_those_of_pillow(name, backend):
    _, extension, data = PICTURES[name]
    for mode, about in IMAGE_MODES.items():
        decoder = SampleDecoder(image_decode=mode, image_backend=backend)
        for part in (extension, extension.upper()):
            found = pixels(decoder.decode(part, data), mode)
            np.testing.assert_array_equal(found, pillow(data, about.colours), err_msg=mode)


@pytest.mark.parametrize("name", sorted(BAD))
def test_bad_pictures_are_named(name):
    _, extension, data = PICTURES[name]
    with pytest.raises(DecodeError, match=f"part {extension!r} of {len(data)} bytes"):
        SampleDecoder().decode(extension, data)


@pytest.mark.parametrize("backend", ["pillow", "simplejpeg"])
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_orientation_is_applied_as_pillow_does(form, backend):
    for orientation in (*range(9), 77):
        exif = Image.Exif()
        exif[0x0112] = orientation
        data = encoded(picture(), form, exif=exif)
        for mode in ("torchrgb8", "l8", "pil"):
            decoder = SampleDecoder(image_decode=mode, image_backend=backend, apply_exif_orientation=True)
            expected = pillow(data, IMAGE_MODES[mode].colours, ImageOps.exif_transpose)
            found = pixels(decoder.decode(form.lower(), data), mode)
            np.testing.assert_array_equal(found, expected, err_msg=f"{orientation} {mode}")


def test_a_turned_jpeg_keeps_the_least_size():
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(picture(size=(640, 80)), "JPEG", exif=exif)  # 640 high and 80 wide, as it is meant
    decoder = SampleDecoder(image_decode="rgb8", image_min_size=(160, 20), apply_exif_orientation=True)
    assert decoder.decode("jpg", data).shape == (160, 20, 3)
    assert SampleDecoder(image_decode="rgb8", image_min_size=(160, 20)).decode("jpg", data).shape[1] == 640


@pytest.mark.parametrize("name", ["grey_16_png", "grey_16_tiff"])
def test_sixteen_bits_are_scaled_to_eight(name):
    _, extension, data = PICTURES[name]
    with Image.open(io.BytesIO(data)) as image:
        high = np.asarray(image).astype(np.uint32) // 256
    decoder = SampleDecoder(image_decode="l8", scale_16_bit=True)
    np.testing.assert_array_equal(decoder.decode(extension, data), high)
    assert (SampleDecoder(image_decode="l8").decode(extension, data) == 255).mean() > 0.9
    colours = SampleDecoder(image_decode="rgb8", scale_16_bit=True).decode(extension, data)
    np.testing.assert_array_equal(colours, np.repeat(high[:, :, None], 3, axis=2))
    eight = SampleDecoder(image_decode="rgb8", scale_16_bit=True).decode("jpg", jpeg())
    np.testing.assert_array_equal(eight, pillow(jpeg(), "RGB"))


def test_options_are_part_of_the_description():
    assert "scale_16_bit" not in SampleDecoder().config()
    described = SampleDecoder(scale_16_bit=True, apply_exif_orientation=True).config()
    assert described["scale_16_bit"] is described["apply_exif_orientation"] is True


@pytest.mark.parametrize(
    ("name", "remark"),
    [
        ("exif_orientation", "EXIF orientation"),
        ("exif_in_png", "EXIF orientation"),
        ("grey_16_png", "16 bits"),
        ("grey_16_tiff", "16 bits"),
        ("float_tiff", "32 bits"),
        ("frames_tiff", "several frames"),
        ("frames_gif", "several frames"),
        ("frames_webp", "several frames"),
        ("frames_png", "several frames"),
        ("cmyk_jpeg", None),
        ("palette_png", None),
        ("avif", None),
    ],
)
def test_what_decoding_leaves_out_is_known(name, remark):
    found = image_remarks(PICTURES[name][2])
    assert found == [] if remark is None else [remark in text for text in found] == [True]


def test_arrays_of_objects_are_pickles():
    objects = np.array([{"a": 1}, None], dtype=object)
    npy, npz = io.BytesIO(), io.BytesIO()
    np.save(npy, objects)
    np.savez(npz, objects=objects)
    trusting = SampleDecoder(allow_pickle=True)
    assert trusting.decode("npy", npy.getvalue()).tolist() == objects.tolist()
    assert trusting.decode("npz", npz.getvalue())["objects"].tolist() == objects.tolist()
    for part, data in (("npy", npy), ("npz", npz)):
        with pytest.raises(DecodeError, match="pickled objects") as caught:
            SampleDecoder().decode(part, data.getvalue())
        assert "allow_pickle=True" in caught.value.hint
