"""The drawing of a reader dataset's plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from energon_stream.drawing import SHOWN, Drawing
from energon_stream.schedule import BlendPlan, LeafPlan, Plan, RepeatPlan

if TYPE_CHECKING:
    from energon_stream.pipeline.leaf import Leaf


def draw_plan(plan: Plan, datasets: Sequence[Leaf]) -> Drawing:
    """Return a plan as boxes."""
    if isinstance(plan, LeafPlan):
        index = datasets[plan.leaf].index
        return Drawing(f"{index.spec.url} [{index.split_part}]")
    if isinstance(plan, RepeatPlan):
        box = draw_plan(plan.child, datasets)
        return (
            box
            if plan.repeats is None
            else replace(box, title=f"{plan.repeats:g} x {box.title or 'mixture'}")
        )
    inner = tuple(draw_plan(child, datasets) for child in plan.children[:SHOWN])
    if isinstance(plan, BlendPlan):
        inner = tuple(box.labelled(f"{weight:g}") for box, weight in zip(inner, plan.weights, strict=False))
    return Drawing("", inner=inner, more=max(0, len(plan.children) - SHOWN))
