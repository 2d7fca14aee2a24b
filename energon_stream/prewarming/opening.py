"""What a process reads of a dataset by parts before it knows that it does.

A process that is to read some parts of the samples asks ``index.sqlite`` for a block of them, and then knows whether that
saves anything. Where only a field map says which parts are needed, it first reads samples whole, and looks at the
headers of one (see :mod:`energon_stream.read.parts`). Which samples these are follows from the order, and from which of a
rank's streams share the process; here are those of all possibilities.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from energon_stream.arrays import Int64Array
from energon_stream.read.options import CHUNK, ReadOptions
from energon_stream.read.parts import PartLocator
from energon_stream.schedule import Refs

__all__ = ["Opening", "opening_length", "opening_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Opening:
    """What is read of one source in one stream; samples by number.

    Attributes:
        located: Whose entries of ``.tar.idx`` may be asked for.
        asked: Whose blocks of ``index.sqlite`` may be asked for.
        whole: Places in the stream of those that may be read whole, although parts are enough.
    """

    located: Int64Array
    asked: Int64Array
    whole: Int64Array


def opening_length(options: ReadOptions) -> int:
    """References that matter."""
    return options.exact_samples + options.second_take + CHUNK


def opening_of(refs: Refs, source: PartLocator, options: ReadOptions, alone: bool) -> Opening:
    """What is read of one source in the opening of a stream.

    Args:
        refs: The stream's first references, as many as :func:`opening_length` says.
        source: The source.
        options: Limits of the look-ahead.
        alone: Whether the rank has no other stream.
    """
    places = np.flatnonzero(refs.leaf == source.whole.leaf)
    samples, first = refs.index[places], options.exact_samples
    second = first + options.second_take
    # References are located by chunks: these are those of the first stream of a process, and those of the others.
    bounds = [(0, first), (first, second), (second, second + CHUNK), (0, CHUNK)]
    chunks = [places[(begin <= places) & (places < end)] for begin, end in bounds]
    # Blocks of the first chunk are asked for at the same time, of later ones the first block goes first.
    asked = [
        refs.index[chunks[0]],
        *(refs.index[chunk].min(keepdims=True) for chunk in chunks[1:] if len(chunk)),
    ]
    whole = [chunks[0] if len(chunks[0]) else chunks[1], *(chunk[:1] for chunk in chunks[1:])]
    if not alone:  # its other streams are read whole until the first one has looked
        whole.append(chunks[-1])
    if source.selection.declared:
        whole = []
    return Opening(samples, np.concatenate(asked), np.unique(np.concatenate([*whole, np.zeros(0, np.int64)])))
