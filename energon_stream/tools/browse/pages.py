"""Answers the page with plain values: the catalog, samples, a step, the results of a search."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

from energon_stream.errors import ConfigError
from energon_stream.limits import Limits
from energon_stream.printable import printable, printable_line
from energon_stream.storage import ByteRange
from energon_stream.tools.browse.catalog import Catalog
from energon_stream.tools.browse.memory_budget import ANSWERS
from energon_stream.tools.browse.sample_source import Match
from energon_stream.tools.browse.shown_parts import Kind, ShownPart, ShownSample
from energon_stream.tools.browse.small_pictures import bytes_to_draw, draw, draw_first_frame
from energon_stream.tools.browse.texts import MOST_TEXT, PREVIEW_CHARACTERS, Filter, shown_text
from energon_stream.tools.browse.training import Run, StepFinder, number

PAGE = 50
_MOST_SAMPLES = 200
_MOST_FOUND = 50
MOST_LOOKED, MOST_HELD = 2000, 64 << 20
"""Samples, and bytes of them, that a filter looks at for one answer."""
_SIDES = (256, 1600)
"""Pixels of the squares in which images are drawn: in lists, and alone."""
_MOST_AT_ONCE = 8 << 20
"""Bytes of an image; a larger one is read when nothing else is drawn."""
_TEXTS = (Kind.TEXT, Kind.JSON)


class Pages:
    """Answers the questions of the page. For any threads. The steps of ``run`` are shown first."""

    def __init__(self, catalog: Catalog, steps: StepFinder, run: Run, limits: Limits) -> None:
        self._catalog, self._steps, self._run, self._limits = catalog, steps, run, limits

    def catalog(self) -> dict[str, Any]:
        """Return the datasets with their shares, the numbers of the run, and whether frames can be drawn."""
        entries = [
            {
                "split": printable_line(entry.split),
                "url": printable_line(entry.url),
                "share": entry.share,
                "samples": entry.samples,
            }
            for entry in self._catalog.entries
        ]
        url = printable_line(self._catalog.url)
        frames = importlib.util.find_spec("av") is not None
        found = {"url": url, "entries": entries, "run": self._run.numbers(), "page": PAGE, "frames": frames}
        return found | {"trained": self._run.options.get("split_part", "train")}

    def samples(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return neighbouring samples of a dataset: ``entry``, ``first``, ``count`` and a filter.

        A filter looks on until it has found ``count`` samples, or has looked at enough for one answer; then
        ``first + loaded`` is where the next answer begins.

        Raises ConfigError if a value is wrong, and what opening and reading raise.
        """
        place, count = self._catalog.open(number(query, "entry", 0)), _count(query)
        source, condition = self._catalog.source(place), _condition(query)
        total = source.index.num_samples
        at = first = min(number(query, "first", 0), max(0, total - 1))
        stop = min(total, first + (count if condition is None else MOST_LOOKED))
        shown: list[dict[str, Any]] = []
        held = 0
        while at < stop and len(shown) < count and held < MOST_HELD:
            samples = source.load(range(at, min(stop, at + count)))
            shown += _shown([(place, sample) for sample in samples], condition)
            held += sum(sample.held for sample in samples)
            at += len(samples)
        if len(shown) > count:
            shown = shown[:count]
            at = shown[-1]["number"] + 1
        return {"total": total, "first": first, "loaded": at - first, "samples": shown}

    def step(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return samples of a step: the numbers of a run, ``first``, ``count`` and a filter.

        Raises ConfigError if a value is wrong, and what opening and reading raise.
        """
        found = self._steps.find(self._run.changed(query))
        first = min(number(query, "first", 0), max(0, len(found) - 1))
        wanted = found[first : first + _count(query)]
        places = {id(index): self._catalog.add(index) for index in {id(i): i for i, _ in wanted}.values()}
        by_place: dict[int, list[int]] = {}
        for index, each in wanted:
            by_place.setdefault(places[id(index)], []).append(each)
        loaded = {
            (place, sample.number): sample
            for place, numbers in by_place.items()
            for sample in self._catalog.source(place).load(numbers)
        }
        samples = [(places[id(index)], loaded[places[id(index)], each]) for index, each in wanted]
        shown = _shown(samples, _condition(query))
        return {"total": len(found), "first": first, "loaded": len(wanted), "samples": shown}

    def search(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return the samples whose keys begin with ``text``, and the shards whose paths contain it.

        Raises ConfigError if there is no such dataset, and NotPreparedError if keys are not indexed.
        """
        source = self._catalog.source(self._catalog.open(number(query, "entry", 0)))
        text = query.get("text", "")
        return {
            "samples": [_match(found) for found in source.find(text, _MOST_FOUND)],
            "shards": [_match(found) for found in source.find_shards(text, _MOST_FOUND)],
            "most": _MOST_FOUND,
        }

    def sample(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return one sample, given ``source`` and ``number``, with all of its texts."""
        place, found = self._sample(query)
        texts = {}
        for each, part in enumerate(found.parts):
            if part.kind in _TEXTS:
                texts[each] = part.read(ByteRange(0, min(part.size, MOST_TEXT + 1)))
        return _described(place, found, texts, MOST_TEXT)

    def picture(self, query: Mapping[str, str]) -> bytes:
        """Return the image ``part`` of a sample, or the first frame of a video, as a JPEG file of one of two
        sizes (``side``).

        Raises PartLimitError if it is too large, DecodeError if it is no image or video, and
        MissingPackageError for a video without PyAV.
        """
        side = number(query, "side", _SIDES[0])
        if side not in _SIDES:
            raise ConfigError(f"pictures of {side} pixels are not drawn", hint=f"ask for one of {_SIDES}")
        where, part = self.part(query)
        if part.kind is Kind.VIDEO:
            return draw_first_frame(part, side, self._limits, where)
        if part.kind is not Kind.IMAGE:
            raise ConfigError("the part is no image or video", where=where)
        if part.size > self._limits.part_bytes:
            raise ConfigError(f"the image has {part.size:,} bytes", where=where, hint="download it")
        whole = ByteRange(0, part.size)
        data = bytes(part.read(whole)) if part.size <= _MOST_AT_ONCE else None
        with ANSWERS.taken(ANSWERS.size if data is None else bytes_to_draw(data, self._limits)):
            return draw(data or bytes(part.read(whole)), side, self._limits, where)

    def part(self, query: Mapping[str, str]) -> tuple[str, ShownPart]:
        """Return a part by its number (``part``) in a sample, and the place for messages."""
        _, found = self._sample(query)
        place = number(query, "part", 0)
        if place >= len(found.parts):
            raise ConfigError(f"the sample has no part number {place}")
        return f"{found.shard or ''}/{found.key}.{found.parts[place].name}", found.parts[place]

    def _sample(self, query: Mapping[str, str]) -> tuple[int, ShownSample]:
        place, wanted = number(query, "source", 0), number(query, "number", 0)
        source = self._catalog.source(place)
        if wanted >= source.index.num_samples:
            raise ConfigError(
                f"there is no sample {wanted}", hint=f"the dataset has {source.index.num_samples}"
            )
        return place, source.load([wanted])[0]


def _count(query: Mapping[str, str]) -> int:
    return min(number(query, "count", PAGE), _MOST_SAMPLES)


def _condition(query: Mapping[str, str]) -> Filter | None:
    if not query.get("value"):
        return None
    return Filter(query.get("field", ""), query.get("operator") or "contains", query["value"])  # type: ignore[arg-type]


def _shown(samples: Sequence[tuple[int, ShownSample]], condition: Filter | None) -> list[dict[str, Any]]:
    """Describe those of some samples, each with its source, that a filter lets through."""
    shown = []
    for place, sample in samples:
        texts = {
            number: part.content
            for number, part in enumerate(sample.parts)
            if part.kind in _TEXTS and isinstance(part.content, memoryview)
        }
        if condition is None or _passes(condition, sample, texts):
            shown.append(_described(place, sample, texts, PREVIEW_CHARACTERS))
    return shown


def _passes(condition: Filter, sample: ShownSample, texts: Mapping[int, memoryview]) -> bool:
    named = {
        sample.parts[each].name: bytes(data[:MOST_TEXT]).decode("utf-8", "replace")
        for each, data in texts.items()
    }
    return condition.matches(sample.key, sample.shard, named, tuple(part.name for part in sample.parts))


def _described(place: int, sample: ShownSample, texts: Mapping[int, memoryview], most: int) -> dict[str, Any]:
    parts = []
    for each, part in enumerate(sample.parts):
        described: dict[str, Any] = {
            "name": printable_line(part.name),
            "size": part.size,
            "kind": part.kind.value,
        }
        if each in texts:
            shown = shown_text(texts[each], part.kind, most)
            described |= {"text": shown.text, "cut": shown.is_cut}
        parts.append(described)
    return {
        "source": place,
        "number": sample.number,
        "key": printable_line(sample.key),
        "shard": printable_line(sample.shard or ""),
        "problem": None if sample.problem is None else printable(sample.problem),
        "parts": parts,
    }


def _match(found: Match) -> dict[str, Any]:
    return {"key": printable_line(found.key), "shard": printable_line(found.shard), "number": found.number}
