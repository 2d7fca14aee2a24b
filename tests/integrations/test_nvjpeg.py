"""JPEG files decoded where the batch goes, with a stand-in for the GPU. Pillow says what is right."""

import io
import logging

import numpy as np
import pytest
import torch
from PIL import Image
from repetitions import is_nightly

from energon_stream import (
    Batch,
    DefaultTaskEncoder,
    EncodedImages,
    SampleDecoder,
    WorkerConfig,
    edataclass,
    generic_concat,
    get_savable_loader,
    get_val_dataset,
)
from energon_stream.errors import ConfigError, DecodeError, PartLimitError
from energon_stream.integrations.device import decode_images, prefetch_to_device
from energon_stream.limits import Limits
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import write_shards

YAML = {
    "__module__": "megatron.energon",
    "__class__": "ImageClassificationWebdataset",
    "field_map": {"image": "jpg", "label": "cls"},
}


def picture(number, size=(20, 14)):
    rng = np.random.default_rng(number)
    return Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))


def saved(image, kind="JPEG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def by_pillow(data):
    with Image.open(io.BytesIO(data)) as image:
        return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


FILES = [
    saved(picture(0)),
    saved(picture(1), progressive=True),
    saved(picture(2).convert("L")),
    saved(picture(3), "PNG"),
    saved(picture(4).convert("CMYK")),
    saved(picture(5), subsampling=0, keep_rgb=True),
    saved(picture(6)) + b"\0\0",  # something after the end
    saved(picture(7, (31, 9))),
    saved(picture(8).convert("RGBA"), "WEBP", lossless=True),
]
FOR_GPU = [0, 1, 2, 7]


class Encoder(DefaultTaskEncoder):
    def __init__(self, mode="torchrgb8", **options):
        super().__init__()
        self.decoder = SampleDecoder(image_decode=mode, image_backend="nvjpeg", **options)


@pytest.fixture
def folder(tmp_path):
    write_shards(
        tmp_path / "images",
        shards=3,
        samples_per_shard=3,
        parts=lambda number: {"jpg": FILES[number], "cls": str(number).encode()},
    )
    prepare_dataset(str(tmp_path / "images"), split_ratio=(0, 1, 0), dataset_yaml=YAML)
    return tmp_path / "images"


def open_loader(folder, encoder, workers=0, batch_size=9):
    config = WorkerConfig(0, 1, workers, num_streams=1)
    return get_savable_loader(
        get_val_dataset(folder, batch_size=batch_size, task_encoder=encoder, worker_config=config)
    )


class Gpu:
    """Decodes as a GPU does: whole batches, of which it refuses some. Notes what it gets."""

    def __init__(self, refuses=()):
        self.refuses, self.calls = refuses, []

    def __call__(self, files, device):
        self.calls.append([FILES.index(file.numpy().tobytes()) for file in files])
        assert device.type == "cpu"
        if set(self.refuses) & set(self.calls[-1]):
            raise RuntimeError("nvjpegDecodeBatched failed")
        return [by_pillow(file.numpy().tobytes()) for file in files]


def assert_pixels(batch, places, floating=False):
    wanted = [by_pillow(FILES[place]) for place in places]
    assert batch.image.shape == (len(wanted), 3, *np.max([each.shape[1:] for each in wanted], axis=0))
    for found, pixels in zip(batch.image, wanted, strict=True):
        height, width = pixels.shape[1:]
        pixels = pixels.float() / 255 if floating else pixels
        assert torch.equal(found[:, :height, :width], pixels)
        assert not found[:, height:].any()
        assert not found[:, :, width:].any()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("mode", ["torchrgb8", "torchrgb"])
def test_a_batch_is_decoded_at_once_and_in_order(folder, workers, mode):
    gpu = Gpu()
    loader = prefetch_to_device(open_loader(folder, Encoder(mode), workers), "cpu", jpeg_decoder=gpu)
    (batch,) = list(loader)
    assert_pixels(batch, range(9), floating=mode == "torchrgb")
    assert gpu.calls == [FOR_GPU]
    assert batch.label == [*range(9)]
    loader.close()


def test_what_the_gpu_refuses_is_decoded_by_pillow_alone(folder, caplog):
    gpu = Gpu(refuses=[1, 7])
    with caplog.at_level(logging.WARNING):
        (batch,) = list(prefetch_to_device(open_loader(folder, Encoder()), "cpu", jpeg_decoder=gpu))
    assert_pixels(batch, range(9))
    assert gpu.calls == [FOR_GPU, [0], [1], [2], [7]]
    assert caplog.text.count("Pillow decodes a JPEG file") == 1

    def other_shape(files, device):
        return [torch.zeros(3, 2, 2, dtype=torch.uint8) for _ in files]

    (batch,) = list(prefetch_to_device(open_loader(folder, Encoder()), "cpu", jpeg_decoder=other_shape))
    assert_pixels(batch, range(9))

    for odd in (lambda made: made[1:], lambda made: [each / 255 for each in made]):
        with pytest.raises(ConfigError, match=r"jpeg_decoder made \d images .* of 4 files.*uint8"):
            list(
                prefetch_to_device(
                    open_loader(folder, Encoder()),
                    "cpu",
                    jpeg_decoder=lambda files, device, odd=odd: odd(Gpu()(files, device)),
                )
            )

    def out_of_memory(files, device):
        raise torch.cuda.OutOfMemoryError("out of memory")

    with pytest.raises(torch.cuda.OutOfMemoryError):
        list(prefetch_to_device(open_loader(folder, Encoder()), "cpu", jpeg_decoder=out_of_memory))


def test_states_are_those_of_other_loaders(folder):
    plain, loader = (open_loader(folder, Encoder(), batch_size=2) for _ in range(2))
    loader = prefetch_to_device(loader, "cpu", depth=2)
    for number, (one, batch) in enumerate(zip(plain, loader, strict=True)):
        assert isinstance(one.image, EncodedImages)
        assert_pixels(batch, range(9)[2 * number : 2 * number + 2])
        assert loader.save_state_rank() == plain.save_state_rank()


@edataclass
class Pictures(Batch):
    image: EncodedImages


def test_batches_of_all_kinds_keep_one_buffer():
    decoder = SampleDecoder(image_decode="torchrgb8", image_backend="nvjpeg")
    images = [decoder.decode("jpg", data) for data in FILES]
    samples = [{"__key__": str(n), "__restore_key__": (), "image": image} for n, image in enumerate(images)]
    made = Pictures.from_samples(samples[:5])
    more = generic_concat([made.image, EncodedImages.joined(images[5:])])
    assert isinstance(made.image, EncodedImages)
    assert len(made.image) == 5
    assert len(more) == 9
    assert torch.equal(more.data, EncodedImages.joined(images).data)
    assert torch.equal(more.about, EncodedImages.joined(images).about)
    assert more.data[: len(FILES[0])].numpy().tobytes() == FILES[0]


def test_damage_and_limits_are_found_in_the_workers():
    decoder = Encoder().decoder
    for data in (FILES[0][:-30], b"not an image", FILES[0][:2]):
        with pytest.raises(DecodeError, match="part 'jpg'"):
            decoder.decode("jpg", data)
    with pytest.raises(PartLimitError, match=r"20 x 14|280 pixels"):
        Encoder(limits=Limits(image_pixels=100)).decoder.decode("jpg", FILES[0])
    turned = Image.Exif()
    turned[0x0112] = 6
    data = saved(picture(1), exif=turned)
    assert Encoder().decoder.decode("jpg", data).about.tolist() == [[len(data), 0, 14, 20, 0]]
    assert Encoder(apply_exif_orientation=True).decoder.decode("jpg", data).about.tolist() == [
        [20 * 14 * 3, 3, 20, 14, 0]
    ]


def is_for_gpu(data):
    return Encoder().decoder.decode("jpg", data).about[0, 1] == 0


def test_a_file_that_pillow_refuses_does_not_reach_the_gpu():
    """Bytes of the segments before, between and after the pixels change: no such file may end a run."""
    rng, seen = np.random.default_rng(3), set()
    files = [*FILES[:3], saved(picture(2), progressive=True, restart_marker_rows=1, subsampling="4:1:1")]
    assert all(map(is_for_gpu, files))
    for number in range(400 if is_nightly() else 150):
        data = bytearray(files[number % 4])
        at = int(rng.integers(2, min(len(data) - 2, 640)))
        data[at : at + 2] = bytes([0xFF, rng.integers(0xC0, 0xFF)] if number % 3 else rng.bytes(2))
        try:
            wanted = by_pillow(data)
        except OSError:
            wanted = None
        try:
            image = Encoder().decoder.decode("jpg", bytes(data))
        except DecodeError:
            seen.add("bad")
            assert wanted is None
        else:
            seen.add(int(image.about[0, 1]))
            assert torch.equal(decode_images(image, torch.device("cpu"), None)[0], wanted)
    assert seen == {"bad", 0, 3}


def test_rgb_without_a_transform_is_told_wherever_that_is_said():
    rgb = saved(picture(5), subsampling=0, keep_rgb=True)
    at = rgb.index(b"\xff\xee")
    metadata = 2 * (b"\xff\xed\xff\xff" + bytes(0xFFFD))
    assert not is_for_gpu(rgb[:at] + metadata + rgb[at:])
    assert not is_for_gpu(rgb[:at] + rgb[at + 16 :])  # the components are named R, G and B
    plain = saved(picture(5))
    assert is_for_gpu(plain[:20] + metadata + plain[20:])
    assert not is_for_gpu(plain + plain)


@pytest.mark.parametrize(
    "options", [{"image_decode": "pil"}, {"image_decode": "l8"}, {"image_min_size": (8, 8)}]
)
def test_what_the_gpu_does_not_make_is_refused(options):
    with pytest.raises(ConfigError, match=r"nvjpeg.*does not go with.*torchrgb8"):
        SampleDecoder(**{"image_decode": "torchrgb8", "image_backend": "nvjpeg", **options})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_decodes_close_to_pillow(folder):
    pytest.importorskip("torchvision")
    (batch,) = list(prefetch_to_device(open_loader(folder, Encoder()), "cuda"))
    for found, data in zip(batch.image, FILES, strict=True):
        pixels = by_pillow(data)
        part = found[:, : pixels.shape[1], : pixels.shape[2]].cpu()
        assert (
            part.float() - pixels.float()
        ).abs().mean() < 20  # 13 on an H200: noise, whose colours are halved
