"""Uses the transforms of Megatron-Energon 7.4.1, and prints what it sees as JSON; see ``behaviours.py``.

Both libraries interpolate a merged step once, by different code: results hold the mean colours of parts of
the image, which are compared within a tolerance. The image is smooth.

    python behaviours_transforms.py FOLDER     both need torchvision
"""

import torch
from behaviours_common import case, run_cases
from megatron.energon.transforms import CustomTransform, MergeTransform
from PIL import Image
from torchvision import transforms
from torchvision.transforms import InterpolationMode

BILINEAR = InterpolationMode.BILINEAR
PARTS = 4

coarse = torch.rand(1, 3, 4, 4, generator=torch.Generator().manual_seed(3))
IMAGE = (torch.nn.functional.interpolate(coarse, (90, 70), mode="bicubic")[0].clamp(0, 1) * 255).to(
    torch.uint8
)
PIL = Image.fromarray(IMAGE.permute(1, 2, 0).numpy())


def seen(image):
    """Kind and size of an image, and the mean colours of 4 x 4 parts, from 0 to 255."""
    kind = type(image).__name__
    if isinstance(image, Image.Image):
        image = transforms.functional.pil_to_tensor(image)
    means = torch.nn.functional.adaptive_avg_pool2d(image.float(), PARTS)
    return [kind, list(image.shape), str(image.dtype), means.flatten().tolist()]


def merged(*steps, seeds=3):
    """What merged steps make of a tensor of floating-point numbers (7.4.1 warps no others) and of a PIL
    image.
    """
    results = []
    for seed in range(seeds):
        for image in (IMAGE.float(), PIL):
            torch.manual_seed(seed)
            results.append(seen(MergeTransform(list(steps))(image)))
    return results


@case("transforms: MergeTransform(Resize)")
def resized():
    return merged(transforms.Resize((45, 50), antialias=True), seeds=1), merged(
        transforms.Resize(140), seeds=1
    )


@case("transforms: MergeTransform(CenterCrop)")
def cropped_at_the_centre():
    return merged(transforms.CenterCrop((40, 30)), seeds=1)


@case("transforms: MergeTransform(RandomCrop)")
def cropped_at_random():
    return merged(transforms.RandomCrop((40, 30)))


@case("transforms: MergeTransform(RandomResizedCrop)")
def cropped_and_resized():
    return merged(transforms.RandomResizedCrop(48, scale=(0.4, 1.0)))


@case("transforms: MergeTransform(RandomHorizontalFlip)", "transforms: MergeTransform(RandomVerticalFlip)")
def flipped():
    return merged(transforms.RandomHorizontalFlip(0.5), transforms.RandomVerticalFlip(0.5))


@case("transforms: MergeTransform(RandomRotation)")
def rotated():
    return merged(transforms.RandomRotation(20, interpolation=BILINEAR), transforms.CenterCrop(40))


@case("transforms: MergeTransform(RandomPerspective)")
def seen_from_elsewhere():
    return merged(transforms.RandomPerspective(0.3, p=1.0), transforms.CenterCrop(30))


@case("transforms: MergeTransform")
def several_steps():
    return merged(
        transforms.Resize((120, 100)),
        transforms.RandomRotation(15, interpolation=BILINEAR),
        transforms.CenterCrop((70, 60)),
        transforms.RandomHorizontalFlip(0.5),
        transforms.RandomResizedCrop(40, scale=(0.5, 1.0)),
    )


class Mirror(CustomTransform):
    """A step of a program's own: mirrors, and moves the image back to its place."""

    def __init__(self):
        super().__init__(self)

    def apply_transform(self, matrix, dst_size):
        matrix = self.translate(dst_size[1], 0) @ self.hflip() @ matrix
        return matrix, dst_size, ("Mirror",)


@case("transforms: CustomTransform")
def own_steps():
    return merged(transforms.CenterCrop((60, 50)), Mirror(), seeds=1)


run_cases()
