"""Plots by matplotlib, as SVG and PNG files. An SVG file suits light and dark pages: it has no background."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from energon_stream.errors import ConfigError
from energon_stream.imports import of_extra

if TYPE_CHECKING:
    import os

    from matplotlib.axes import Axes

INK, PALE, STRONG = "#010203", "#8ab4e8", "#3b82e6"
"""Colours: that of the page's text, and two that are seen on light and dark pages."""
_STYLE = "<style>svg{color:#222}@media(prefers-color-scheme:dark){svg{color:#ddd}}</style>"
_INKED = ("text.color", "xtick.color", "ytick.color", "axes.edgecolor", "axes.labelcolor")
_SETTINGS = {**dict.fromkeys(_INKED, INK), "svg.fonttype": "none", "axes.facecolor": "none", "font.size": 9}


def save_plot(
    path: str | os.PathLike[str], size: tuple[float, float], fill: Callable[[Axes], object]
) -> None:
    """Write what ``fill`` draws, on some inches, to an ``.svg`` or ``.png`` file. Needs the extra ``plots``.

    Raises ConfigError for files of other names.
    """
    kind, data = Path(path).suffix.lower(), io.BytesIO()
    if kind not in (".svg", ".png"):
        raise ConfigError(f"{path} is no name of a picture", hint="use one that ends in .svg or .png")
    with of_extra("plots"):
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    paper: dict[str, Any] = {"facecolor": "white"} if kind == ".png" else {"transparent": True}
    with rc_context(_SETTINGS):
        figure = Figure(size, layout="constrained")
        fill(figure.add_subplot())
        figure.savefig(data, format=kind[1:], dpi=150, **paper)
    found = data.getvalue()
    if kind == ".svg":
        head, tag, rest = found.decode().replace(INK, "currentColor").partition("<defs>")
        found = f"{head}{_STYLE}{tag}{rest}".encode()
    Path(path).write_bytes(found)
