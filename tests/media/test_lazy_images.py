"""Images that are named by pages and fetched in the background: exact resume with packing, and damaged
files.
"""

import importlib
import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from energon_stream import (
    CaptioningSample,
    Cooker,
    DefaultTaskEncoder,
    FileStoreCachePool,
    Limits,
    SampleDecoder,
    WorkerConfig,
    basic_sample_keys,
    cooker,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
)
from energon_stream.errors import DecodeError, FatalSampleError, PartLimitError
from energon_stream.media import use_pool
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import CAPTIONING_YAML, CRUDE_YAML, write_shards
from energon_stream.testing.operator_suite import assert_exact_resume, assert_restores_by_key

EXAMPLE = Path(__file__).parents[2] / "examples" / "vlm" / "train.py"
BACKENDS = ["pillow", "simplejpeg"]


def jpeg(number=0, side=24):
    stream = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 256, (side, side, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(stream, "JPEG")
    return stream.getvalue()


@pytest.fixture(scope="module")
def vlm(tmp_path_factory):
    """The example's data and its task, of a module that worker processes can import."""
    folder = tmp_path_factory.mktemp("vlm")
    (folder / "vlm_example.py").write_bytes(EXAMPLE.read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        example = importlib.import_module("vlm_example")
        example.make_data(folder / "data")
        yield folder / "data" / "mix.yaml", example.VlmTask
    del sys.modules["vlm_example"]


@pytest.fixture
def pool(tmp_path):
    made = FileStoreCachePool(tmp_path, num_workers=2)
    yield made
    made.close()


def packs(vlm, workers=0):
    mixture, task = vlm
    return get_train_dataset(
        str(mixture),
        batch_size=2,
        packing_buffer_size=12,
        shuffle_buffer_size=20,
        max_samples_per_sequence=20,
        worker_config=WorkerConfig(0, 1, workers),
        task_encoder=task(),
    )


def test_packs_of_lazy_images_resume_exactly(vlm, pool):
    with use_pool(pool):
        assert_exact_resume(lambda: packs(vlm), steps=5, tail=3)
        assert_restores_by_key(lambda: packs(vlm), steps=2)


def test_a_loader_with_workers_and_a_pool_resumes_exactly(vlm, tmp_path):
    def batches(count, state=None):
        pool = FileStoreCachePool(tmp_path, num_workers=2)
        with get_savable_loader(packs(vlm, workers=2), cache_pool=pool) as loader:
            if state is not None:
                loader.restore_state_rank(state)
            found = [(batch.tokens, batch.images) for _, batch in zip(range(count), loader, strict=False)]
            saved = loader.save_state_rank()
        pool.close()
        return found, saved

    whole, _ = batches(6)
    first, state = batches(2)
    rest, _ = batches(4, state)
    for (tokens, images), (other_tokens, other_images) in zip(whole, first + rest, strict=True):
        assert tokens.equal(other_tokens)
        assert images.equal(other_images)


def bomb(width=10_000, height=10_000):
    """A JPEG whose header tells 100 million pixels, with hardly any data."""
    data = bytearray(jpeg())
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    return bytes(data)


def png():
    stream = io.BytesIO()
    Image.new("RGB", (8, 8)).save(stream, "PNG")
    return stream.getvalue()


BAD = {
    "100 million pixels": (bomb(), PartLimitError, "10,000 x 10,000 pixels"),
    "truncated": (jpeg(side=64)[:600], DecodeError, "cannot be decoded"),
    "not an image": (b"<html>404 Not Found</html>", DecodeError, "wrong extension"),
    "empty": (b"", DecodeError, "of 0 bytes cannot be decoded"),
}


def image_decoder(backend):
    return SampleDecoder(
        image_decode="torchrgb8", image_backend=backend, limits=Limits(image_pixels=90_000_000)
    )


def read(folder, backend, parts, samples):
    """Return the numbers of the samples that are read, and the errors of the others."""
    write_shards(folder, shards=1, samples_per_shard=samples, parts=parts, key="{:03d}")
    prepare_dataset(str(folder), split_ratio=(1, 0, 0), dataset_yaml=CAPTIONING_YAML)

    class Encoder(DefaultTaskEncoder):
        decoder = image_decoder(backend)

    seen, kept = [], []
    config = WorkerConfig(0, 1, 0, global_error_handler=lambda error, *_: seen.append(error))
    dataset = get_val_dataset(
        str(folder), split_part="train", batch_size=None, worker_config=config, task_encoder=Encoder()
    )
    try:
        with get_savable_loader(dataset) as loader:
            for sample in loader:
                kept.append(int(sample.__key__[-3:]))  # noqa: PERF401 # what came before an error counts
    except FatalSampleError as error:
        seen.append(error)
    return kept, seen


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", BAD)
def test_a_bad_image_is_an_error_of_its_sample_and_left_out(kind, backend, tmp_path):
    data, error, words = BAD[kind]
    bad = (1, 4, 5)

    def parts(number):
        return {"jpg": data if number in bad else jpeg(number), "txt": b"a dog"}

    kept, seen = read(tmp_path, backend, parts, 8)
    assert kept == [number for number in range(8) if number not in bad]
    for number, caught in zip(bad, seen, strict=True):
        assert type(caught) is error
        assert words in str(caught)
        assert f"{number:03d}" in str(caught)
        assert str(tmp_path) in str(caught)  # the sample's source


def test_a_hundred_bad_images_in_a_row_end_the_run(tmp_path):
    kept, seen = read(
        tmp_path, "pillow", lambda number: {"jpg": b"" if number else jpeg(), "txt": b"a dog"}, 120
    )
    assert kept == [0]
    *errors, fatal = seen
    assert len(errors) >= 99
    assert isinstance(fatal, FatalSampleError)
    assert "100" in str(fatal.__cause__ or fatal) or "100" in str(fatal)


def test_another_image_format_under_a_jpeg_name_is_decoded_by_its_content():
    for backend in BACKENDS:
        assert image_decoder(backend).decode("jpg", png()).shape == (3, 8, 8)


def test_a_damaged_image_of_a_store_is_an_error_of_the_page_that_names_it(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "good.jpg").write_bytes(jpeg())
    (tmp_path / "images" / "bad.jpg").write_bytes(jpeg()[:300])
    write_shards(
        tmp_path / "pages",
        shards=1,
        samples_per_shard=4,
        parts=lambda number: {"json": json.dumps("bad.jpg" if number == 2 else "good.jpg").encode()},
        key="{:02d}",
    )
    prepare_dataset(str(tmp_path / "pages"), split_ratio=(1, 0, 0), dataset_yaml=CRUDE_YAML)
    mixture = {"path": "pages", "aux": {"images": "filesystem://images"}}
    (tmp_path / "mix.yaml").write_text(
        json.dumps(
            {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"train": mixture}}
        )
    )

    @stateless
    @cooker(need_cache=True)
    def cook(sample, images, cache):
        lazy = cache.get_lazy(images, sample["json"])
        return CaptioningSample(**basic_sample_keys(sample), image=lazy, caption="")

    class Encoder(DefaultTaskEncoder):
        cookers = [Cooker(cook)]

        @stateless
        def encode_sample(self, sample):
            sample.image = sample.image.get(sample)
            return sample

    seen = []
    dataset = get_val_dataset(
        str(tmp_path / "mix.yaml"),
        split_part="train",
        batch_size=None,
        worker_config=WorkerConfig(
            0, 1, 0, global_error_handler=lambda caught, sample, sources=None: seen.append((caught, sources))
        ),
        task_encoder=Encoder(),
    )
    pool = FileStoreCachePool(tmp_path, num_workers=1)
    with get_savable_loader(dataset, cache_pool=pool) as loader:
        assert [sample.__key__[-2:] for sample in loader] == ["00", "01", "03"]
    pool.close()
    ((caught, sources),) = seen
    assert isinstance(caught, DecodeError)
    assert "bad.jpg" in f"{caught} {sources}"
    assert "02" in str(sources)
