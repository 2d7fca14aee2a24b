"""Planned packing of a mixture: checks its options, and reads the lengths of all samples."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from energon_stream.errors import ConfigError, CostsError
from energon_stream.index.database import sample_key
from energon_stream.index.dataset import WebDatasetIndex
from energon_stream.pipeline.pack_keys import PackPlan
from energon_stream.schedule import PackSpec
from energon_stream.schedule.pack_planning import pack_lengths, pack_loads
from energon_stream.schedule.planned import Overlong
from energon_stream.tables.costs import check_values, costs_of

if TYPE_CHECKING:
    from energon_stream.config.dataset_options import DatasetRequest
    from energon_stream.config.mixture import Mixture
    from energon_stream.index.dataset import DatasetIndex
    from energon_stream.read.read_options import ReadOptions
    from energon_stream.schedule.pack_planning import Load

_LOADED = 1024  # samples of a dataset, at most, whose packs tell one load function from another


@dataclass(frozen=True, slots=True)
class PlannedPacking:
    """Packs that are planned for the whole job from the lengths of samples, before a byte is fetched.

    Attributes:
        cost: Name of the lengths that ``energon-stream cost`` or :func:`compute_costs` wrote; or, for one
            dataset, an array with a whole number for each sample of the split part.
        capacity: Largest sum of a pack's lengths.
        window: Global steps whose packs are formed together. More fill packs better, and mix samples more.
        load: Work of a pack, which is dealt evenly: ``"linear"`` for the sum of its lengths, ``"quadratic"``
            for the sum of their squares, as attention does, or a function of an array of lengths.
        overlong: What becomes of a sample that is longer than the capacity: ``"error"``, ``"drop"`` leaves it
            out, ``"split"`` puts its parts into several packs.
        global_batch_size: Packs of a global step, over all ranks and micro-batches; None for four
            micro-batches of each stream. A multiple of the streams times ``batch_size``.

    Raises:
        ConfigError: An option is impossible.

    Example:
        >>> from energon_stream import PlannedPacking
        >>> PlannedPacking(cost="tokens", capacity=8192, load="linear").overlong
        'error'
    """

    cost: str | Sequence[int]
    capacity: int
    window: int = 8
    load: Load = "quadratic"
    overlong: Overlong = "error"
    global_batch_size: int | None = None

    def __post_init__(self) -> None:
        for name in ("capacity", "window", "global_batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} of the packing is {value}", hint="use 1 or more")
        if not callable(self.load) and self.load not in ("linear", "quadratic"):
            raise ConfigError(f"load is {self.load!r}", hint='use "linear", "quadratic" or a function')
        if self.overlong not in get_args(Overlong):
            raise ConfigError(f"overlong is {self.overlong!r}", hint=f"use one of {get_args(Overlong)}")

    def step(self, num_streams: int, batch_size: int | None) -> int:
        """Return the packs of a global step. Raises ConfigError if they cannot be dealt to the streams."""
        each = num_streams * (batch_size or 1)
        step = 4 * each if self.global_batch_size is None else self.global_batch_size
        if step % each:
            raise ConfigError(
                f"global_batch_size is {step}, which is no multiple of {num_streams} streams of {batch_size or 1}",
                hint=f"use a multiple of {each}, or another num_streams",
            )
        return step


def pack_mixture(
    packing: PlannedPacking, mixture: Mixture, request: DatasetRequest, given: ReadOptions | None
) -> Mixture:
    """Return a mixture with planned packing, and the look-ahead that suits it. ``given`` is the user's."""
    plan = plan_packs(packing, mixture, request)
    each = plan.pack_samples()
    streams, batch = request.config.num_streams, request.batch_size or 1
    # To look ahead, each process plans the whole job's samples, of which a reader takes about three times the
    # limit. So it is two windows or 32768 samples of the job, and no more than is planned in a second.
    step = plan.spec.step * each
    window = plan.spec.window * step
    ahead = min(max(2 * window, 1 << 15), 6 * window, max(2 * step, 1 << 17))
    limits = mixture.limits.planned(math.ceil(ahead / streams))
    if given is None or given.first_samples is None:
        limits = replace(limits, first_samples=math.ceil(batch * each))
    return replace(mixture, packing=plan, limits=limits)


