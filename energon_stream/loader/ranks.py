"""Gathering values of all ranks, such as their states, with ``torch.distributed``."""

from __future__ import annotations

from typing import Any

from energon_stream.agreement import group_of
from energon_stream.errors import ConfigError
from energon_stream.worker import WorkerConfig


def gather_states(state: Any, config: WorkerConfig, dst: int) -> list[Any] | None:
    """Send the state of every data-parallel rank to one process. All processes of the group call this."""
    if config.world_size == 1:
        return [state]
    import torch.distributed as dist

    group = _group(config)
    if dst not in (ranks := dist.get_process_group_ranks(group)):
        raise ConfigError(
            f"process {dst} of torch.distributed is not in this data-parallel group, which has {ranks}",
            hint="pass one of them as global_dst_rank: each group gathers the states of its own ranks",
        )
    gathered: list[Any] | None = [None] * config.world_size if dist.get_rank() == dst else None
    dist.gather_object(state, gathered, dst=dst, group=group)
    return gathered


def broadcast_states(states: Any, config: WorkerConfig, src: int) -> Any:
    """Send the states that one rank has to all ranks. All processes of the group must call this."""
    if config.world_size == 1:
        return states
    import torch.distributed as dist

    group = _group(config)
    content = [states]
    dist.broadcast_object_list(content, src=dist.get_global_rank(group, src), group=group)
    return content[0]


def _group(config: WorkerConfig) -> Any:
    """Return the process group of the data-parallel ranks. Raises ConfigError without one."""
    group = group_of(config)
    if group is None:
        raise ConfigError(
            f"there is no torch.distributed group of the {config.world_size} data-parallel ranks",
            hint="call torch.distributed.init_process_group and pass the group as data_parallel_group, or use "
            "save_state_rank and restore_state_rank with a file for each rank",
        )
    return group
