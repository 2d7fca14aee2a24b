"""Damaged states: changes of their values, and of their bytes. Each is drawn from a ``random.Random``."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from energon_stream.state import dumps, loads, with_digest

if TYPE_CHECKING:
    import random

Mode = str
"""Digest of a damaged state: ``"kept"``, of the undamaged state; ``"made"``, its own, as by an attacker."""
MODES: tuple[Mode, ...] = ("kept", "made")

ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 255, 2**31, 2**48, 2**62, 2**63 - 1, -(2**63), 1.5, float("inf"), "",
    "x", "0", b"", b"x" * 40, [], [0], [[]], {}, {"in": None}, {"n": 0}, [None] * 3, [2**62] * 4,
)  # fmt: skip
"""Values that take the place of others."""


@dataclass
class Place:
    """One value in a state: its container, its key in that, and the value."""

    container: Any
    key: Any
    value: Any

    def put(self, value: Any) -> None:
        self.container[self.key] = value


def places(value: Any) -> Iterator[Place]:
    """All values below a value, at any depth."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(items):
        yield Place(value, key, inner)
        if isinstance(inner, (dict, list)):
            yield from places(inner)


def _pick(draw: random.Random, state: Any, *kinds: type) -> Place | None:
    found = [place for place in places(state) if type(place.value) in kinds] if kinds else list(places(state))
    return draw.choice(found) if found else None


def drop(draw: random.Random, state: Any, others: list[Any]) -> None:
    place = _pick(draw, state)
    assert place is not None
    del place.container[place.key]


def rename(draw: random.Random, state: Any, others: list[Any]) -> None:
    place = draw.choice([place for place in places(state) if isinstance(place.container, dict)])
    del place.container[place.key]
    place.container[draw.choice(["", f"{place.key}_", "n", "in", "at", "9", 4])] = place.value


def duplicate(draw: random.Random, state: Any, others: list[Any]) -> None:
    place = _pick(draw, state)
    assert place is not None
    if isinstance(place.container, list):
        place.container.insert(place.key, copy.deepcopy(place.value))
    else:
        place.container[draw.choice([*place.container, "again"])] = copy.deepcopy(place.value)


def other_type(draw: random.Random, state: Any, others: list[Any]) -> None:
    place = _pick(draw, state)
    assert place is not None
    place.put(copy.deepcopy(draw.choice(ODD)))


def other_number(draw: random.Random, state: Any, others: list[Any]) -> None:
    place = _pick(draw, state, int)
    assert place is not None
    value = place.value
    numbers = [value + 1, value - 1, value * 2, -value, value ^ (1 << draw.randrange(62)), draw.randrange(99)]
    place.put(draw.choice([*numbers, 2**53, 2**62, -(2**63), 10**9]))


def swap(draw: random.Random, state: Any, others: list[Any]) -> None:
    one, other = _pick(draw, state), _pick(draw, state)
    assert one is not None
    assert other is not None
    value = copy.deepcopy(other.value)
    other.put(copy.deepcopy(one.value))
    if one.container is not other.value:
        one.put(value)


def swap_streams(draw: random.Random, state: Any, others: list[Any]) -> None:
    streams = state["streams"]
    one, other = draw.choices(list(streams), k=2)
    streams[one], streams[other] = streams[other], streams[one]


def truncate(draw: random.Random, state: Any, others: list[Any]) -> None:
    place = _pick(draw, state, list, bytes, str)
    assert place is not None
    place.put(place.value[: draw.randrange(len(place.value) + 1)])


def restart(draw: random.Random, state: Any, others: list[Any]) -> None:
    """Empty states, from which a node would begin anew."""
    found = [place for place in places(state["streams"]) if isinstance(place.value, dict)]
    if found:
        draw.choice(found).put(copy.deepcopy(draw.choice([None, {}])))


def foreign(draw: random.Random, state: Any, others: list[Any]) -> None:
    """A value of the same name in the state of another pipeline, or the part of another time."""
    place = draw.choice([place for place in places(state) if isinstance(place.container, dict)])
    found = [one.value for other in others for one in places(other) if one.key == place.key]
    place.put(copy.deepcopy(draw.choice(found or [None])))


def flip_inside(draw: random.Random, state: Any, others: list[Any]) -> None:
    """Damage bytes that a state holds: packed cursors, numbers of shards, marks."""
    place = _pick(draw, state, bytes) or _pick(draw, state, str)
    if place is not None and isinstance(place.value, bytes):
        place.put(damage_bytes(draw, place.value))


STRUCTURED: tuple[Callable[[random.Random, Any, list[Any]], None], ...] = (
    drop, rename, duplicate, other_type, other_type, other_number, other_number, swap, swap_streams, truncate,
    restart, foreign, foreign, flip_inside,
)  # fmt: skip


def damage_bytes(draw: random.Random, data: bytes) -> bytes:
    """Flip, insert, delete or cut some bytes."""
    damaged = bytearray(data)
    for _ in range(draw.choice([1, 1, 1, 2, 5])):
        place = draw.randrange(len(damaged) + 1)
        kind = draw.choice(["flip", "flip", "flip", "byte", "insert", "delete", "cut", "repeat"])
        if kind == "insert" or not damaged:
            damaged[place:place] = draw.randbytes(draw.choice([1, 1, 2, 9]))
        elif kind == "flip":
            damaged[place % len(damaged)] ^= 1 << draw.randrange(8)
        elif kind == "byte":
            damaged[place % len(damaged)] = draw.choice([0, 1, 0x7F, 0x80, 0xC0, 0xDD, 0xDF, 0xC6, 0xFF])
        elif kind == "delete":
            del damaged[place : place + draw.choice([1, 1, 2, 9])]
        elif kind == "cut":
            del damaged[place:]
        else:
            damaged[place:place] = damaged[place : place + draw.randrange(1, 40)]
    return bytes(damaged)


def plain(state: Any) -> Any:
    """The state with lists and dicts that may be changed."""
    return loads(dumps(state))


def structured(draw: random.Random, state: Any, mode: Mode, others: list[Any]) -> Any:
    """A state of which some values were changed."""
    damaged = plain(state)
    kind = draw.choice(STRUCTURED)
    part = damaged if draw.random() < 0.4 or kind in (swap_streams, restart) else damaged["streams"]
    if any(places(part)):
        kind(draw, part, others)
    if mode == "made" and isinstance(damaged, dict):
        damaged = with_digest(damaged)
    return damaged


def by_bytes(draw: random.Random, state: Any, mode: Mode) -> Any:
    """The bytes of a state, of which some were changed; or a state with such bytes inside."""
    damaged = plain(state)
    inside = [place for place in places(damaged["streams"]) if isinstance(place.value, bytes)]
    if inside and draw.random() < 0.5:
        place = draw.choice(inside)
        place.put(damage_bytes(draw, place.value))
        return dumps(with_digest(damaged) if mode == "made" else damaged)
    if mode != "made":
        return damage_bytes(draw, dumps(damaged))
    data = damage_bytes(draw, dumps({key: value for key, value in damaged.items() if key != "digest"}))
    try:
        return dumps(with_digest(loads(data)))
    except (ValueError, AttributeError):
        return data


__all__ = ["MODES", "Mode", "by_bytes", "plain", "structured"]
