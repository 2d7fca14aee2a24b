import ast
import gzip
import io
import json
import pickle

import cbor2
import msgpack
import numpy as np
import pytest
import torch
from PIL import Image
from webdataset import tenbin

from energon_stream.decode import IMAGE_MODES, SampleDecoder
from energon_stream.decode.unpacking import read_npy
from energon_stream.errors import ConfigError, DecodeError
from energon_stream.limits import TRUST_VARIABLE

RNG = np.random.default_rng(0)


def saved(write, value):
    stream = io.BytesIO()
    write(stream, value)
    return stream.getvalue()


def png(image):
    return saved(lambda stream, value: value.save(stream, "PNG"), image)


IMAGES = {
    "rgb, all values": Image.fromarray(np.arange(256 * 3, dtype=np.uint8).reshape(16, 16, 3)),
    "rgba": Image.fromarray(RNG.integers(0, 256, (5, 7, 4), dtype=np.uint8)),
    "grey": Image.fromarray(RNG.integers(0, 256, (6, 4), dtype=np.uint8)),
    "palette": Image.fromarray(RNG.integers(0, 256, (5, 7, 3), dtype=np.uint8)).quantize(16),
}


@pytest.mark.parametrize("mode", IMAGE_MODES)
@pytest.mark.parametrize("name", IMAGES)
def test_every_image_mode_gives_pillows_pixels(mode, name):
    colours = "L" if "l" in mode.removeprefix("pil") else "RGBA" if "rgba" in mode else "RGB"
    expected = np.asarray(IMAGES[name].convert(colours))
    decoded = SampleDecoder(image_decode=mode).decode("x.PNG", memoryview(png(IMAGES[name])))
    if mode.startswith("pil"):
        assert isinstance(decoded, Image.Image)
        assert decoded.mode == colours
        assert np.array_equal(decoded, expected)
        return
    if mode.startswith("torch"):
        assert isinstance(decoded, torch.Tensor)
        assert decoded.is_contiguous()
        decoded = decoded.numpy()
        if colours != "L":
            decoded = decoded.transpose(1, 2, 0)
    if mode.endswith("8"):
        assert decoded.dtype == np.uint8
    else:
        assert decoded.dtype == np.float32
        expected = expected.astype(np.float32) / np.float32(255)
    assert decoded.flags.writeable
    assert np.array_equal(decoded, expected)


def test_an_image_decodes_to_colours_height_width_in_0_to_1_by_default():
    assert len(IMAGE_MODES) == 17
    image = SampleDecoder().decode("jpg", png(Image.new("RGB", (4, 2), (255, 0, 51))))
    assert image.shape == (3, 2, 4)
    assert image[:, 0, 0].tolist() == pytest.approx([1.0, 0.0, 0.2])
    assert SampleDecoder(image_decode=None).decode("jpg", b"any") == b"any"


ARRAY = RNG.normal(size=(2, 3))
VALUES = {
    "txt": ("Grüße".encode(), "Grüße"),
    "transcript": (b"said", "said"),
    "cls": (b"17\n", 17),
    "id": (b"-3", -3),
    "json": (b'{"a": [1, null]}', {"a": [1, None]}),
    "left.jsn": (b"[1]", [1]),
    "JSON": (b"[1]", [1]),
    "npy": (saved(np.save, ARRAY), ARRAY),
    "npz": (saved(lambda stream, value: np.savez(stream, a=value), ARRAY), {"a": ARRAY}),
    "pth": (saved(lambda stream, value: torch.save(value, stream), torch.arange(3)), torch.arange(3)),
    "msg": (msgpack.packb({"a": 1, 2: b"x"}), {"a": 1, 2: b"x"}),
    "cbor": (cbor2.dumps({"a": [1, 2]}), {"a": [1, 2]}),
    "ten": (bytes(tenbin.encode_buffer([ARRAY])), [ARRAY]),
    "txt.gz": (gzip.compress(b"packed"), "packed"),
    "gz": (gzip.compress(b"packed"), b"packed"),
    "weights.bin": (b"\0\1", b"\0\1"),
    "h5": (b"HDF", b"HDF"),
}


