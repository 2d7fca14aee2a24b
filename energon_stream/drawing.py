"""Drawings of pipelines: in one line, as a tree of lines, and as HTML for notebooks.

Names come from datasets, so they are strangers' text: what steers a terminal is written out, credentials are
removed, and HTML is escaped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from html import escape

from energon_stream.printable import printable_line, strip_credentials

WIDTH = 100  # characters of a line; what is longer becomes a tree
SHOWN = 4  # inner boxes of a box that a drawing shows
LONGEST = 200  # characters of a name that are shown
_ROW = "display:flex;flex-wrap:wrap;justify-content:center;align-items:flex-end;gap:1em"
_COLUMN = "display:flex;flex-direction:column;align-items:center"
_FRAME = "border:1px solid currentColor;border-radius:6px;padding:2px 10px;text-align:center"


@dataclass(frozen=True, slots=True)
class Drawing:
    """A dataset as a box, with the boxes that it reads from.

    Example:
        >>> print(Drawing("Batch", ("size=2",), (Drawing("a"), Drawing("b", label="0.5"))).line())
        Batch(a, 0.5: b, size=2)
    """

    title: str  # empty for a mixture within a mixture
    details: tuple[str, ...] = ()  # options, as ``name=value``
    inner: tuple[Drawing, ...] = ()  # the first boxes that it reads from
    label: str = ""  # what the outer box says of this one: its weight
    more: int = 0  # further inner boxes, which are not shown

    def labelled(self, label: str) -> Drawing:
        """Return this box with a label."""
        return replace(self, label=label)

    def line(self) -> str:
        """Return the drawing in one line."""
        shown = [*(box.line() for box in self.inner), *self._rest(), *map(_clean, self.details)]
        return self._head() + (f"({', '.join(shown)})" if shown else "")

    def text(self) -> str:
        """Return the drawing in one line if that is short, else as a tree."""
        line = self.line()
        return line if len(line) <= WIDTH else "\n".join(self._tree())

    def html(self) -> str:
        """Return the drawing as HTML: what is read stands above what reads it."""
        label = escape(self.line(), quote=True)
        return f'<div role="img" aria-label="{label}" style="overflow:auto">{self._html()}</div>'

    def _head(self, untitled: str = "") -> str:
        return (f"{_clean(self.label)}: " if self.label else "") + (_clean(self.title) or untitled)

    def _rest(self) -> list[str]:
        return [f"and {self.more} more"] if self.more else []

    def _tree(self) -> Iterator[str]:
        inner, line = self.inner, self.line()
        is_chain = len(inner) == 1 and not (inner[0].inner or inner[0].more or self.more)
        if is_chain and len(line) < WIDTH:
            yield line
            return
        details = ", ".join(map(_clean, self.details))
        yield self._head("mixture") + (f"({details})" if details else "")
        branches = [*(list(box._tree()) for box in inner), *([rest] for rest in self._rest())]
        for place, lines in enumerate(branches):
            first, rest = ("└─ ", "   ") if place == len(branches) - 1 else ("├─ ", "│  ")
            yield first + lines[0]
            yield from (rest + other for other in lines[1:])

    def _html(self) -> str:
        above = [box._html() for box in self.inner]
        above += [f"<div><i>{escape(rest)}</i></div>" for rest in self._rest()]
        row = f'<div style="{_ROW}">{"".join(above)}</div>' if above else ""
        details = "<br>".join(escape(_clean(detail), quote=True) for detail in self.details)
        small = f'<div style="font-size:smaller;opacity:0.75">{details}</div>' if details else ""
        title = f"<b>{escape(_clean(self.title) or 'mixture', quote=True)}</b>"
        below = f"<div>{escape(_clean(self.label), quote=True)}</div>" if self.label else ""
        arrow = "<div>↓</div>" if above else ""
        return f'<div style="{_COLUMN}">{row}{arrow}<div style="{_FRAME}">{title}{small}</div>{below}</div>'


def _clean(text: str) -> str:
    clean = printable_line(strip_credentials(text))
    return clean if len(clean) <= LONGEST else clean[: LONGEST - 3] + "..."


def brief(value: object, **fields: object) -> str:
    """Return a ``repr`` in one line for a value with large arrays.

    Example:
        >>> brief(Drawing("a"), boxes=3)
        'Drawing(boxes=3)'
    """
    return f"{type(value).__name__}({', '.join(f'{name}={field}' for name, field in fields.items())})"
