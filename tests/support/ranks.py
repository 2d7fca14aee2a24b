"""Processes of a torch.distributed job on this machine."""

import torch.distributed as dist
import torch.multiprocessing

from energon_stream.testing.servers import free_ports


def in_ranks(world, job, *arguments):
    """Run ``job(rank, world, *arguments)`` in as many processes, with gloo; forked, so that none imports
    torch anew.
    """
    torch.multiprocessing.start_processes(
        _rank, (world, free_ports(1)[0], job, arguments), nprocs=world, start_method="fork"
    )


def _rank(rank, world, port, job, arguments):
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    try:
        job(rank, world, *arguments)
        dist.barrier()
    finally:
        dist.destroy_process_group()
