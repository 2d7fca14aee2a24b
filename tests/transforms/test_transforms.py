"""Merged steps beside the same steps one by one; needs torchvision (``make transforms``)."""

import numpy as np
import pytest
import torch
from PIL import Image

from energon_stream.errors import ConfigError

try:
    from torchvision import transforms as v1
    from torchvision.transforms import InterpolationMode, v2

    from energon_stream.transforms import CustomTransform, MergeTransform, RandomCropMapper
except (ImportError, RuntimeError):
    pytest.skip("torchvision does not import beside this PyTorch", allow_module_level=True)

BILINEAR = InterpolationMode.BILINEAR


def picture(height=90, width=70, bands=3):
    """Smooth colours, of which a warp and two warps make nearly the same."""
    coarse = torch.rand(1, bands, 7, 6, generator=torch.Generator().manual_seed(3))
    smooth = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic").clamp(0, 1)
    return (255 * smooth[0]).to(torch.uint8)


IMAGE = picture()
PIL = Image.fromarray(IMAGE.permute(1, 2, 0).numpy())


def crop_like(kind):
    return {
        "nothing": [],
        "flips": [kind.RandomHorizontalFlip(0.5), kind.RandomVerticalFlip(0.5)],
        "center": [kind.CenterCrop((31, 40))],
        "crop, flip": [kind.RandomCrop(41), kind.RandomHorizontalFlip(0.5)],
        "resize": [kind.Resize((45, 30), antialias=True)],
        "shorter side": [kind.Resize(41, antialias=True)],
        "larger": [kind.Resize((135, 140), antialias=True)],
        "resized crop": [kind.RandomResizedCrop(32, antialias=True), kind.RandomHorizontalFlip(0.5)],
    }


def warping(kind):
    turned = kind.RandomRotation(25, interpolation=BILINEAR)
    return {
        "crop beyond": [kind.CenterCrop((120, 40))],
        "padded crop": [kind.RandomCrop((91, 75), padding=(3, 5))],
        "pad if needed": [kind.RandomCrop((110, 75), pad_if_needed=True)],
        "rotation": [turned],
        "expanded": [kind.RandomRotation(25, interpolation=BILINEAR, expand=True)],
        "centre": [kind.RandomRotation(25, interpolation=BILINEAR, center=(10, 20))],
        "filled": [kind.RandomRotation(25, interpolation=BILINEAR, fill=1)],
        "affine": [kind.RandomAffine(20, (0.1, 0.2), (0.7, 1.4), (-9, 9, -7, 7), interpolation=BILINEAR)],
        "perspective": [kind.RandomPerspective(0.4, p=1.0)],
        "rotation, crop": [turned, kind.CenterCrop(40)],
        "crop, rotation": [kind.CenterCrop(50), turned],
        "resize, rotation": [kind.Resize((45, 35), antialias=True), turned],
        "resize, crop": [kind.Resize(60, antialias=True), kind.RandomCrop(41)],
        "rotation, resize": [turned, kind.Resize((45, 35), antialias=True)],
        "all": [
            kind.Resize(80, antialias=True),
            turned,
            kind.RandomPerspective(0.2, p=1.0),
            kind.RandomHorizontalFlip(0.5),
            kind.RandomResizedCrop(48, scale=(0.5, 1), antialias=True),
        ],
    }


def both(steps, image, seed):
    torch.manual_seed(seed)
    merged = MergeTransform(steps)(image)
    after = torch.rand(1)
    torch.manual_seed(seed)
    single = v1.Compose(steps)(image) if steps else image
    assert torch.equal(after, torch.rand(1))  # as many random numbers were drawn
    return merged, single


KINDS = pytest.mark.parametrize("kind", [v1, v2], ids=["v1", "v2"])
NAMED = pytest.mark.parametrize("image", [IMAGE, IMAGE.float() / 255, PIL], ids=["uint8", "float", "PIL"])


@NAMED
@KINDS
@pytest.mark.parametrize("name", crop_like(v1))
def test_crops_resizes_and_flips_have_the_same_pixels(kind, name, image):
    for seed in range(4):
        merged, single = both(crop_like(kind)[name], image, seed)
        assert type(merged) is type(single)
        one, other = np.asarray(merged), np.asarray(single)
        # v1 resizes unsigned bytes as floating-point numbers, and rounds at the end.
        rounding = 1 if kind is v1 and image is IMAGE else 0
        assert np.abs(one.astype(float) - other).max(initial=0) <= rounding


@NAMED
@KINDS
@pytest.mark.parametrize("name", warping(v1))
def test_warps_are_near_the_steps_one_by_one(kind, name, image):
    scale = 1 if image is PIL or not image.is_floating_point() else 255
    for seed in range(4):
        merged, single = both(warping(kind)[name], image, seed)
        one, other = (scale * np.asarray(value, dtype=float) for value in (merged, single))
        assert one.shape == other.shape
        difference = np.abs(one - other)
        assert np.median(difference) <= 2
        assert difference.mean() <= 4  # the edges of what was moved in are sharp here, and soft there
        assert (difference > 24).mean() <= 0.04


def test_batches_and_single_bands_are_images_too():
    steps = [v2.RandomRotation((10, 10), interpolation=BILINEAR)]
    whole = MergeTransform(steps)(torch.stack([IMAGE, IMAGE]))
    assert whole.shape == (2, 3, 90, 70)
    assert torch.equal(whole[1], MergeTransform(steps)(IMAGE))
    assert torch.equal(MergeTransform(steps)(IMAGE[0]), whole[0, 0])
    grey = PIL.convert("L")
    assert MergeTransform(steps)(grey).mode == "L"


def test_a_reduction_is_antialiased():
    stripes = (torch.arange(96)[None, None, :].expand(1, 96, 96) % 2 * 255).to(torch.uint8)
    steps = [v2.RandomRotation((1, 1), interpolation=BILINEAR), v2.Resize(24, antialias=True)]
    assert MergeTransform(steps)(stripes)[:, 4:-4, 4:-4].float().std() < 12


class Mirror(CustomTransform):
    def __init__(self):
        super().__init__(self)

    def apply_transform(self, matrix, dst_size):
        return self.translate(dst_size[1], 0) @ self.hflip() @ matrix, dst_size, ("Mirror",)


def test_a_step_of_ones_own():
    merged = MergeTransform([Mirror(), v2.CenterCrop(40)])
    assert torch.equal(merged(IMAGE), v2.CenterCrop(40)(v2.functional.horizontal_flip(IMAGE)))
    assert repr(merged) == "MergeTransform(Mirror, CenterCrop)"


def test_what_cannot_be_merged_is_named():
    with pytest.raises(ConfigError, match="ColorJitter cannot be merged"):
        MergeTransform([v1.ColorJitter()])
    with pytest.raises(ConfigError, match="fill with 5 and 7"):
        MergeTransform([v2.RandomRotation(5, fill=5), v2.RandomRotation(5, fill=7)])
    with pytest.raises(ConfigError, match="padding_mode is 'reflect'"):
        RandomCropMapper(v1.RandomCrop(5, padding_mode="reflect"))
    with pytest.raises(ConfigError, match="lanczos"):
        MergeTransform([v1.Resize(5, InterpolationMode.LANCZOS)])
