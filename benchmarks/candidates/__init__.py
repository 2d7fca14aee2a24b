"""The candidates: ``prepare(spec)`` imports a library and returns what opens its loader; ``run(spec)`` is a
limit.
"""

from functools import partial

BATCH = 32
WINDOW = 100


def collate(samples: list) -> dict:
    """The lists of each part of a batch, and of the keys."""
    names = [name for name in samples[0] if name == "__key__" or not name.startswith("__")]
    return {name: [sample[name] for sample in samples] for name in names}


def image(data: bytes):
    """A JPEG as ``uint8 [height, width, 3]``, decoded by Pillow."""
    import io

    import numpy as np
    import torch
    from PIL import Image

    opened = Image.open(io.BytesIO(data))
    return torch.from_numpy(np.array(opened if opened.mode == "RGB" else opened.convert("RGB")))


def import_decoder() -> None:
    """Import all that ``image`` uses, which is no part of a run."""
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "JPEG")
    image(file.getvalue())


def collate_images(samples: list, stack=None) -> dict:
    """The images of a batch in one tensor, and the keys."""
    import torch

    images = (stack or torch.stack)([image(sample["jpg"]) for sample in samples])
    return {"__key__": [sample["__key__"] for sample in samples], "jpg": images}


def collate_as(spec: dict, stack=None):
    """The function that makes batches, which runs in the workers.

    ``stack`` is what the library itself stacks tensors with; None for ``torch.stack``.
    """
    if not spec.get("decode"):
        return collate
    import_decoder()
    return partial(collate_images, stack=stack)


def passes(loader, repeat: bool):
    """The batches of one pass, or of one after another."""
    while True:
        yield from loader
        if not repeat:
            return
