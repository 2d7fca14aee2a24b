"""The candidates: ``prepare(spec)`` imports a library and returns what opens its loader; ``run(spec)`` is a
limit.
"""

BATCH = 32
WINDOW = 100


def collate(samples: list) -> dict:
    """The lists of each part of a batch, and of the keys."""
    names = [name for name in samples[0] if name == "__key__" or not name.startswith("__")]
    return {name: [sample[name] for sample in samples] for name in names}


def passes(loader, repeat: bool):
    """The batches of one pass, or of one after another."""
    while True:
        yield from loader
        if not repeat:
            return
