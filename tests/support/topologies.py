"""A job that goes on with another number of ranks, in one process."""

from energon_stream.state import dumps, loads


def over_epochs(loader):
    while True:
        yield from loader


def go_on(open_rank, world, states, begin, count, **options):
    """Batches of the job from number ``begin`` on, and the states of all ranks after them.

    ``open_rank(rank)`` returns a rank's loader, and ``options`` are those of ``restore_state_global``.
    """
    loaders = [open_rank(rank) for rank in range(world)]
    for loader in loaders:
        loader.restore_state_global(states, **options)
    ranks = [over_epochs(loader) for loader in loaders]
    batches = [next(ranks[number % world]) for number in range(begin, begin + count)]
    states = [loads(dumps(loader.save_state_rank())) for loader in loaders]
    for loader in loaders:
        loader.close()
    return batches, states
