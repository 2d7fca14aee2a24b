"""Saved states in words. States are plain values, so their ``repr`` is that of ``dict``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from energon_stream.state.rotation import read_rotation


def summarize(state: Mapping[str, Any]) -> str:
    """Return in two lines which rank's state this is, and where the rank stands.

    Args:
        state: What ``save_state_rank()`` returned.

    Raises:
        StateError: The state is damaged.

    Example:
        >>> from energon_stream import SavableDataLoader
        >>> from energon_stream.state import summarize
        >>> from energon_stream.testing.operator_suite import NumbersDataset
        >>> loader = SavableDataLoader(NumbersDataset(5))
        >>> numbers = iter(loader)
        >>> next(numbers), next(numbers)
        (0, 1)
        >>> print(summarize(loader.save_state_rank()))
        rank 0 of 1, 1 streams, seed offset 0
          2 batches, 2 of them in this pass, 0 passes before it; by stream 0:2
    """
    topology, rotation = state["topology"], read_rotation(state["rotation"], state["topology"])
    batches = {stream: 0 if saved is None else saved["batches"] for stream, saved in state["streams"].items()}
    by_stream = " ".join(f"{stream}:{count}" for stream, count in batches.items())
    ended = f", of which {sorted(rotation.ended)} have ended" if rotation.ended else ""
    return (
        f"rank {topology['rank']} of {topology['world_size']}, {topology['num_streams']} streams, "
        f"seed offset {topology['seed_offset']}\n"
        f"  {sum(batches.values())} batches, {rotation.consumed} of them in this pass, "
        f"{rotation.passes} passes before it; by stream {by_stream}{ended}"
    )
