"""Draws the picture of docs/guides/live-mixtures.md: ``python docs/tools/mixture_picture.py``."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from energon_stream.schedule import BlendPlan, LeafPlan, OrderSpec, RepeatPlan, WeightChange, build_schedule

STEPS, BATCH, HEIGHT, BAND = 960, 32, 180, 8
COLOURS = ((66, 105, 168), (222, 143, 68), (96, 160, 110))
CHANGES = [
    *(WeightChange(200 + 6 * stair, (3 - 2 * stair / 50, 1, 0)) for stair in range(50)),  # a ramp
    WeightChange(700, (1, 1, 2)),  # set_weights
    WeightChange(850, (0, 1, 2)),  # a source is left out
]


def shares(even: bool) -> np.ndarray:
    """Return the share of each source, by bands of steps."""
    leaves = [LeafPlan(number, np.array([0, 5000]), OrderSpec(10, 100, 4, 1)) for number in range(3)]
    plan = BlendPlan(tuple(map(RepeatPlan, leaves)), (3.0, 1.0, 0.0), tuple(CHANGES), BATCH, even)
    schedule = build_schedule(plan, num_streams=1, stream=0, key=1)
    drawn = schedule.take(schedule.begin(), STEPS * BATCH)[0].leaf.reshape(-1, BAND * BATCH)
    return np.stack([(drawn == number).mean(axis=1) for number in range(3)], axis=1)


if __name__ == "__main__":
    picture = Image.new("RGB", (STEPS, 2 * HEIGHT + 20), "white")
    draw = ImageDraw.Draw(picture)
    for row, even in enumerate((False, True)):
        for band, parts in enumerate(shares(even)):
            bottom = row * (HEIGHT + 20) + HEIGHT
            for colour, part in zip(COLOURS, parts, strict=True):
                top = bottom - part * HEIGHT
                if part:
                    draw.rectangle((band * BAND, top, band * BAND + BAND - 1, bottom), fill=colour)
                bottom = top
    picture.quantize(16).save(
        Path(__file__).parents[1] / "guides" / "pictures" / "mixture.png", optimize=True
    )