def plan_packs(packing: PlannedPacking, mixture: Mixture, request: DatasetRequest) -> PackPlan:
    """Return the planned packing of a mixture.

    Raises ConfigError if options exclude each other or samples do not fit, and CostsError for bad lengths.
    """
    if request.packing_buffer_size is not None:
        raise ConfigError(
            "packing and packing_buffer_size exclude each other", hint="leave out packing_buffer_size"
        )
    hooks = ("build_train_datasets", "build_batch", "build_cook_crude_sample", "select_samples_to_pack")
    for hook in (*hooks, "select_next_pack"):
        if request.encoder._hook_overridden(hook):
            raise ConfigError(
                f"{type(request.encoder).__name__} overrides {hook}, which planned packing cannot honour",
                hint="leave out the override, or pack with packing_buffer_size",
            )
    if not request.encoder._hook_overridden("pack_selected_samples"):
        raise ConfigError(
            f"{type(request.encoder).__name__} does not say how to pack",
            hint="override pack_selected_samples",
        )
    step = packing.step(request.config.num_streams, request.batch_size)
    indices = [leaf.index for leaf in mixture.leaves]
    if isinstance(packing.cost, str):
        name = packing.cost
        found = request.location.read(
            lambda: [_named(index, name) for index in indices], forks=request.config.num_workers > 0
        )
    elif len(indices) == 1:
        found = [_given(packing.cost, indices[0])]
    else:
        raise ConfigError("an array of costs fits one dataset only", hint="give the name of computed costs")
    costs = tuple(_lengths(values, index, packing) for values, index in zip(found, indices, strict=True))
    for values, plan, index in zip(costs, mixture.plans, indices, strict=True):
        used: Any = slice(plan.start, plan.start + plan.num_samples)
        if index.selection is not None:
            used = index.selection.samples(np.arange(used.start, used.stop))
        if (unfit := _unfit(values[used], packing, step)) is not None:
            at, what, hint = unfit
            number = int(used[at]) if index.selection is not None else used.start + at
            tell = partial(_place_of, index, number)
            where = request.location.read(tell, forks=request.config.num_workers > 0)
            raise ConfigError(what, where=where, hint=hint)
    digest = hashlib.blake2b(digest_size=8)
    for values in costs:
        digest.update(values.tobytes())
    spec = PackSpec(packing.capacity, step, packing.window, packing.load, packing.overlong)
    return PackPlan(spec, costs, digest.hexdigest(), _hash_loads(costs, spec))


def _hash_loads(costs: Sequence[Any], spec: PackSpec) -> str | None:
    """Hash what a load function makes of packs of some samples: another function makes something else."""
    if not callable(spec.load):
        return None
    some = np.concatenate([values[:: -(-len(values) // _LOADED)] for values in costs]).astype(np.int64)
    lengths = np.minimum(some[some > 0], spec.capacity)
    pack = pack_lengths(lengths, spec.capacity)
    loads: Any = [] if pack is None else pack_loads(lengths, pack, int(pack.max(initial=-1)) + 1, spec.load)
    # Machines differ in the last digits.
    return hashlib.blake2b(" ".join(f"{load:.9g}" for load in loads).encode(), digest_size=8).hexdigest()


def _named(index: DatasetIndex, name: str) -> Any:
    if not isinstance(index, WebDatasetIndex):
        raise CostsError("only prepared folders of tars have costs", where=index.name)
    return costs_of(index, name)


def _given(values: Any, index: DatasetIndex) -> Any:
    found = check_values(np.asarray(values), f"the array of costs for {index.name}")
    if len(found) != index.num_samples:
        raise CostsError(
            f"{len(found)} costs for {index.num_samples} samples",
            where=index.name,
            hint="give one number for each sample of the split part",
        )
    return found


def _lengths(values: Any, index: DatasetIndex, packing: PlannedPacking) -> Any:
    whole = values.astype(np.int64)
    if values.dtype.kind == "f" and (whole != values).any():
        raise CostsError(
            f"the cost of sample {int(np.argmax(whole != values))} is no whole number, as a length is",
            where=index.name,
            hint="round the numbers in the function that computes them",
        )
    # Half the memory, of which every rank has a copy.
    return whole.astype(np.int32) if whole.max(initial=0) < 1 << 31 else whole


def _unfit(values: Any, packing: PlannedPacking, step: int) -> tuple[int, str, str] | None:
    """Return the place of a sample that fits nowhere, what is wrong, and what to do; None if all fit."""
    capacity, packs = packing.capacity, step * packing.window
    worst = int(np.argmax(values))
    longest = int(values[worst])
    too_long = int((values > capacity).sum())
    if packing.overlong == "error" and too_long:
        what = f"{too_long} samples are longer than {capacity:,}; the longest has {longest:,}"
        return worst, what, f"raise the capacity to {longest}, or pass overlong='drop' or 'split'"
    if packing.overlong == "split" and longest > packs * capacity:
        what = f"a sample of {longest:,} is longer than the {packs:,} packs of {capacity:,} of a window"
        least = f"the capacity to {-(-longest // packs)}, or the window to {-(-longest // (capacity * step))}"
        return worst, what, f"raise {least}, or leave out samples above the capacity with overlong='drop'"
    usable = values > 0 if packing.overlong == "split" else (values > 0) & (values <= capacity)
    if not usable.any():
        what = f"no sample has a length from 1 to {capacity}; the longest has {longest:,}"
        return worst, what, "raise the capacity, or correct the costs"
    return None


def _place_of(index: DatasetIndex, number: int) -> str:
    """Return the dataset, shard and key of a sample, for messages."""
    if not isinstance(index, WebDatasetIndex):
        return f"{index.name}, sample {number}"
    shard = int(index.shard_of(np.array([number]))[0])
    key = sample_key(index, number) or f"sample {number - int(index.shard_starts[shard])}"
    return f"{index.name}, {index.shard_paths[shard]}, {key}"
