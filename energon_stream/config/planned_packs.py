"""Planned packing of a mixture: checks its options, and reads the lengths of all samples."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from energon_stream.arguments import check_whole
from energon_stream.errors import ConfigError, CostsError
from energon_stream.index.database import sample_key
from energon_stream.index.dataset import DatasetIndex, WebDatasetIndex
from energon_stream.pipeline.pack_keys import PackPlan
from energon_stream.read.read_options import CHUNK, LOADING, ReadOptions
from energon_stream.schedule import PackSpec
from energon_stream.schedule.pack_planning import Load, LoadName, pack_lengths, pack_loads
from energon_stream.schedule.pack_spec import SMALL, Overlong
from energon_stream.schedule.several_costs import PackKind
from energon_stream.tables.costs import check_values, costs_of
from energon_stream.urls import is_local

if TYPE_CHECKING:
    from energon_stream.config.dataset_options import DatasetRequest
    from energon_stream.config.mixture import Mixture

_LOADED = 1024  # samples of a dataset, at most, whose packs tell one load function from another


@dataclass(frozen=True, slots=True)
class PlannedPacking:
    """Packs that are planned for the whole job from the lengths of samples, before a byte is fetched.

    Attributes:
        cost: Name of the lengths that ``energon-stream cost`` or :func:`compute_costs` wrote; or, for one
            dataset, an array with a whole number for each sample of the split part. Or several by a name of
            your own: ``{"text": "tokens", "vision": "patches"}``; the first one is the length of samples.
        capacity: Largest sum of a pack's lengths; or the largest sums of several costs by their names. A pack
            ends at whichever is reached first. A cost without one is made even only.
        window: Global steps whose packs are formed together. More fill packs better, and mix samples more.
        load: Work of a pack, which is dealt evenly: ``"linear"`` for the sum of its lengths, ``"quadratic"``
            for the sum of their squares, as attention does, or a function of an array of lengths. Of several
            costs, by their names; each is dealt evenly.
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
        >>> costs = {"text": "tokens", "vision": "patches"}
        >>> loads = {"text": "quadratic", "vision": "linear"}
        >>> PlannedPacking(costs, {"text": 8192, "vision": 4096}, load=loads).kinds[1]
        PackKind(name='vision', capacity=4096, load='linear')
    """

    cost: str | Sequence[int] | Mapping[str, str | Sequence[int]]
    capacity: int | Mapping[str, int]
    window: int = 8
    load: Load | Mapping[str, Load] = "quadratic"
    overlong: Overlong = "error"
    global_batch_size: int | None = None

    def __post_init__(self) -> None:
        if self.overlong not in get_args(Overlong):
            raise ConfigError(f"overlong is {self.overlong!r}", hint=f"use one of {get_args(Overlong)}")
        names = list(self.costs)
        if not names:
            raise ConfigError("cost has no names", hint='name computed costs, such as {"text": "tokens"}')
        for option in ("capacity", "load"):
            given = getattr(self, option)
            needed = names if option == "load" else names[:1]
            if isinstance(given, Mapping) and not set(needed) <= set(given) <= set(names):
                raise ConfigError(
                    f"{option} has the names {list(given)}, and cost {names}",
                    hint=f"give {' and '.join(map(repr, needed))} in {option}, and no names that cost lacks",
                )
        if len(names) > 1 and self.overlong == "split":
            raise ConfigError(
                "overlong='split' does not know how several costs divide",
                hint="use 'drop', or raise the capacities",
            )
        for option in ("capacity", "window"):
            if getattr(self, option) is None:
                raise ConfigError(f"{option} of the packing is None", hint="use 1 or more")
        sizes = {f"capacity of {kind.name}".removesuffix(" of "): kind.capacity for kind in self.kinds}
        for name, value in {
            **sizes,
            "window": self.window,
            "global_batch_size": self.global_batch_size,
        }.items():
            check_whole(f"{name} of the packing", value, 1, "use 1 or more")
        for kind in self.kinds:
            if not callable(kind.load) and kind.load not in get_args(LoadName):
                hint = f"use {', '.join(get_args(LoadName))} or a function"
                raise ConfigError(f"load is {kind.load!r}", hint=hint)

    @property
    def costs(self) -> dict[str, str | Sequence[int]]:
        """Costs by name; a single one has the empty name."""
        return dict(self.cost) if isinstance(self.cost, Mapping) else {"": self.cost}

    @property
    def kinds(self) -> tuple[PackKind, ...]:
        """Name, capacity and load of each cost."""
        names, room, load = list(self.costs), self.capacity, self.load
        rooms = dict(room) if isinstance(room, Mapping) else {names[0]: room} if names else {}
        return tuple(
            PackKind(name, rooms.get(name), load[name] if isinstance(load, Mapping) else load)
            for name in names
        )

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
    # limit. So it is two windows or 49,152 samples of the job, half of which, more than a chapter has, may be
    # asked for together, and no more than is planned in a second. Large samples, whose requests gain nothing
    # by it, need no more than six windows.
    step = plan.spec.step * each
    window = plan.spec.window * step
    ahead = min(max(2 * window, 3 << 14), max(2 * step, 1 << 17), 6 * window if each < SMALL else 1 << 17)
    if all(is_local(leaf.index.spec.url) for leaf in mixture.leaves):  # no answer takes long
        ahead = min(ahead, max(2 * step, 8 * CHUNK))
    ahead = min(ahead, mixture.limits.max_ahead * streams)
    chapter = plan.spec.packs * each
    together = int(ahead // 2 // chapter) or int(chapter * 5 < ahead * 4)
    chunk = math.ceil(6 * window / streams / LOADING)
    limits = mixture.limits.planned(math.ceil(ahead / streams), chunk, together)
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
    for hook in (*hooks, "select_next_pack", "build_packing_groups"):
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
    forks = request.config.num_workers > 0
    every: list[tuple[Any, ...]] = []
    digest = hashlib.blake2b(digest_size=8)
    for cost, kind in zip(packing.costs.values(), packing.kinds, strict=True):
        if isinstance(cost, str):
            found = request.location.read(partial(_named, indices, cost), forks=forks)
        elif len(indices) == 1:
            found = [_given(cost, indices[0])]
        else:
            raise ConfigError(
                "an array of costs fits one dataset only", hint="give the name of computed costs"
            )
        costs = tuple(_lengths(values, index) for values, index in zip(found, indices, strict=True))
        for leaf, (values, plan, index) in enumerate(zip(costs, mixture.plans, indices, strict=True)):
            used: Any = slice(plan.start, plan.start + plan.num_samples)
            if index.selection is not None:
                used = index.selection.samples(np.arange(used.start, used.stop))
            usable = (every[0] if every else costs)[leaf][used] > 0
            for others, other in zip(every, packing.kinds, strict=False):
                usable &= others[leaf][used] <= (other.capacity or np.inf)
            if (unfit := _unfit(values[used], usable, kind, packing, step)) is not None:
                at, what, hint = unfit
                number = int(used[at]) if index.selection is not None else used.start + at
                where = request.location.read(partial(_place_of, index, number), forks=forks)
                raise ConfigError(what, where=where, hint=hint)
            digest.update(values.tobytes())
        every.append(costs)
    (first, *more), window, overlong = packing.kinds, packing.window, packing.overlong
    assert first.capacity is not None
    spec = PackSpec(first.capacity, step, window, first.load, overlong, first.name, tuple(more))
    made = PackPlan(spec, every[0], digest.hexdigest(), _hash_loads(every, spec), tuple(every[1:]))
    return replace(made, spec=spec.in_chapters(made.pack_samples(), request.config.num_streams))


def _hash_loads(every: Sequence[Sequence[Any]], spec: PackSpec) -> str | None:
    """Hash what load functions make of packs of some samples: another function makes something else."""
    found = []
    for costs, kind in zip(every, spec.kinds, strict=True):
        if not callable(kind.load):
            continue
        some = np.concatenate([values[:: -(-len(values) // _LOADED)] for values in costs]).astype(np.int64)
        room = kind.capacity or max(1, int(some.max(initial=0)))
        lengths = np.minimum(some[some > 0], room)
        pack = pack_lengths(lengths, room)
        loads: Any = (
            [] if pack is None else pack_loads(lengths, pack, int(pack.max(initial=-1)) + 1, kind.load)
        )
        found.append(" ".join(f"{load:.9g}" for load in loads))  # machines differ in the last digits
    return hashlib.blake2b("|".join(found).encode(), digest_size=8).hexdigest() if found else None


def _named(indices: Sequence[DatasetIndex], name: str) -> list[Any]:
    return [costs_of(index, name) for index in indices]


def _given(values: Any, index: DatasetIndex) -> Any:
    try:
        found = check_values(np.asarray(values), f"the array of costs for {index.name}")
    except ValueError as error:  # rows of unequal lengths
        raise CostsError("costs are no array with a number for each sample", where=index.name) from error
    if len(found) != index.num_samples:
        raise CostsError(
            f"{len(found)} costs for {index.num_samples} samples",
            where=index.name,
            hint="give one number for each sample of the split part",
        )
    return found


def _lengths(values: Any, index: DatasetIndex) -> Any:
    whole = values.astype(np.int64)
    if values.dtype.kind == "f" and (whole != values).any():
        raise CostsError(
            f"the cost of sample {int(np.argmax(whole != values))} is no whole number, as a length is",
            where=index.name,
            hint="round the numbers in the function that computes them",
        )
    # Half the memory, of which every rank has a copy.
    return whole.astype(np.int32) if whole.max(initial=0) < 1 << 31 else whole


def _unfit(
    values: Any, usable: Any, kind: PackKind, packing: PlannedPacking, step: int
) -> tuple[int, str, str] | None:
    """Return the place of a sample that fits nowhere, what is wrong, and what to do; None if all fit.

    ``usable`` tells which samples other costs leave.
    """
    worst = int(np.argmax(values))
    capacity, packs = kind.capacity or int(values[worst]), step * packing.window
    longest = int(values[worst])
    too_long, of = int((values > capacity).sum()), f" in {kind.name!r}" * bool(kind.name)
    if packing.overlong == "error" and too_long:
        what = f"{too_long} samples are longer than {capacity:,}{of}; the longest has {longest:,}"
        others = "'drop'" if of else "'drop' or 'split'"
        return worst, what, f"raise the capacity{of} to {longest}, or pass overlong={others}"
    if packing.overlong == "split" and longest > packs * capacity:
        what = f"a sample of {longest:,} is longer than the {packs:,} packs of {capacity:,} of a window"
        least = f"the capacity to {-(-longest // packs)}, or the window to {-(-longest // (capacity * step))}"
        return worst, what, f"raise {least}, or leave out samples above the capacity with overlong='drop'"
    if not (usable if packing.overlong == "split" else usable & (values <= capacity)).any():
        what = f"no sample has a length from 1 to {capacity}{of}; the longest has {longest:,}"
        return worst, what, "raise the capacity, or correct the costs"
    return None


def _place_of(index: DatasetIndex, number: int) -> str:
    """Return the dataset, shard and key of a sample, for messages."""
    if not isinstance(index, WebDatasetIndex):
        return f"{index.name}, sample {number}"
    shard = int(index.shard_of(np.array([number]))[0])
    key = sample_key(index, number) or f"sample {number - int(index.shard_starts[shard])}"
    return f"{index.name}, {index.shard_paths[shard]}, {key}"
