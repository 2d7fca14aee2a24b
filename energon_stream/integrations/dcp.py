"""Loads checkpoints of ``torch.distributed.checkpoint`` whose number of streams the job does not name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

from energon_stream.state.streams import offer_streams


class ElasticLoadPlanner(DefaultLoadPlanner):
    """Asks for the streams that a checkpoint has; all else is as with DCP's ``DefaultLoadPlanner``.

    DCP takes the keys to load from the loader before it reads the checkpoint. This planner sees both, so a
    job that names no ``num_streams`` goes on with that of the checkpoint, on any number of ranks that divides
    it. A number that the program names is compared as ever.

    Args:
        **options: Those of ``DefaultLoadPlanner``.

    Example:
        >>> import torch.distributed.checkpoint as dcp
        >>> from energon_stream.integrations.dcp import ElasticLoadPlanner
        >>> planner = ElasticLoadPlanner()
        >>> dcp.load({"loader": loader}, checkpoint_id="run/8", planner=planner)  # doctest: +SKIP
    """

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Any = None, is_coordinator: bool = False
    ) -> None:
        """Exchange the streams of loaders in the dict for those of the checkpoint, and go on as DCP does."""
        if metadata is not None:
            _exchange(state_dict, "", metadata.state_dict_metadata)
        super().set_up_planner(state_dict, metadata, is_coordinator)


def _exchange(state_dict: Mapping[str, Any], path: str, names: Mapping[str, Any]) -> None:
    prefix = f"{path}streams."
    if saved := sum(name.startswith(prefix) and name[len(prefix) :].isdecimal() for name in names):
        offer_streams(state_dict, saved)
    for name, value in state_dict.items():
        if isinstance(value, Mapping):
            _exchange(value, f"{path}{name}.", names)
