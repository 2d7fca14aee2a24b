"""Results of selectors of packs: packs, samples that are pushed back, and parts of samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from energon_stream.errors import ConfigError
from energon_stream.pipeline.failures import field_of
from energon_stream.pipeline.node import Item, RestoreKey

T = TypeVar("T")

_PART: Final = "PartialSample"
"""Kind of the keys of parts: ``(kind, 0, key of the sample, slice as a tuple)``."""


MADE: Final = "Selected"
"""Kind of the keys of what a selector made: ``(kind, 0, keys of its samples, (call, batch, place))``."""


def as_key(value: Any) -> Any:
    """Convert the lists of a deserialised key back to tuples."""
    return tuple(as_key(part) for part in value) if isinstance(value, (list, tuple)) else value


@dataclass(frozen=True, slots=True)
class PartialSample(Generic[T]):
    """A part of a sample, which a selector of packs makes; another part may be in another pack.

    States and restore keys hold the slice and the key of the sample, and never its data. So the sample must
    not be changed in place.

    Attributes:
        sample: The sample, whole.
        slice: Says which part it is; only your hooks read it. It is a ``slice``, number or text, or a list or
            tuple of such; lists become tuples.

    Raises:
        ConfigError: The slice is of another type, which states cannot hold.

    Example:
        >>> from energon_stream import PartialSample
        >>> part = PartialSample("a long text", slice(0, 6))
        >>> part.sample[part.slice]
        'a long'
    """

    sample: T
    slice: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "slice", _read_slice(_plain_slice(self.slice)))

    @property
    def __key__(self) -> Any:
        return field_of(self.sample, "__key__")

    @property
    def __sources__(self) -> Any:
        return field_of(self.sample, "__sources__")


@dataclass(frozen=True, slots=True)
class PackedSamplesOutput(Generic[T]):
    """A result of ``select_samples_to_pack`` or ``select_next_pack``, in place of packs alone.

    Attributes:
        packs: Lists of samples, or of parts of samples.
        pushback: Samples, or parts, that wait: they are the first of the next selection. What is neither in a
            pack nor here is dropped.

    Example:
        >>> from energon_stream import DefaultTaskEncoder, PackedSamplesOutput
        >>> class Pairs(DefaultTaskEncoder):
        ...     def select_samples_to_pack(self, samples):
        ...         even = len(samples) // 2 * 2 or 1  # at the end of a pass, one may be left
        ...         packs = [samples[at : at + 2] for at in range(0, even, 2)]
        ...         return PackedSamplesOutput(packs, pushback=samples[even:])
        >>> Pairs().select_samples_to_pack(["a", "b", "c"])
        PackedSamplesOutput(packs=[['a', 'b']], pushback=['c'])
    """

    packs: Iterable[Sequence[T | PartialSample[T]]]
    pushback: Iterable[T | PartialSample[T]] = ()


def _plain_slice(value: Any) -> Any:
    """Convert a slice to values that states can hold: tuples begin with a tag, others are as they are."""
    if isinstance(value, slice):
        return (":", *map(_plain_slice, (value.start, value.stop, value.step)))
    if isinstance(value, (list, tuple)):
        return ("", *map(_plain_slice, value))
    plain = value.item() if getattr(value, "size", None) == 1 or hasattr(value, "numel") else value
    if plain is None or type(plain) in (bool, int, float, str, bytes):
        return plain
    raise ConfigError(
        f"the slice of a PartialSample is {value!r:.80}",
        hint="use a slice, number or text, or a list or tuple of such: states hold it",
    )


def _read_slice(plain: Any) -> Any:
    if not isinstance(plain, (list, tuple)):
        return plain
    tag, *parts = plain
    return slice(*map(_read_slice, parts)) if tag == ":" else tuple(map(_read_slice, parts))


def resolve(
    items: Sequence[Item], returned: Any, name: str, call: tuple[int, int] | None = None
) -> tuple[list[list[Item]], list[Item], int]:
    """Return the packs and the pushback that a selector returned, as items, and how many it left out.

    With the numbers of a call and its batch, packs may have samples that the selector repeated or made.
    """
    hint = "return a list of packs, which are lists of samples, or PackedSamplesOutput"
    if returned is None:
        raise ConfigError(f"{name} returned None", hint=hint)
    output = returned if isinstance(returned, PackedSamplesOutput) else PackedSamplesOutput(returned)
    given = {id(item.value): item for item in items}
    twins = [item for item in items if given[id(item.value)] is not item]  # of one object several times
    keys: dict[int, RestoreKey] = {}  # of samples that may be cut
    parts: set[tuple[int, Any]] = set()
    wrong: list[Any] = []

    def taken(number: int) -> Item | None:
        item = given.pop(number, None)
        if item is not None and twins:
            twin = next((twin for twin in twins if id(twin.value) == number), None)
            if twin is not None:
                twins.remove(twin)
                given[number] = item
                return twin
        return item

    def found(value: Any) -> Item:
        item = taken(id(value))
        if isinstance(value, PartialSample):
            keys.update({} if keys else _keys_of_wholes(items))
            part = id(value.sample), _plain_slice(value.slice)
            if part[0] in keys and (item is not None or part not in parts):
                parts.add(part)
                return item or Item(value, (_PART, 0, keys[part[0]], part[1]))
            item = None
        if item is None:
            wrong.append(value)
            return Item(value, ())
        return item

    groups = []
    for pack in output.packs:
        if id(pack) in given or isinstance(pack, (str, dict)):
            raise ConfigError(f"{name} returned a sample in place of a pack", hint=hint)
        groups.append([found(value) for value in pack])
    if call is not None and wrong and not parts:
        keys_of_all, place = tuple([item.key for item in items]), 0
        for group in groups:
            for number, item in enumerate(group):
                if item.key == ():
                    group[number] = Item(item.value, (MADE, 0, keys_of_all, (*call, place)))
                place += 1
        wrong.clear()
        given.clear()  # what copies stand for is not left out
    kept = [found(value) for value in output.pushback]
    cut = {number for number, _ in parts}
    whole = cut & {id(item.value) for item in items} if cut else cut
    wrong += [number for number in whole if taken(number) is None]  # cut, and in a pack whole
    if wrong:
        raise ConfigError(
            f"{name} repeated or made up {len(wrong)} samples",
            where=f"its packs of {len(items)} samples",
            hint="put a sample of the buffer into one pack at most, or push it back; cut it into several "
            "with PartialSample",
        )
    left = (item.value for item in (*given.values(), *twins))
    left_out = sum(not (isinstance(value, PartialSample) and id(value.sample) in cut) for value in left)
    return [group for group in groups if group], kept, left_out


def _keys_of_wholes(items: Sequence[Item]) -> Iterator[tuple[int, RestoreKey]]:
    """Yield the identity and the key of each sample of a buffer, and of the samples of its parts."""
    for value, key in items:
        yield id(value), key
        while isinstance(value, PartialSample):
            value, key = value.sample, key[2]
            yield id(value), key


def restore_members(
    keys: Sequence[RestoreKey],
    restore: Callable[[list[RestoreKey]], list[Item]],
    select: Callable[[list[Any], int, int], list[Any]],
) -> list[Item]:
    """Make samples and parts again from their keys, by one call. The parts of a sample share it.

    Equal parts are of samples that came twice, as of two passes, and share none. ``select`` calls the
    selector again, for samples that it made, and returns those of all packs.
    """
    selections: dict[Any, list[Any]] = {}
    found: dict[int, Item] = {}
    for number, key in enumerate(map(as_key, keys)):
        if len(key) == 4 and key[0] == MADE:
            call, batch, place = key[3]
            selection = (key[2], call, batch)
            if selection not in selections:
                values = [item.value for item in restore(list(key[2]))]
                selections[selection] = select(values, call, batch)
            found[number] = Item(selections[selection][place], key)
    if found:
        others = iter(restore_members([key for n, key in enumerate(keys) if n not in found], restore, select))
        return [found[number] if number in found else next(others) for number in range(len(keys))]
    wholes: list[RestoreKey] = []
    shared: dict[RestoreKey, int] = {}
    equal: Counter[RestoreKey] = Counter()
    places: list[tuple[int, list[Any]]] = []
    for key in keys:
        cuts, member = [], as_key(key)
        while isinstance(key, (list, tuple)) and len(key) == 4 and key[0] == _PART:
            cuts.append(as_key(key[3]))
            key = key[2]
        same = as_key(key), equal[member]
        equal[member] += 1
        place = shared.setdefault(same, len(wholes)) if cuts else len(wholes)
        places.append((place, cuts))
        if place == len(wholes):
            wholes.append(key)
    items = restore(wholes)
    restored = []
    for place, cuts in places:
        value, key = items[place]
        for plain in reversed(cuts):
            value, key = PartialSample(value, _read_slice(plain)), (_PART, 0, key, plain)
        restored.append(Item(value, key))
    return restored