def equal(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool((one == other).all()) if isinstance(one, (np.ndarray, torch.Tensor)) else one == other


@pytest.mark.parametrize("name", VALUES)
def test_the_extension_decides(name):
    data, expected = VALUES[name]
    decoded = SampleDecoder().decode(name, memoryview(data))
    assert type(decoded) is type(expected)
    assert equal(decoded, expected)


@pytest.mark.parametrize("name", [*(n for n, v in VALUES.items() if type(v[1]) is not bytes), "png", "gz"])
def test_damaged_parts_are_named_with_their_cause(name):
    data = VALUES[name][0] if name in VALUES else png(IMAGES["grey"])
    damaged = b"\xfe\xff" + data[2 : len(data) // 2] + b"\xff"
    with pytest.raises(DecodeError, match=rf"part '{name}' of \d+ bytes cannot be decoded: \w+") as raised:
        SampleDecoder().decode(name, damaged)
    assert raised.value.__cause__ is not None


class Marker:
    pass


def test_nothing_is_unpickled_unless_allowed(monkeypatch):
    trusting = SampleDecoder(allow_pickle=True)
    data = pickle.dumps({"a": 1})
    for name in ("pkl", "pickle", "pyd", "x.pkl.gz"):
        part = gzip.compress(data) if name.endswith("gz") else data
        with pytest.raises(DecodeError, match="allow_pickle=True"):
            SampleDecoder().decode(name, part)
        assert trusting.decode(name, part) == {"a": 1}
        with monkeypatch.context() as patch:
            patch.setenv(TRUST_VARIABLE, "1")
            assert SampleDecoder().decode(name, part) == {"a": 1}
            with pytest.raises(DecodeError, match=f"{TRUST_VARIABLE}=1"):
                SampleDecoder(allow_pickle=False).decode(name, part)
    for name, unsafe in {
        "pth": saved(lambda stream, value: torch.save(value, stream), Marker()),
        "npy": saved(np.save, np.array([Marker()])),
    }.items():
        with pytest.raises(DecodeError):
            SampleDecoder().decode(name, unsafe)


def test_content_is_guessed_only_when_asked_and_unknown():
    data = png(IMAGES["grey"])
    assert SampleDecoder().decode("picture", data) == data
    guessing = SampleDecoder(guess_content=True)
    assert guessing.decode("picture", data).shape == (3, 6, 4)
    assert guessing.decode("json", json.dumps("x").encode()) == "x"
    assert guessing.decode("other", b"plain") == b"plain"


@pytest.mark.parametrize("options", [{"image_decode": "jpeg"}, {"av_decode": "ffmpeg"}])
def test_unknown_modes_are_named_with_the_known_ones(options):
    with pytest.raises(ConfigError, match=r"torchrgb|AVDecoder"):
        SampleDecoder(**options)


def test_decoders_are_values():
    assert SampleDecoder("pil") == pickle.loads(pickle.dumps(SampleDecoder(image_decode="pil")))


def test_images_have_webdatasets_extensions():
    from webdataset import autodecode

    from energon_stream.decode.images import IMAGE_EXTENSIONS

    # Pillow knows these by name only and cannot open the files.
    unreadable = {"bufr", "grib", "h5", "hdf", "mpeg", "mpg"}
    assert set(autodecode.IMAGE_EXTENSIONS) - unreadable | {"avif"} == IMAGE_EXTENSIONS


@pytest.mark.filterwarnings("ignore:Stored array in format 3.0")
@pytest.mark.parametrize("name", ["größeł", "名前", "名\x85"])
def test_names_of_fields_of_npy_files_are_those_that_numpy_reads(name):
    array = np.array([(1, 2.5), (3, -1.0)], dtype=[(name, "<i4"), ("b", [("ü", ">f8")])])
    data = saved(np.save, array)
    assert data[6] == 3  # the version of the format
    expected = np.load(io.BytesIO(data))
    for found in (
        SampleDecoder().decode("npy", data),
        SampleDecoder().decode("npz", saved(np.savez, array))["arr_0"],
    ):
        assert (found.dtype, found.tolist()) == (expected.dtype, expected.tolist())
        found[name] = 7  # it is writable


def test_an_npy_file_of_an_unknown_version_is_refused():
    data = bytearray(saved(np.save, np.arange(3)))
    data[6] = 4
    with pytest.raises(DecodeError, match=r"npy format 4.0 is unknown"):
        SampleDecoder().decode("npy", bytes(data))


def test_an_array_is_read_though_another_thread_parses(monkeypatch):
    """Python 3.11's parser of literals, which reads headers, is not safe there."""
    parse, failed = ast.literal_eval, iter([SystemError("AST constructor recursion depth mismatch")] * 2)

    def flaky(text):
        for error in failed:
            raise error
        return parse(text)

    monkeypatch.setattr(ast, "literal_eval", flaky)
    file = io.BytesIO()
    np.save(file, np.arange(3))
    assert read_npy(file.getvalue()).tolist() == [0, 1, 2]
